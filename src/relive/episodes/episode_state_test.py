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
    episode_state.load(state_lib.StateReader(state, state["arrays"]), store, codec)
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
    column = episode_state.Snapshot(buffer._store).state_dict(PLAIN)["arrays"]["observations"]
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


def described(place: int, *values: Any) -> Any:
    """Put values in the tuple of the first episode, from a place on."""

    def change(state: Any) -> None:
        content, (end, *ends) = state["arrays"]["episodes"].tobytes(), state["arrays"]["episode_end"].tolist()
        old = PLAIN.decode(content[:end])
        first = PLAIN.encode((*old[:place], *values, *old[place + len(values) :]))
        state["arrays"]["episodes"] = np.frombuffer(first + content[end:], np.uint8)
        state["arrays"]["episode_end"] = np.array([end, *ends]) + len(first) - end

    return change


def counter(name: str, value: int) -> Any:
    return lambda state: state["counters"].update({name: value})


HAS_ONE = "^array episodes has one, which cannot be with "
BY_VERSION = "^array growing must hold the places of those episodes, once a version$"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (described(0, "x"), f"{HAS_ONE}'x'$"),
        (described(1, b"a"), f"{HAS_ONE}b'a'$"),
        (described(2, 3), f"{HAS_ONE}3$"),
        (described(3, -1), f"{HAS_ONE}-1$"),
        (
            replaced("episode_start_time", np.inf),
            "^array episode_start_time must hold finite numbers of at least -inf$",
        ),
        (described(4, None), f"{HAS_ONE}None$"),
        (described(4, b"N"), "metadata cannot be None$"),
        (described(5, "GONE"), f"{HAS_ONE}'GONE'$"),
        (described(6, [(0, 1, 2)]), rf"{HAS_ONE}\[\(0, 1, 2\)\]$"),
        (described(6, [(0, True)]), rf"{HAS_ONE}\[\(0, True\)\]$"),
        (described(7, -1), f"{HAS_ONE}-1$"),
        (described(8, 1.0), f"{HAS_ONE}1.0$"),
        (described(8, 3, 4), rf"{HAS_ONE}\(.*\)$"),
        (lambda state: described(0, list(made(state))[1].episode_id)(state), "must hold each id once$"),
        (described(5, "IN_PROGRESS"), "^array open_age must be of dtype float64 and shape"),
        (described(7, 3), "^array observation_end must be of dtype int64 and shape"),
        (described(8, 4), "^array action_end must be of dtype int64 and shape"),
        (described(7, 2**62), "^array observation_end must be of dtype int64 and shape"),
        (replaced("rewards", np.nan), "^episodes cannot be: episode .* has reward nan at step 0$"),
        (replaced("open_age", np.inf), "^array open_age must hold finite numbers of at least 0$"),
        (replaced("open_age", -1.0), "^array open_age must hold finite numbers of at least 0$"),
        (replaced("open_age", np.nan), "^array open_age must hold finite numbers of at least 0$"),
        (replaced("finished", 1), "^episodes cannot be: finished episodes must be "),
        (replaced("finished", 2), "^episodes cannot be: finished episodes must be "),
        (replaced("finished", 6), r"^array finished must hold integers in \[0, 5\], got 6$"),
        (replaced("growing", 3), BY_VERSION),
        (replaced("growing", 4), BY_VERSION),
        (replaced("growing", -1), r"^array growing must hold integers in \[0, 5\], got -1$"),
        (replaced("episode_end", 9999), "^array episode_end must not fall$"),
        (replaced("observation_end", 99), "^array observation_end must not fall$"),
        (replaced("observation_end", 3), "^array observations cannot be decoded: plain-1 content "),
        (replaced("actions", 0), "^array actions cannot be decoded: "),
        (
            counter("inserted", 11),
            "^episodes cannot be: counts 11 steps as appended, fewer than the 12 that are stored",
        ),
        (counter("aborted_steps", 2), "^episodes cannot be: counts 12 steps as appended, fewer than the 13 that are"),
        (counter("evicted_transitions", 1), "^episodes cannot be: counts 12 steps as appended, fewer than the 13 that"),
        (replaced("episode_drawn", True), "^episodes cannot be: counts 0 samples, fewer than the 1 episodes drawn$"),
    ],
)
def test_forged_stores_are_refused(change: Any, message: str) -> None:
    state = example().state_dict()
    change(state)
    with pytest.raises(errors.CheckpointError, match=message):
        made(state)


@pytest.mark.parametrize("status", ["COMPLETED", "TRUNCATED", "ABORTED", "IN_PROGRESS"])
@pytest.mark.parametrize("size", [0, 2, 3, 4, 5])
def test_an_episode_has_what_its_status_says(status: Any, size: int) -> None:
    buffer = Buffer()
    live(buffer, "a", 3, None if status == "IN_PROGRESS" else status)
    (episode,) = helpers_test.stored(buffer)
    episode.observations[:] = range(size)
    state = buffer.state_dict()
    state["arrays"]["growing"] = np.zeros(int(status == "IN_PROGRESS" and size > 1), np.int64)
    if size in {"IN_PROGRESS": (3,), "ABORTED": (3, 4)}.get(status, (4,)):
        made(state)
        return
    with pytest.raises(errors.CheckpointError, match=f"is {status} with {size} observations, 3 actions and 3 rewards$"):
        made(state)


def test_no_value_is_left_over() -> None:
    arrays = {"x": np.frombuffer(PLAIN.encode("") * 3, np.uint8), "x_end": np.array([2, 4, 6])}
    assert list(episode_state._decoded(state_lib.StateReader({}, arrays), "x", "x_end", 3, PLAIN)) == ["", "", ""]
