"""Tests of the episodes that are stored: compared with lists that the tests keep themselves."""

import dataclasses
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.integrations import stored_episodes

SCHEMA = relive.Schema(
    {"place": relive.Field((), ">f4"), "image": relive.Field((1, 2), "uint8")},
    {"0": relive.Field((), "int64"), "1": relive.Field(2, "float16")},
    reward=relive.Field((), "float32"),
    extras={"logp": relive.Field((), "float64"), "policy": {"version": relive.Field((), "int32")}},
)
ENDS = st.sampled_from([(False, False), (False, False), (False, False), (True, False), (False, True), (True, True)])
STREAMS = st.integers(0, 2)
CALLS = st.one_of(
    st.tuples(st.just("add"), STREAMS, st.booleans(), ENDS, st.integers(0, 9)),
    st.tuples(st.just("extend"), st.lists(STREAMS, min_size=1, max_size=3, unique=True), st.booleans(), ENDS),
    st.tuples(st.just("extend"), st.just([0, 1, 2]), st.just(True), ENDS),
    st.tuples(st.just("add_episode"), STREAMS, st.integers(1, 5), st.booleans()),
    st.tuples(st.just("end_episode"), STREAMS),
    st.tuples(st.just("clear")),
)


@dataclasses.dataclass
class TwinEpisode:
    """All steps of an episode, as numbers: of step k the observation, and of everything else its key."""

    stream: int
    status: str = "IN_PROGRESS"
    observations: list[int] = dataclasses.field(default_factory=list)
    keys: list[int] = dataclasses.field(default_factory=list)
    final: int | None = None


def observations_of(numbers: Any) -> dict[str, Any]:
    """Return the observations of such numbers [...]."""
    numbers = np.asarray(numbers)
    return {"place": (numbers / 4).astype(">f4"), "image": (numbers[..., None, None] % 100 + [[0, 1]]).astype("uint8")}


def rest_of(keys: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return the actions, the rewards and the extras of the steps of those keys [...]."""
    keys = np.asarray(keys)
    actions = {"0": keys, "1": (keys[..., None] + [0, 0.5]).astype("float16")}
    extras = {"logp": keys / 3, "policy": {"version": (keys // 2).astype("int32")}}
    return actions, (keys / 8).astype("float32"), extras


class Twin:
    """A buffer and lists of everything that was added to it."""

    def __init__(self, capacity: int) -> None:
        self.buffer = relive.RingReplayBuffer(capacity, SCHEMA, streams=3)
        self.episodes: list[TwinEpisode] = []
        self.open: dict[int, TwinEpisode] = {}
        self.oldest_key = self.next_key = self.last_number = 0

    def number(self) -> int:
        """Return another number."""
        self.last_number += 1
        return self.last_number

    def observation(self, stream: int, splices: bool = False) -> int:
        """Return with what the stream goes on, and ends the open episode there if it cannot."""
        episode = self.open.get(stream)
        if episode is not None and episode.final is not None and not splices:
            return episode.final
        if episode is not None and episode.final is not None:
            self.end(stream, "TRUNCATED")
        return self.number()

    def end(self, stream: int, status: str) -> None:
        """End the episode that is open in the stream, if one is; before a step whose next observation is not known."""
        if stream in self.open:
            episode = self.open.pop(stream)
            episode.status = status
            if status == "TRUNCATED" and episode.final is None:
                episode.keys.pop()
                episode.final = episode.observations.pop()

    def step(self, stream: int, observation: int, final: int | None, end: tuple[bool, bool]) -> None:
        """Note a step."""
        if stream not in self.open:
            self.open[stream] = TwinEpisode(stream)
            self.episodes.append(self.open[stream])
        episode = self.open[stream]
        episode.observations.append(observation)
        episode.keys.append(self.next_key)
        episode.final = final
        self.next_key += 1
        if any(end):
            self.end(stream, "COMPLETED" if end[0] else "TRUNCATED")

    def add(self, stream: int, knows_next: bool, end: tuple[bool, bool], chance: int) -> None:
        """Add a step, which may belong to another episode than the last one of its stream."""
        observation = self.observation(stream, chance == 0)
        knows_next = knows_next or end == (False, True)
        final = self.number() if knows_next else None
        action, reward, extras = rest_of(self.next_key)
        self.buffer.add(
            observations_of(observation),
            action,
            reward,
            observations_of(final) if knows_next else None,
            terminated=end[0],
            truncated=end[1],
            stream=stream,
            **extras,
        )
        self.step(stream, observation, final, end)

    def extend(self, streams: list[int], knows_next: bool, end: tuple[bool, bool]) -> None:
        """Add a step to each of the streams; those of even numbers end with it."""
        ends = [end if stream % 2 == 0 else (False, False) for stream in streams]
        knows_next = knows_next or (False, True) in ends
        observations = [self.observation(stream) for stream in streams]
        finals = [self.number() if knows_next else None for _ in streams]
        actions, rewards, extras = rest_of(np.arange(self.next_key, self.next_key + len(streams)))
        self.buffer.extend(
            observations_of(observations),
            actions,
            rewards,
            observations_of(finals) if knows_next else None,
            terminated=[end[0] for end in ends],
            truncated=[end[1] for end in ends],
            streams=None if streams == [0, 1, 2] else streams,
            **extras,
        )
        for step in zip(streams, observations, finals, ends, strict=True):
            self.step(*step)

    def add_episode(self, stream: int, length: int, terminated: bool) -> None:
        """Add a whole episode."""
        self.end(stream, "TRUNCATED")
        numbers = [self.number() for _ in range(length + 1)]
        actions, rewards, extras = rest_of(np.arange(self.next_key, self.next_key + length))
        self.buffer.add_episode(
            observations_of(numbers), actions, rewards, terminated=terminated, stream=stream, **extras
        )
        for number in numbers[:-1]:
            self.step(stream, number, None, (False, False))
        self.open[stream].final = numbers[-1]
        self.end(stream, "COMPLETED" if terminated else "TRUNCATED")

    def end_episode(self, stream: int) -> None:
        """End what is open in a stream."""
        self.buffer.end_episode(stream=stream)
        self.end(stream, "TRUNCATED")

    def clear(self) -> None:
        """Forget everything."""
        self.buffer.clear()
        self.open.clear()
        self.oldest_key = self.next_key

    def stored(self) -> list[dict[str, Any]]:
        """Return the expected episodes, in the form of `shown`."""
        oldest = max(self.oldest_key, self.next_key - self.buffer.capacity)
        found = []
        for episode in self.episodes:
            keys = [key for key in episode.keys if key >= oldest]
            if keys:
                observations = episode.observations[-len(keys) :]
                actions, rewards, extras = rest_of(keys)
                last = [False] * (len(keys) - 1)
                found.append(
                    {
                        "keys": keys,
                        "stream": episode.stream,
                        "start_step": len(episode.keys) - len(keys),
                        "status": episode.status,
                        "observations": leaves(
                            observations_of(observations + ([] if episode.final is None else [episode.final]))
                        ),
                        "actions": leaves(actions),
                        "rewards": leaves(rewards),
                        "extras": leaves(extras),
                        "terminated": [*last, episode.status == "COMPLETED"],
                        "truncated": [*last, episode.status == "TRUNCATED"],
                        "has_final_observation": episode.final is not None,
                        "length": len(keys),
                    }
                )
        return sorted(found, key=lambda episode: int(episode["keys"][0]))


def leaves(tree: Any) -> Any:
    """Return a tree of arrays as one of lists, each with its dtype."""
    if isinstance(tree, dict):
        return {key: leaves(part) for key, part in tree.items()}
    return tree.dtype.str, tree.tolist()


def shown(episode: stored_episodes.StoredEpisode) -> dict[str, Any]:
    """Return an episode as numbers and lists."""
    return {
        "keys": episode.keys.tolist(),
        "stream": episode.stream,
        "start_step": episode.start_step,
        "status": episode.status,
        "observations": leaves(episode.observations),
        "actions": leaves(episode.actions),
        "rewards": leaves(episode.rewards),
        "extras": leaves(episode.extras),
        "terminated": episode.terminated.tolist(),
        "truncated": episode.truncated.tolist(),
        "has_final_observation": episode.has_final_observation,
        "length": len(episode),
    }


@hypothesis.given(capacity=st.integers(5, 30), calls=st.lists(CALLS, max_size=60))
@hypothesis.settings(max_examples=2 * hypothesis.settings().max_examples)
def test_stored_episodes_are_those_of_the_twin(capacity: int, calls: list[Any]) -> None:
    twin = Twin(capacity)
    for name, *arguments in calls:
        getattr(twin, name)(*arguments)
    twin.buffer.check()
    assert [shown(episode) for episode in stored_episodes.stored_episodes(twin.buffer)] == twin.stored()


def test_the_twin_sees_every_kind_of_episode() -> None:
    twin = Twin(20)
    for lazily in (True, False):
        for end in ((False, False), (True, False)):
            twin.add(0, not lazily, end, 1)
    for _ in range(2):
        twin.add(1, False, (False, False), 1)
    twin.add_episode(1, 2, False)
    twin.add(2, True, (False, False), 1)
    found = [shown(episode) for episode in stored_episodes.stored_episodes(twin.buffer)]
    assert found == twin.stored()
    assert [(episode["status"], episode["has_final_observation"]) for episode in found] == [
        ("COMPLETED", False),
        ("COMPLETED", True),
        ("TRUNCATED", True),
        ("TRUNCATED", True),
        ("IN_PROGRESS", True),
    ]


def test_stored_episodes_of_a_memory_map_are_found(tmp_path: Any) -> None:
    storage = relive.MemmapStorage(tmp_path / "map", capacity=4, schema=relive.Schema(*[relive.Field((), int)] * 2))
    buffer = relive.RingReplayBuffer(4, storage=storage)
    buffer.add_episode([1, 2, 3], [4, 5], [6.0, 7.0], terminated=False)
    (episode,) = stored_episodes.stored_episodes(buffer)
    assert episode.observations.tolist() == [1, 2, 3]
    assert episode.extras == {}


def test_an_empty_buffer_has_no_episodes() -> None:
    assert list(stored_episodes.stored_episodes(relive.RingReplayBuffer(4))) == []
    assert list(stored_episodes.stored_episodes(relive.RingReplayBuffer(4, SCHEMA))) == []


def test_an_open_episode_without_stored_steps_is_left_out() -> None:
    buffer = relive.RingReplayBuffer(2, streams=2)
    buffer.add(0, 0, 0.0, stream=0)
    buffer.add(1, 0, 0.0, stream=1)
    buffer.add(2, 0, 0.0, stream=1)
    assert [episode.stream for episode in stored_episodes.stored_episodes(buffer)] == [1]


def test_arrays_of_stored_episodes_are_copies() -> None:
    buffer = relive.RingReplayBuffer(4)
    buffer.add_episode([1, 2, 3], [4, 5], [6.0, 7.0], terminated=False)
    (episode,) = stored_episodes.stored_episodes(buffer)
    for array in (episode.keys, episode.observations, episode.actions, episode.rewards):
        array[:] = 9
    (episode,) = stored_episodes.stored_episodes(buffer)
    assert [episode.keys.tolist(), episode.observations.tolist()] == [[0, 1], [1, 2, 3]]
    assert [episode.actions.tolist(), episode.rewards.tolist()] == [[4, 5], [6.0, 7.0]]


def test_progress_counts_bytes_of_rows() -> None:
    buffer = relive.RingReplayBuffer(10)
    for length in (3, 1, 4):
        buffer.add_episode(range(length + 1), range(length), [0.0] * length, terminated=True)
    heard: list[tuple[int, int]] = []
    episodes = stored_episodes.stored_episodes(buffer, progress=lambda *bytes_read: heard.append(bytes_read))
    assert len(list(episodes)) == 3
    assert heard == [(72, 192), (96, 192), (192, 192)]


@pytest.mark.parametrize("call", ["add", "clear"])
def test_a_buffer_must_not_change_while_episodes_are_read(call: str) -> None:
    buffer = relive.RingReplayBuffer(4)
    for _ in range(2):
        buffer.add_episode([1, 2, 3], [4, 5], [6.0, 7.0], terminated=False)
    episodes = stored_episodes.stored_episodes(buffer)
    next(episodes)
    if call == "add":
        buffer.add(0, 0, 0.0)
    else:
        buffer.clear()
    with pytest.raises(
        errors.ArgumentError, match="^stored_episodes cannot go on after the buffer was written to: call it again$"
    ):
        next(episodes)


def test_arguments_of_stored_episodes_are_checked_at_once() -> None:
    wrong: Any = relive.EpisodeReplayBuffer()
    with pytest.raises(errors.ArgumentTypeError, match="^buffer must be an instance of ColumnReplayBuffer, got <"):
        stored_episodes.stored_episodes(wrong)
    wrong = 3
    with pytest.raises(errors.ArgumentTypeError, match="^progress must be callable or None, got 3$"):
        stored_episodes.stored_episodes(relive.RingReplayBuffer(4), progress=wrong)
