from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.episodes import episode_state
from relive.episodes import helpers_test
from relive.episodes import store as store_lib
from relive.persistence import state as state_lib

PLAIN = relive.PlainCodec()
Buffer = helpers_test.Buffer
live = helpers_test.live


def example() -> Buffer:
    """Return two ended episodes, an aborted one without its final observation, and three open ones."""
    buffer = Buffer(seed=0)
    live(buffer, "a", 3, "COMPLETED")
    live(buffer, "b", 2, None)
    live(buffer, "ä\0", 1, "TRUNCATED")
    buffer.abort_episode_nowait(live(buffer, "a", 2, None))
    live(buffer, "a", 4, None)
    live(buffer, "a", 0, None)
    return buffer


def made(state: Any, codec: relive.Codec = PLAIN) -> store_lib.EpisodeStore[Any, Any]:
    store: store_lib.EpisodeStore[Any, Any] = store_lib.EpisodeStore(None, None)
    store.fill(episode_state.load(state_lib.StateReader(state, state["arrays"]), codec))
    return store


def test_open_episodes_keep_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    buffer = Buffer()
    first = buffer.start_episode_nowait("a")
    clock[0] = 107.0
    second = buffer.start_episode_nowait("a")
    state = buffer.state_dict()
    clock[0] = 3.0  # Another machine.
    assert made(state).stats().open_ages == {first: 7.0, second: 0.0}


def test_loaded_values_are_equal_and_not_shared() -> None:
    values = [None, 2**80, float("nan"), {"a": np.arange(3, dtype=">u2")}, (b"x", ["y"]), {1, 2}, np.float16(0.1)]
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    for value in values:
        buffer.append_observation_action_reward_nowait(episode_id, value, value, 0.0)
    state = buffer.state_dict()
    first, second = made(state)[episode_id], made(state)[episode_id]
    assert [PLAIN.encode(value) for value in first.observations] == [PLAIN.encode(value) for value in values]
    assert [type(value) for value in first.actions] == [type(value) for value in values]
    first.observations[3]["a"][0] = 9
    assert second.observations[3]["a"][0] == 0


class Point:
    """An object that no codec of relive can encode."""

    def __init__(self, x: int) -> None:
        self.x = x


class PointCodec:
    name = "point-1"

    def encode(self, value: Any) -> bytes:
        return str(value.x).encode()

    def decode(self, content: bytes) -> Any:
        return Point(int(content))


def with_points() -> Buffer:
    buffer = Buffer(seed=0)
    episode_id = buffer.start_episode_nowait("a")
    for t in range(3):
        buffer.append_observation_action_reward_nowait(episode_id, Point(t), Point(-t), 0.0)
    return buffer


def test_an_object_that_no_codec_takes_is_named(tmp_path: Any) -> None:
    buffer = with_points()
    (episode_id,) = buffer.get_stats().open_ages
    for call in (buffer.state_dict, lambda: buffer.save(tmp_path / "saved")):
        message = f"^observation 0 of episode {episode_id} cannot be saved: .*Point.*codec=.*$"
        with pytest.raises(errors.CheckpointError, match=message):
            call()
    assert not list(tmp_path.glob("saved*"))


def test_a_custom_codec_saves_and_loads(tmp_path: Any) -> None:
    buffer = with_points()
    buffer.save(tmp_path / "saved", codec=PointCodec())
    loaded = Buffer.load(tmp_path / "saved", codec=PointCodec())
    (episode,) = helpers_test.stored(loaded)
    assert [point.x for point in episode.observations] == [0, 1, 2]
    assert [point.x for point in episode.actions] == [0, -1, -2]
    with pytest.raises(errors.CheckpointError, match="^codec must be the one of the checkpoint, point-1, got plain-1$"):
        Buffer.load(tmp_path / "saved")
    before = loaded.state_dict(codec=PointCodec())
    loaded.load_state_dict(before, codec=PointCodec())
    with pytest.raises(errors.CheckpointError, match="^codec must be the one of the checkpoint, point-1, got plain-1$"):
        loaded.load_state_dict(before)


@pytest.mark.parametrize("codec", [3, PointCodec, "plain-1"])
def test_a_codec_without_its_methods_is_refused(codec: Any, tmp_path: Any) -> None:
    buffer = example()
    calls: list[Any] = [
        lambda: buffer.save(tmp_path / "saved", codec=codec),
        lambda: Buffer.load(tmp_path / "saved", codec=codec),
        lambda: buffer.state_dict(codec=codec),
        lambda: buffer.load_state_dict({}, codec=codec),
    ]
    if codec is not PointCodec:
        for call in calls:
            with pytest.raises(errors.ArgumentTypeError, match="^codec must have a name, of type str, and the methods"):
                call()


def test_a_failing_codec_is_named() -> None:
    class Failing(PointCodec):
        def decode(self, content: bytes) -> Any:
            raise ZeroDivisionError("no such point")

    state = with_points().state_dict(codec=PointCodec())
    message = "^array observations cannot be decoded: ZeroDivisionError: no such point$"
    with pytest.raises(errors.CheckpointError, match=message):
        made(state, Failing())


def test_values_are_read_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a value is longer than a chunk, or takes no bytes."""

    class Raw:
        name = "raw"

        def encode(self, value: Any) -> bytes:
            return bytes(value)

        def decode(self, content: bytes) -> Any:
            return content

    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    values = [b"", b"abc", b"", b"", b"d" * 20, b"efghij", b"", b"k"]
    for value in values:
        buffer.append_observation_action_reward_nowait(episode_id, value, b"", 0.0)
    for chunk in (1, 3, 8, 100):
        monkeypatch.setattr(state_lib, "CHUNK", chunk)
        (episode,) = made(buffer.state_dict(codec=Raw()), Raw())
        assert episode.observations == values
        assert episode.actions == [b""] * len(values)


def test_a_value_that_changes_while_saved_is_noticed() -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, [1], 0, 0.0)
    (episode,) = helpers_test.stored(buffer)
    column = episode_state.state_dict(buffer._store.snapshot(), PLAIN)["arrays"]["observations"]
    episode.observations[0].append(2)
    with pytest.raises(
        errors.CheckpointError, match=f"^observation 0 of episode {episode_id} changed while it was saved$"
    ):
        column.read(0, *column.shape)


def replaced(name: str, *values: Any) -> Any:
    def change(state: Any) -> None:
        array = state["arrays"][name]
        state["arrays"][name] = np.array([*values, *array[len(values) :].tolist()], array.dtype)

    return change


def counter(name: str, value: int) -> Any:
    return lambda state: state["counters"].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced("episode_id", b"x"), "^array episode_id must hold UUIDs, each once$"),
        (lambda state: replaced("episode_id", state["arrays"]["episode_id"][1])(state), "must hold UUIDs, each once$"),
        (replaced("episode_status", 4), "^array episode_status must hold numbers below 4$"),
        (replaced("episode_status", 0), "^array episode_has_final must be true where an episode ended, and nowhere"),
        (replaced("episode_has_final", False), "^array episode_has_final must be true where an episode ended"),
        (replaced("episode_steps", -1), "^array episode_steps must hold integers in"),
        (replaced("episode_steps", 2**62, 2**62), "^array rewards must be of dtype float64 and shape"),
        (replaced("episode_steps", 4), "^array rewards must be of dtype float64 and shape"),
        (replaced("rewards", np.nan), "^arrays rewards and episode_start_time must hold finite numbers$"),
        (replaced("episode_start_time", np.inf), "^arrays rewards and episode_start_time must hold finite numbers$"),
        (replaced("open_age", np.inf), "^array open_age must hold finite numbers of at least 0$"),
        (replaced("open_age", -1.0), "^array open_age must hold finite numbers of at least 0$"),
        (replaced("open_age", np.nan), "^array open_age must hold finite numbers of at least 0$"),
        (replaced("finished", 1), "^array finished must hold the places of those episodes, once each$"),
        (replaced("finished", 2), "^array finished must hold the places of those episodes, once each$"),
        (replaced("growing", 3), "^array growing must hold the places of those episodes, once each$"),
        (replaced("observation_end", 99), "^array observation_end must not fall$"),
        (replaced("observation_end", 3), "^array observations cannot be decoded: plain-1 content "),
        (replaced("actions", 0), "^array actions cannot be decoded: "),
        (counter("inserted", 11), "^counters/inserted must be at least 12, the steps that are stored, evicted or abor"),
        (counter("aborted_steps", 2), "^counters/inserted must be at least 13, .*, got 12$"),
        (counter("evicted_transitions", 1), "^counters/inserted must be at least 13, .*, got 12$"),
        (replaced("episode_drawn", True), "^counters/sampled must be at least 1, the episodes that were drawn, got 0$"),
    ],
)
def test_forged_stores_are_refused(change: Any, message: str) -> None:
    state = example().state_dict()
    change(state)
    with pytest.raises(errors.CheckpointError, match=message):
        made(state)


def test_an_agent_is_a_string() -> None:
    buffer = Buffer()
    buffer.start_episode_nowait("a")
    state = buffer.state_dict()
    content = PLAIN.encode(b"a")
    state["arrays"]["episode_agent"] = np.frombuffer(content, np.uint8)
    state["arrays"]["episode_agent_end"] = np.array([len(content)])
    with pytest.raises(errors.CheckpointError, match="^array episode_agent must hold strings$"):
        made(state)


def test_no_value_is_left_over() -> None:
    ends = np.array([2, 4, 6])
    column = state_lib.StateReader({}, {"x": np.frombuffer(PLAIN.encode("") * 3, np.uint8)}).column("x", np.uint8, (6,))
    assert list(episode_state._read("x", column, ends, PLAIN)) == ["", "", ""]
