"""Origins of rows, compared with a record made while they were written."""

import dataclasses
import random
from typing import Any, assert_type

import numpy as np
import pytest

import relive
from relive import errors


@dataclasses.dataclass
class Diary:
    """What happened to each row, by key."""

    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    going_on: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    """The keys of the open episode of each stream."""
    times: dict[int, int] = dataclasses.field(default_factory=dict)

    def write(self, key: int, stream: int, end: str) -> None:
        episode = self.going_on.setdefault(stream, [])
        self.rows.append({"stream": stream, "step": len(episode), "episode": episode})
        episode.append(key)
        if end != "OPEN":
            for row in self.rows:
                if row["episode"] is episode:
                    row["end"] = end
            del self.going_on[stream]

    def origin(self, key: int) -> dict[str, Any]:
        row = self.rows[key]
        return {
            "key": key,
            "stream": row["stream"],
            "step": row["step"],
            "episode_start_key": row["episode"][0],
            "episode_length": len(row["episode"]),
            "episode_end": row.get("end", "OPEN"),
            "age": len(self.rows) - 1 - key,
        }


def live(buffer: Any, diary: Diary, rng: random.Random, steps: int) -> None:
    """Add steps to random streams, or one to each; observation is the key."""
    for _ in range(steps):
        if rng.random() < 0.3:
            ends = [rng.choice(["OPEN", "OPEN", "OPEN", "TERMINATED", "TRUNCATED"]) for _ in range(buffer.streams)]
            numbers = np.zeros(buffer.streams)
            keys = buffer.extend(
                numbers,
                numbers,
                numbers,
                numbers,
                terminated=np.array([end == "TERMINATED" for end in ends]),
                truncated=np.array([end == "TRUNCATED" for end in ends]),
            )
            for stream, (key, end) in enumerate(zip(keys.tolist(), ends, strict=True)):
                diary.write(key, stream, end)
        else:
            stream = rng.randrange(buffer.streams)
            end = rng.choice(["OPEN", "OPEN", "TERMINATED", "TRUNCATED"])
            ends_so = {"terminated": end == "TERMINATED", "truncated": end == "TRUNCATED"}
            diary.write(buffer.add(0.0, 0.0, 0.0, 0.0, stream=stream, **ends_so), stream, end)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_each_row_comes_from_where_the_diary_says(streams: int, seed: int) -> None:
    rng, diary = random.Random(seed), Diary()
    buffer = relive.PrioritizedReplayBuffer(
        20, streams=streams, n_step=2, max_times_sampled=3, alpha=1.0, epsilon=0.0, seed=seed
    )
    for _ in range(8):
        live(buffer, diary, rng, 5)
        oldest = buffer._store.oldest_key
        for key in buffer.sample_keys(3).tolist():
            diary.times[key] = diary.times.get(key, 0) + 1
        buffer.update_priorities([len(diary.rows) - 1, len(diary.rows) - 2], [3.0, 0.5])
        barred = rng.randrange(oldest, len(diary.rows))
        buffer.set_eligible([barred], False)
        eligible = set(buffer.eligible_keys().tolist())
        for key in range(oldest, len(diary.rows)):
            origin = buffer.explain(key)
            assert {name: getattr(origin, name) for name in diary.origin(key)} == diary.origin(key)
            assert origin.slot == key % 20
            assert origin.times_sampled == diary.times.get(key, 0)
            assert origin.priority == buffer.get_priorities([key])[0]
            assert origin.is_eligible == (key in eligible)
            assert origin.is_barred or key != barred
            if origin.is_readable:
                assert origin.probability == buffer.read([key]).probabilities[0]
            else:
                assert origin.probability == 0
        buffer.set_eligible([barred], True)
        for key in (oldest - 1, len(diary.rows), -1):
            with pytest.raises(errors.UnknownKeyError, match=f"^key {key} not found: "):
                buffer.explain(key)


def test_an_origin_is_of_plain_numbers_and_of_now() -> None:
    buffer = relive.RingReplayBuffer(4, seed=0)
    for t in range(4):
        buffer.add(t, 0, 0.0, t + 1)
    before = buffer.explain(3)
    buffer.add(4, 0, 0.0, 5)
    assert (before.age, buffer.explain(3).age) == (0, 1)
    types = {name: type(value) for name, value in dataclasses.asdict(before).items()}
    assert set(types.values()) == {int, str, bool, float, type(None)}


def test_a_step_that_begins_no_sequence_is_not_readable() -> None:
    buffer = relive.SequenceReplayBuffer(20, length=3, seed=0)
    buffer.add_episode(np.arange(7.0), np.arange(6), np.zeros(6), terminated=False)
    assert not buffer.explain(5).is_readable
    assert not buffer.explain(5).is_eligible


def test_unknown_facts_of_an_origin_are_none() -> None:
    class Newest(relive.Sampler):
        def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
            raise NotImplementedError

    for sampler, probability in ((None, 0.5), (Newest(), None)):
        buffer = relive.RingReplayBuffer(10, sampler=sampler, seed=0)
        buffer.add_episode([0, 1, 2], [0, 0], [0.0, 0.0], terminated=True)
        origin = buffer.explain(0)
        assert (origin.times_sampled, origin.priority, origin.probability) == (None, None, probability)


def test_explaining_changes_nothing() -> None:
    twins = [relive.PrioritizedReplayBuffer(10, streams=2, max_times_sampled=2, seed=0) for _ in range(2)]
    for buffer in twins:
        live(buffer, Diary(), random.Random(0), 15)
    twins[0].explain(twins[0]._store.oldest_key)
    assert twins[0].sample_keys(5).tolist() == twins[1].sample_keys(5).tolist()
    assert twins[0].get_stats() == twins[1].get_stats()
    twins[0].check()


def test_explain_refuses_what_is_no_key() -> None:
    buffer = relive.RingReplayBuffer(4)
    buffer.add(0, 0, 0.0, 1)
    for wrong in (None, "3", 1.0, [3], np.array([3]), {}, 2**70, [[1], [2, 3]], object(), buffer.read([0])):
        with pytest.raises(errors.ArgumentTypeError, match="^(explain must be given a key|keys must be integers)"):
            buffer.explain(wrong)  # type: ignore[arg-type]


def test_a_row_is_told_in_one_line() -> None:
    buffer = relive.PrioritizedReplayBuffer(10, n_step=2, max_times_sampled=2, alpha=1.0, epsilon=0.0, seed=0)
    buffer.add_episode([0, 1, 2], [0, 0], [0.0, 0.0], terminated=False)
    buffer.add(5, 0, 0.0)
    buffer.update_priorities([0, 1], [3.0, 1.0])
    buffer.set_eligible([1], False)
    assert str(buffer.explain(0)) == (
        "key 0: step 0 of 2, episode from key 0, stream 0, TRUNCATED, slot 0, age 2, eligible, drawn 0 times, "
        "priority 3, probability 1"
    )
    assert str(buffer.explain(1)) == (
        "key 1: step 1 of 2, episode from key 0, stream 0, TRUNCATED, slot 1, age 1, not eligible (barred), "
        "drawn 0 times, priority 1, probability 0"
    )
    assert str(buffer.explain(2)) == (
        "key 2: step 0 of 1 so far, episode from key 2, stream 0, OPEN, slot 2, age 0, not eligible (no window can "
        "start there), drawn 0 times, priority 3, probability 0"
    )
    buffer.sample(2)
    assert ", not eligible (spent), drawn 2 times, " in str(buffer.explain(0))
    plain = relive.RingReplayBuffer(10)
    plain.add_episode([0, 1], [0], [0.0], terminated=True)
    line = "key 0: step 0 of 1, episode from key 0, stream 0, TERMINATED, slot 0, age 0, eligible, probability 1"
    assert str(plain.explain(0)) == line
    unknown = dataclasses.replace(plain.explain(0), probability=None)
    assert str(unknown) == line.removesuffix(", probability 1")


def test_types_of_explain() -> None:
    buffer = relive.RingReplayBuffer(4, seed=0)
    key = buffer.add(0, 0, 0.0, 1)
    assert_type(buffer.explain(key), relive.RowOrigin)
    assert_type(buffer.explain(np.int64(key)), relive.RowOrigin)
