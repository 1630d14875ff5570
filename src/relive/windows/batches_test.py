from collections.abc import Callable
import re
from typing import Any, assert_type

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.windows import batches

SCHEMA = relive.Schema(
    {"image": relive.Field((4, 4), "uint8"), "hand": {"angle": relive.Field(3, "float32")}},
    relive.Field((), "int64"),
    reward=relive.Field((), "float32"),
    extras={"flag": relive.Field((), bool), "half": relive.Field(2, ">f2"), "wide": relive.Field((), "float64")},
)


def fill(buffer: Any, count: int = 40) -> Any:
    rng = np.random.default_rng(0)
    for t in range(count):
        image, angle = rng.integers(0, 256, (4, 4), np.uint8), rng.random(3, np.float32)
        extras = {"flag": t % 2 == 0, "half": np.full(2, t, np.float16), "wide": t / 4}
        buffer.add({"image": image, "hand": {"angle": angle}}, t, t / 4, terminated=t % 7 == 6, **extras)
    return buffer


def transitions() -> relive.PrioritizedReplayBuffer:
    buffer: relive.PrioritizedReplayBuffer = fill(relive.PrioritizedReplayBuffer(50, SCHEMA, seed=0))
    return buffer


def sequences() -> relive.SequenceReplayBuffer:
    buffer: relive.SequenceReplayBuffer = fill(relive.SequenceReplayBuffer(50, SCHEMA, length=3, pad=True, seed=0))
    return buffer


def tokens() -> relive.TokenReplayBuffer:
    buffer = relive.TokenReplayBuffer(max_tokens=100, seed=0)
    for length in (1, 2, 3):
        step = relive.TokenStep(prompt=[1], response=[2] * length, logprobs=[-0.5] * length, policy_version=0)
        buffer.add_episode([step], agent_id="agent")
    return buffer


def joint() -> relive.JointReplayBuffer:
    buffer = relive.JointReplayBuffer(50, agents=["left", "right"], seed=0)
    for t in range(9):
        agents = ["left", "right"] if t % 3 else ["left"]
        now, then = dict.fromkeys(agents, float(t)), dict.fromkeys(agents, t + 1.0)
        buffer.add(now, dict.fromkeys(agents, t % 2), dict.fromkeys(agents, 0.25), then)
    return buffer


DRAWS: dict[str, Callable[[], Any]] = {
    "transitions": lambda: transitions().sample(8),
    "sequences": lambda: sequences().sample(8),
    "tokens": lambda: tokens().sample(8),
    "joint": lambda: joint().sample(8),
    "agents": lambda: joint().sample(8).stacked(),
}
EVERY_KIND = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
NAMES = {"keys", "episode_ids", "agent_ids", "group_ids", "mismatches", "metadata"}


def array_leaves(batch: Any) -> dict[str, Any]:
    return {path: leaf for path, leaf in batches.leaves(batch) if path not in NAMES}


@EVERY_KIND
def test_map_calls_the_function_with_every_array_but_the_keys(draw: Callable[[], Any]) -> None:
    batch = draw()
    before = dict(batches.leaves(batch))
    mapped = batch.map(lambda array: array[:2])
    assert type(mapped) is type(batch)
    assert [len(batch), len(mapped)] == [8, 2]
    after = dict(batches.leaves(mapped))
    assert after.keys() == before.keys()
    for path in before:
        if path in NAMES:
            assert after[path] is before[path]
        else:
            assert after[path].tolist() == before[path][:2].tolist()
    for path, array in batches.leaves(batch):
        assert array is before[path]


def test_a_repr_shows_paths_dtypes_and_shapes_and_no_values() -> None:
    assert repr(DRAWS["transitions"]()) == (
        "TransitionBatch(observation/hand/angle: float32[8, 3], observation/image: uint8[8, 4, 4], action: int64[8], "
        "reward: float32[8], next_observation/hand/angle: float32[8, 3], next_observation/image: uint8[8, 4, 4], "
        "next_discount: float32[8], is_terminal: bool[8], steps: int64[8], keys: int64[8], probabilities: float64[8], "
        "weights: float64[8], extras/flag: bool[8], extras/half: >f2[8, 2], extras/wide: float64[8])"
    )
    assert repr(DRAWS["sequences"]()).startswith("SequenceBatch(observation/hand/angle: float32[8, 4, 3], ")
    assert repr(DRAWS["tokens"]()).endswith("group_ids: list, mismatches: list, metadata: tuple)")
    assert repr(DRAWS["joint"]()).startswith("JointBatch(agents/left/observation: float64[8], ")


def test_a_repr_shows_the_type_of_what_is_no_array() -> None:
    batch = DRAWS["transitions"]().map(lambda array: None)
    assert ", reward: NoneType, " in repr(batch)


@EVERY_KIND
def test_arrays_of_numpy_go_to_no_device(draw: Callable[[], Any]) -> None:
    rule = "needs a batch of tensors, got one of ndarray: as_tensors makes it$"
    with pytest.raises(errors.ArgumentTypeError, match=f"^to {rule}"):
        draw().to("cuda")
    with pytest.raises(errors.ArgumentTypeError, match=f"^pin_memory {rule}"):
        draw().pin_memory()


def test_join_and_cut_refuse_arrays_of_a_framework() -> None:
    rule = "needs a batch of arrays of numpy, got one of list: convert what it returns$"
    with pytest.raises(errors.ArgumentTypeError, match=f"^stacked {rule}"):
        DRAWS["joint"]().map(lambda array: array.tolist()).stacked()
    with pytest.raises(errors.ArgumentTypeError, match=f"^packed {rule}"):
        DRAWS["tokens"]().map(lambda array: array.tolist()).packed()


def test_a_batch_of_nothing_said_is_one_of_numpy() -> None:
    batch: relive.TransitionBatch = DRAWS["transitions"]()
    assert_type(batch.reward, arrays_lib.Array)
    assert_type(batch.keys, arrays_lib.Keys)
    assert_type(batch.map(lambda array: str(array)), relive.TransitionBatch[str])
    runs: relive.SequenceBatch = DRAWS["sequences"]()
    assert_type(runs.mask, arrays_lib.Array)
    assert_type(runs.map(lambda array: str(array)), relive.SequenceBatch[str])
    texts: relive.TokenBatch = DRAWS["tokens"]()
    assert_type(texts.map(lambda array: str(array)), relive.TokenBatch[str])
    together: relive.JointBatch = DRAWS["joint"]()
    assert_type(together.agents["left"].reward, arrays_lib.Array)
    assert_type(together.map(lambda array: str(array)).agents, dict[str, relive.AgentBatch[str]])
    assert_type(together.stacked().map(lambda array: str(array)), relive.AgentBatch[str])


# Samples of episodes.


def samples_of(observations: list[Any], actions: list[Any]) -> list[relive.ReplaySample[Any, Any]]:
    """Return the one-step samples of an episode in order."""
    return [
        relive.ReplaySample(
            episode_id="e",
            agent_id="a",
            observation=observations[t],
            action=action,
            next_observation=observations[t + 1],
            next_discount=0.5,
            is_terminal=False,
            rewards_seq=[1.0 + t],
            discount_powers=[1.0],
            start_step=t,
            actual_n=1,
            gamma=0.5,
            window_end="HORIZON",
        )
        for t, action in enumerate(actions)
    ]


def test_samples_of_episodes_become_a_batch_of_transitions() -> None:
    ring, episodes = relive.RingReplayBuffer(9, n_step=2, gamma=0.5, seed=0), relive.EpisodeReplayBuffer[Any, Any]()
    observations: list[Any] = [{"image": np.full((2, 2), t, np.uint8), "hand": {"angle": t / 4}} for t in range(5)]
    keys = ring.add_episode(
        {"image": np.stack([each["image"] for each in observations]), "hand": {"angle": [t / 4 for t in range(5)]}},
        np.arange(4),
        [1.0, 2.0, 3.0, 4.0],
        terminated=True,
    )
    episode_id = episodes.start_episode_nowait("agent")
    for t in range(4):
        episodes.append_observation_action_reward_nowait(episode_id, observations[t], t, t + 1.0)
    episodes.end_episode_nowait(episode_id, observations[4])
    drawn = episodes.sample_n_step_nowait(64, 2, 0.5)
    batch = relive.TransitionBatch.from_samples(drawn)
    expected = ring.read(keys[[each.start_step for each in drawn]])
    for path, array in batches.leaves(expected):
        if path == "keys":
            assert (batch.keys == -1).all()
        elif path == "probabilities":
            assert np.isnan(batch.probabilities).all()
        else:
            found = dict(batches.leaves(batch))[path]
            assert found.dtype == array.dtype
            assert found.tolist() == array.tolist()
    assert batch.keys.dtype == expected.keys.dtype
    assert batch.extras == {}


def test_samples_that_are_no_batch_are_refused_by_name(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[Any], Any, str]] = [
        ([np.zeros(3), np.zeros(4), 0], errors.SchemaError, "observation must have one shape in all samples, got [3] "),
        ([{"a": 1.0}, {"b": 1.0}, 0], errors.ArgumentError, "observation must have the same keys in all samples, got "),
        ([{"a": 1.0}, 1.0, 0], errors.ArgumentError, "observation must have the same keys in all samples, got "),
        ([{"a": {"b": object()}}] * 3, errors.SchemaError, "observation/a/b must be an array of numbers, of text or "),
        ([1.0, 2.0, None], errors.SchemaError, "next_observation must be an array of numbers, of text or of dates"),
        ([{}, {}, 0], errors.ArgumentError, "observation must have at least one key, got {}"),
    ]
    for observations, error, said in cases:
        with subtests.test(said), pytest.raises(error, match="^" + re.escape(said)):
            relive.TransitionBatch.from_samples(samples_of(observations, [0, 1]))


def test_other_than_lists_of_samples_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, str]] = [
        ([], errors.ArgumentError, "^samples must have at least 1 sample, got 0$"),
        (3, errors.ArgumentTypeError, "^samples must be an instance of Sequence, got 3$"),
        ([*samples_of([0, 1], [0]), 3], errors.ArgumentTypeError, "^sample 1 must be a ReplaySample, got 3$"),
    ]
    for wrong, error, said in cases:
        with subtests.test(said), pytest.raises(error, match=said):
            relive.TransitionBatch.from_samples(wrong)


def test_actions_of_samples_may_have_names_too() -> None:
    batch = relive.TransitionBatch.from_samples(samples_of([0, 1, 2], [{"move": 0, "aim": [0.5, 1.0]}] * 2))
    assert batch.action["move"].tolist() == [0, 0]
    assert batch.action["aim"].tolist() == [[0.5, 1.0]] * 2


def test_arrays_of_a_subclass_are_converted_by_path() -> None:
    array = np.ones(3).view(np.recarray)
    named = batches.converted({"a": {"b": (array,)}}, lambda root, name, leaf: (root + name, leaf.sum()))
    assert named == {"a": {"b": (("a/b/0", 3.0),)}}
