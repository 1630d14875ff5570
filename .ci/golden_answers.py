"""Compare what every kind of buffer returns here with what it returned at another revision, bit for bit.

    python .ci/golden_answers.py HEAD~3

Both revisions run in this call, on this machine, with this numpy: returns of `pow` and `log` differ between machines.
Each kind of buffer is written to and drawn from in turns, 200 batches, from seeds. Where the draws of a seed are meant
to change, so do the returns; where code only moves, they must not.
"""

from collections.abc import Callable, Iterator
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

NUM_BATCHES = 200
Step = tuple[Any, int, float, Any, bool, bool]


def steps(rng: np.random.Generator, observe: Callable[[int, int], Any]) -> Iterator[Step]:
    """Yield steps of episodes that say of themselves which they are, without end."""
    episode = 0
    while True:
        length, is_terminated = int(rng.integers(1, 12)), bool(rng.integers(2))
        for t in range(length):
            is_last = t == length - 1
            yield (
                *(observe(episode, t), t % 5, float(rng.normal()), observe(episode, t + 1)),
                is_last and is_terminated,
                is_last and not is_terminated,
            )
        episode += 1


def digest(answer: Any) -> str:
    """Return a short name of all bits of an answer."""
    sums = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            sums.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        elif isinstance(value, dict):
            for name in sorted(value):
                sums.update(str(name).encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            sums.update(b"[")
            for each in value:
                add(each)
        elif hasattr(value, "__dataclass_fields__"):
            add({name: getattr(value, name) for name in value.__dataclass_fields__ if not name.endswith("_id")})
        else:
            sums.update(repr(value).encode())

    add(answer)
    return sums.hexdigest()[:16]


def vector(episode: int, t: int) -> Any:
    return np.array([episode, t, 0.5], np.float32)


def image(episode: int, t: int) -> Any:
    return np.full((3, 3), (episode * 7 + t) % 256, np.uint8)


def mapping(episode: int, t: int) -> Any:
    return {"camera": image(episode, t), "pose": vector(episode, t)}


def columns(make: Callable[[], Any], observe: Callable[[int, int], Any] = vector, **draw: Any) -> Iterator[str]:
    """Yield the digests of a buffer that is added to one step at a time, with all that it can be told."""
    buffer, rng = make(), np.random.default_rng(7)
    source = steps(rng, observe)
    for number in range(NUM_BATCHES):
        for _ in range(60 if number == 0 else int(rng.integers(1, 9))):
            observation, action, reward, following, terminated, truncated = next(source)
            lazy = rng.random() < 0.3 and not (terminated or truncated)
            buffer.add(
                *(observation, action, reward, None if lazy else following),
                terminated=terminated,
                truncated=truncated,
                stream=0,
            )
        batch = buffer.sample(8, **draw)
        if isinstance(buffer, sys.modules["relive"].PrioritizedReplayBuffer) or "prioritized" in draw:
            buffer.update_priorities(batch.keys, np.abs(rng.normal(size=8)))
        yield digest([batch, buffer.eligible_keys(), buffer.num_eligible, len(buffer)])


def vectors(make: Callable[[], Any], num_streams: int) -> Iterator[str]:
    """Yield the digests of a buffer that is written by whole rounds, by some streams, and by whole episodes."""
    buffer, rng = make(), np.random.default_rng(7)
    sources = [steps(np.random.default_rng([7, stream]), vector) for stream in range(num_streams)]
    for number in range(NUM_BATCHES):
        for _ in range(9 if number == 0 else int(rng.integers(1, 4))):
            some = sorted(rng.permutation(num_streams)[: rng.integers(1, num_streams + 1)].tolist())
            told = [next(sources[stream]) for stream in some]
            parts = [np.array(part) for part in zip(*told, strict=True)]
            is_round = len(some) == num_streams
            buffer.extend(
                *parts[:4], terminated=parts[4], truncated=parts[5], streams=None if is_round else np.array(some)
            )
        batch = buffer.sample(8)
        yield digest([batch, buffer.eligible_keys(), buffer.read(batch.keys)])


def whole_episodes(make: Callable[[], Any]) -> Iterator[str]:
    buffer, rng = make(), np.random.default_rng(7)
    for number in range(NUM_BATCHES):
        for _ in range(8 if number == 0 else 1):
            length = int(rng.integers(6, 12))
            buffer.add_episode(
                np.array([vector(number, t) for t in range(length + 1)]),
                *(np.arange(length), rng.normal(size=length)),
                terminated=bool(rng.integers(2)),
                stream=0,
            )
        yield digest([buffer.sample(4), buffer.eligible_keys()])


def episodes(make: Callable[[], Any]) -> Iterator[str]:
    """Yield the digests of what EpisodeReplayBuffer draws while agents run, end and are evicted."""
    buffer, rng = make(), np.random.default_rng(7)
    open_ids: list[str] = []
    for number in range(NUM_BATCHES):
        for _ in range(40 if number == 0 else int(rng.integers(1, 9))):
            if not open_ids or rng.random() < 0.1:
                open_ids.append(buffer.start_episode_nowait(f"agent {rng.integers(3)}"))
            episode_id = open_ids[int(rng.integers(len(open_ids)))]
            if rng.random() < 0.1:
                status = ("COMPLETED", "TRUNCATED", "ABORTED")[int(rng.integers(3))]
                buffer.end_episode_nowait(episode_id, number, status)
                open_ids.remove(episode_id)
            else:
                buffer.append_observation_action_reward_nowait(episode_id, number, {"a": number}, float(rng.normal()))
        yield digest([buffer.sample_n_step_nowait(8, 3, 0.9), len(buffer)])


def items(unit: str) -> Iterator[str]:
    buffer, rng = sys.modules["relive"].ItemReplayBuffer(100, storage_unit=unit, seed=3), np.random.default_rng(7)
    for number in range(NUM_BATCHES):
        length = int(rng.integers(4, 9))
        ended = np.arange(length) == length - 1
        batch = {"obs": rng.normal(size=(length, 2)), "t": np.arange(length), "eps_id": np.full(length, number)}
        batch |= {"terminated": ended, "truncated": np.zeros(length, bool)}
        buffer.add(batch | ({"seq_lens": np.array([3, length - 3])} if unit == "sequences" else {}))
        yield digest(buffer.sample(3))


def joint() -> Iterator[str]:
    buffer, rng = (
        sys.modules["relive"].JointReplayBuffer(50, agents=("a", "b"), n_step=2, seed=3),
        np.random.default_rng(7),
    )
    source = steps(rng, vector)
    for number in range(NUM_BATCHES):
        for _ in range(30 if number == 0 else 3):
            observation, action, reward, following, terminated, truncated = next(source)
            buffer.add(
                *(dict.fromkeys("ab", value) for value in (observation, action, reward, following)),
                terminations=dict.fromkeys("ab", terminated),
                truncations=dict.fromkeys("ab", truncated),
                stream=0,
            )
        yield digest(buffer.sample(8))


def kinds() -> dict[str, Callable[[], Iterator[str]]]:
    """Return what yields the digests of each kind of buffer, by its name."""
    import relive

    ring, prioritized, sequence = (
        relive.RingReplayBuffer,
        relive.PrioritizedReplayBuffer,
        relive.SequenceReplayBuffer,
    )
    beta = relive.LinearSchedule(0.4, 1.0, 100)
    return {
        "ring": lambda: columns(lambda: ring(50, seed=3)),
        "ring, 3 steps": lambda: columns(lambda: ring(50, n_step=3, gamma=0.9, seed=3)),
        "ring, by call": lambda: columns(lambda: ring(50, seed=3), n_step=4, gamma=0.8),
        "ring, frame stack": lambda: columns(lambda: ring(50, frame_stack=4, n_step=2, seed=3), image),
        "ring, first frame": lambda: columns(lambda: ring(50, frame_stack=3, stack_padding="first", seed=3), image),
        "ring, mappings": lambda: columns(lambda: ring(50, seed=3), mapping),
        "ring, drawn twice": lambda: columns(lambda: ring(400, max_times_sampled=4, seed=3)),
        "ring, streams": lambda: vectors(lambda: ring(60, streams=5, n_step=2, seed=3), 5),
        "ring, episodes": lambda: whole_episodes(lambda: ring(50, n_step=3, seed=3)),
        "prioritized": lambda: columns(lambda: prioritized(50, seed=3)),
        "prioritized, 3 steps": lambda: columns(lambda: prioritized(50, n_step=3, beta=beta, seed=3)),
        "prioritized, plain": lambda: columns(
            lambda: prioritized(50, stratified=False, weight_normalization="buffer", new_priority="live", seed=3)
        ),
        "prioritized, streams": lambda: vectors(lambda: prioritized(60, streams=5, seed=3), 5),
        "sequence": lambda: columns(lambda: sequence(80, length=4, seed=3)),
        "sequence, burn-in": lambda: columns(lambda: sequence(80, length=4, burn_in=2, stride=2, seed=3)),
        "sequence, pad": lambda: columns(lambda: sequence(80, length=8, pad=True, seed=3)),
        "sequence, priorities": lambda: columns(lambda: sequence(80, length=3, prioritized=True, seed=3)),
        "sequence, streams": lambda: vectors(lambda: sequence(100, length=3, streams=5, seed=3), 5),
        "sequence, episodes": lambda: whole_episodes(lambda: sequence(60, length=5, seed=3)),
        "episodes": lambda: episodes(lambda: relive.EpisodeReplayBuffer(seed=3)),
        "episodes, few": lambda: episodes(
            lambda: relive.EpisodeReplayBuffer(max_transitions=60, max_episodes=9, seed=3)
        ),
        **{f"items, {unit}": lambda unit=unit: items(unit) for unit in ("timesteps", "sequences", "episodes")},
        "items, fragments": lambda: items("fragments"),
        "joint": joint,
    }


def compare(revision: str) -> int:
    """Return 1 if any kind returns something else here than at `revision`, and print which."""
    root = pathlib.Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=root, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        there, here = (
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, "--answers", str(source / "src")], check=True, capture_output=True
                ).stdout
            )
            for source in (pathlib.Path(folder), root)
        )
    differs = 0
    for name, answers in here.items():
        unequal = [number for number, (a, b) in enumerate(zip(there[name], answers, strict=True)) if a != b]
        differs += bool(unequal)
        print(f"{name:24} {len(answers)} batches", f"differ from batch {unequal[0]} on" if unequal else "equal")
    return 1 if differs else 0


def main() -> int:
    if sys.argv[1] != "--answers":
        return compare(sys.argv[1])
    sys.path.insert(0, sys.argv[2])
    print(json.dumps({name: list(make()) for name, make in kinds().items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
