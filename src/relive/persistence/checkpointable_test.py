"""What a state keeps: settings, custom classes, limiters, and no more memory than it takes itself."""

from collections.abc import Callable
import contextlib
import inspect
import pathlib
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.testing import zoo

KINDS, SCHEMA, plain = zoo.KINDS, zoo.SCHEMA, zoo.plain


def ring(**settings: Any) -> relive.RingReplayBuffer:
    buffer = relive.RingReplayBuffer(10, seed=0, **settings)
    for t in range(13):
        buffer.add([float(t)], t, 1.0, [t + 1.0], terminated=t % 5 == 4)
    return buffer


class OwnLimiter(relive.MinSize):
    pass


class OwnSchedule(relive.Schedule):
    def value(self, tick: int) -> float:
        return 0.5


class OwnWindow(relive.TransitionWindow):
    pass


class CountingSampler(zoo.AmongNewest):
    """A custom sampler with a state: how often it was asked."""

    num_asked = 0

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        self.num_asked += 1
        return super()._draw(size, rng)

    def state_dict(self, slots: arrays_lib.Slots) -> dict[str, Any]:
        return {"num_asked": self.num_asked, "arrays": {"newest": np.array(self._newest, np.int64)}}

    def load_state_dict(self, given: Any, slots: arrays_lib.Slots) -> None:
        self.num_asked = given.integer("num_asked")
        self._newest = given.integers("newest", None, 0, self.anchors.capacity - 1).tolist()


class OwnBuffer(relive.RingReplayBuffer):
    """A subclass with the same arguments."""


class WarmBuffer(relive.RingReplayBuffer):
    """A subclass with an argument of its own."""

    def __init__(self, *arguments: Any, temperature: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.temperature = temperature

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "temperature": self.temperature}


class Silent(relive.RingReplayBuffer):
    """A subclass with an argument that it does not keep."""

    def __init__(self, *arguments: Any, temperature: Any = 1.0, **named: Any) -> None:
        super().__init__(*arguments, **named)


CUSTOM: dict[str, zoo.Make] = {
    "limiter": lambda: relive.RingReplayBuffer(10, SCHEMA, limiter=OwnLimiter(3), seed=0),
    "schedule": lambda: relive.PrioritizedReplayBuffer(10, SCHEMA, beta=OwnSchedule(), seed=0),
    "window": lambda: relive.ColumnReplayBuffer(10, SCHEMA, window=OwnWindow(), seed=0),
    "sampler": lambda: relive.RingReplayBuffer(10, SCHEMA, sampler=CountingSampler(), seed=0),
    "buffer": lambda: OwnBuffer(10, SCHEMA, seed=0),
    "buffer with an argument": lambda: WarmBuffer(10, SCHEMA, temperature=0.5, seed=0),
    "buffer that remembers": lambda: Silent(10, SCHEMA, n_step=2, temperature=relive.MinSize(3), seed=0),
}


@pytest.mark.parametrize("make", CUSTOM.values(), ids=CUSTOM.keys())
def test_objects_of_custom_classes_come_back(make: zoo.Make, tmp_path: pathlib.Path) -> None:
    """P92."""
    buffer = zoo.worked(make)
    buffer.save(tmp_path / "saved")
    loaded = type(buffer).load(tmp_path / "saved")
    assert type(loaded) is type(buffer)
    assert vars(loaded).get("temperature", 0.5) == 0.5
    zoo.assert_same(buffer, loaded)


class Deep(Silent):
    """A subclass that returns some settings alone."""

    def settings(self) -> dict[str, Any]:
        return {"temperature": 1.0}


class Fixed(relive.RingReplayBuffer):
    def __init__(self, temperature: float) -> None:
        super().__init__(10)
        self.temperature = temperature

    def settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature}


class Short(Fixed):
    def __init__(self, seed: Any = None) -> None:
        super().__init__(1.0)


class Bits(np.random.PCG64):
    """A custom generator."""


def test_what_could_not_be_loaded_is_not_saved(tmp_path: pathlib.Path, subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        (
            lambda: Silent(10, temperature=lambda: 0.5),
            "settings.. of Silent must return what its constructor takes, got no temperature$",
        ),
        (lambda: Deep(10), "settings.. of Deep must return what its constructor takes, got no capacity$"),
        (lambda: Fixed(0.5), "the constructor of Fixed must take seed to be loaded$"),
        (Short, "the constructor of Short must take temperature to be loaded$"),
        (
            lambda: relive.RingReplayBuffer(10, seed=np.random.Generator(Bits(0))),
            "a generator of the kind Bits cannot be saved",
        ),
    ]
    for make, message in rows:
        with subtests.test(message=message):
            with pytest.raises(errors.CheckpointError, match=f"^{message}"):
                make().save(tmp_path / "saved")
            assert not (tmp_path / "saved").exists()


# States that do not fit.


def changed(state: Any, **changes: Any) -> Any:
    """Return a state with other members of its mappings."""
    return state | {name: state[name] | change for name, change in changes.items()}


def with_image(state: Any, size: int) -> Any:
    """Return a state whose images have that many bytes."""
    state["settings"]["schema"][0][2] = [size]
    return state


REFUSED: dict[str, tuple[zoo.Make, Callable[[], Any], str]] = {
    "another temperature": (
        lambda: WarmBuffer(10, SCHEMA, temperature=2.0),
        lambda: CUSTOM["buffer with an argument"]().state_dict(),
        "settings/temperature must be 2.0, as in this object, got 0.5$",
    ),
    "no count": (
        CUSTOM["sampler"],
        lambda: changed(CUSTOM["sampler"]().state_dict(), sampler={"num_asked": -1}),
        "sampler/num_asked must be an integer in",
    ),
    "max_times_sampled": (
        lambda: relive.RingReplayBuffer(10),
        lambda: relive.RingReplayBuffer(10, max_times_sampled=3).state_dict(),
        "settings/max_times_sampled must be None, as in this object, got 3$",
    ),
    "an array": (
        lambda: relive.RingReplayBuffer(10, n_step=2),
        lambda: changed(ring().state_dict(), settings={"n_step": np.ones(2)}),
        "settings/n_step must be 2, as in this object, got array",
    ),
    "no schema for rows": (ring, lambda: relive.RingReplayBuffer(10, seed=0).state_dict(), "settings/schema must be "),
    "a schema and a damaged array": (
        lambda: relive.RingReplayBuffer(10, seed=5),
        lambda: changed(ring().state_dict(), arrays={"barred": np.zeros(3, bool)}),
        "array barred must be",
    ),
    "a schema too large for memory": (
        lambda: relive.RingReplayBuffer(10, seed=5),
        lambda: with_image(relive.RingReplayBuffer(10, SCHEMA, seed=0).state_dict(), 2**60),
        "",
    ),
    # It could turn out to be damaged when half of it is already read.
    "a column that is no array": (
        ring,
        lambda: changed(ring().state_dict(), arrays={"rows/reward": ring()._full_state()["arrays"]["rows/reward"]}),
        "array rows/reward must be an array, got ",
    ),
}


def test_a_state_that_does_not_fit_changes_nothing(subtests: pytest.Subtests) -> None:
    for make, state, message in REFUSED.values():
        with subtests.test(message=message):
            buffer = make()
            before = plain(buffer.state_dict())
            with pytest.raises(errors.CheckpointError, match=f"^{message}"):
                buffer.load_state_dict(state())
            assert plain(buffer.state_dict()) == before


def test_no_buffer_is_made_of_wrong_settings(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"schema": None}, {}, "schema must be there where a row was written$"),
        ({"streams": 2**21, "capacity": 2**22}, {}, ".*streams must be at most 524288, got 2097152$"),
        ({}, {"n_step": 0}, "a RingReplayBuffer cannot be made of its settings: n_step"),
        ({"schema": [["observation", "<f8", [2**60]], ["action", "<i8", []], ["reward", "<f8", []]]}, {}, ""),
    ]
    for settings, overrides, message in rows:
        with subtests.test(message=message), pytest.raises(errors.CheckpointError, match=f"^{message}"):
            relive.RingReplayBuffer.from_state(changed(ring().state_dict(), settings=settings), **overrides)


def test_what_no_memory_holds_beside_the_rows_is_refused() -> None:
    """An open episode without rows has room for its final observation, and brings nothing."""
    buffer = relive.RingReplayBuffer(1, SCHEMA, streams=1, seed=0)
    zoo.work(buffer, random.Random(1), 3)
    state = buffer.state_dict()
    arrays = state["arrays"] = {name: array[:0] for name, array in state["arrays"].items()}
    state.update(next_key=1, num_evicted=1)
    state["counters"].update(inserted=1, spliced_episodes=0)
    arrays.update(
        episode_stream=np.array([0]), episode_length=np.array([1]), episode_first_key=np.array([0]),
        episode_end=np.array([0], np.uint8), episode_has_tail=np.array([False]),
    )  # fmt: skip
    assert len(relive.RingReplayBuffer.from_state(state)) == 0
    for exponent in range(30, 47):
        for name in ("rows/observation/image", "final/observation/image"):
            arrays[name] = np.zeros((0, 2**exponent), np.uint8)
        # Too much for some machines, and none of it used.
        with contextlib.suppress(errors.CheckpointError):
            relive.RingReplayBuffer.from_state(with_image(state, 2**exponent))


def test_a_state_that_finds_no_memory_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(*arguments: object, **options: object) -> None:
        raise MemoryError("unable to allocate")

    state = ring().state_dict()
    monkeypatch.setattr(relive.RingReplayBuffer, "_load_state_dict", restore)
    message = "^a RingReplayBuffer of that state does not fit in memory: unable to allocate$"
    with pytest.raises(errors.CheckpointError, match=message):
        relive.RingReplayBuffer.from_state(state)


def test_settings_can_be_given_instead_of_those_saved() -> None:
    state = ring().state_dict()
    loaded = relive.RingReplayBuffer.from_state(state, n_step=3)
    assert loaded.read([5]).steps.tolist() == ring(n_step=3).read([5]).steps.tolist() == [3]
    warm = CUSTOM["buffer with an argument"]().state_dict()
    assert WarmBuffer.from_state(warm, temperature=2.0).temperature == 2.0
    limited = relive.RingReplayBuffer(10, max_times_sampled=2, limiter=relive.MinSize(5)).state_dict()
    limiter = relive.RingReplayBuffer.from_state(limited, limiter=None).limiter
    assert isinstance(limiter, relive.MinSize)
    assert limiter.min_size == 1
    own = relive.ColumnStorage(ring()._store.schema, 10)
    loaded = relive.RingReplayBuffer.from_state(state, storage=own)
    assert loaded._store.storage is own
    zoo.assert_same(ring(), loaded)
    empty = relive.RingReplayBuffer(10, seed=0).state_dict()
    fresh = relive.RingReplayBuffer.from_state(empty, storage=relive.ColumnStorage(SCHEMA, 10))
    assert (len(fresh), fresh.schema) == (0, SCHEMA)


def test_a_class_that_is_not_defined_has_to_be_given() -> None:
    state = changed(ring().state_dict(), settings={"sampler": {"kind": "Gone"}})
    message = "^sampler was a 'Gone', a class that is not defined here: import its module, or give sampler= to load$"
    with pytest.raises(errors.CheckpointError, match=message):
        relive.RingReplayBuffer.from_state(state)
    sampler = zoo.AmongNewest()
    assert relive.RingReplayBuffer.from_state(state, sampler=sampler).sampler is sampler


def test_a_codec_is_refused_for_buffers_without_objects(tmp_path: pathlib.Path) -> None:
    state = ring().state_dict(codec=None)
    calls: list[Callable[..., Any]] = [
        ring().state_dict,
        lambda codec: ring().load_state_dict(state, codec=codec),
        lambda codec: relive.RingReplayBuffer.from_state(state, codec=codec),
        lambda codec: relive.RingReplayBuffer.load(tmp_path / "missing", codec=codec),
    ]
    for call in calls:
        with pytest.raises(relive.ArgumentError, match="^codec must be left out for a RingReplayBuffer, which"):
            call(codec=relive.PlainCodec())


def test_a_subclass_that_fixes_an_argument_is_loaded_with_it() -> None:
    class Fixing(relive.RingReplayBuffer):
        def __init__(self, capacity: int, schema: Any = None, seed: Any = None) -> None:
            super().__init__(capacity, schema, n_step=3, seed=seed)

    buffer = zoo.worked(lambda: Fixing(10, SCHEMA, seed=0))
    assert buffer.settings() == {"capacity": 10, "schema": SCHEMA}
    zoo.assert_same(buffer, Fixing.from_state(buffer.state_dict()))


def test_attributes_of_a_subclass_are_no_settings() -> None:
    class Annealed(relive.RingReplayBuffer):
        def __init__(self, *arguments: Any, gamma: float = 0.9, share: float = 0.5, **named: Any) -> None:
            super().__init__(*arguments, gamma=gamma, **named)
            self.gamma, self.share, self.n_step = 0.5, 0.25, 7

    settings = Annealed(10, n_step=3).state_dict()["settings"]
    assert (settings["gamma"], settings["share"], settings["n_step"]) == (0.9, 0.5, 3)


def test_what_may_change_must_be_taken_by_a_subclass() -> None:
    class Half(relive.PrioritizedReplayBuffer):
        def __init__(self, capacity: int, schema: Any = None, seed: Any = None) -> None:
            super().__init__(capacity, schema, alpha=0.5, seed=seed)

    with pytest.raises(errors.CheckpointError, match="^the constructor of Half must take alpha to be loaded$"):
        Half(10).state_dict()


def test_a_buffer_without_a_schema_takes_that_of_the_state() -> None:
    other = relive.RingReplayBuffer(10, seed=5)
    other.load_state_dict(ring().state_dict())
    zoo.assert_same(ring(), other)


def test_an_interval_need_not_begin_with_the_oldest_row() -> None:
    """Anchors made ineligible and eligible again come after the others."""
    for barred, freed in (([3, 4, 5, 6], [3, 4]), ([3], [3]), ([3, 4], [3, 4])):
        buffer = ring()
        for keys, is_eligible in ((barred, False), (freed, True)):
            for key in keys:
                buffer.set_eligible([key], is_eligible)
        loaded = relive.RingReplayBuffer.from_state(buffer.state_dict())
        for each in (buffer, loaded):
            each.set_eligible([8], False)
        zoo.assert_same(buffer, loaded)


def test_batches_drawn_ahead_are_what_they_were() -> None:
    buffer = ring()
    state, expected = buffer.state_dict(), plain(ring().sample(4))
    batches = buffer.batches(4, prefetch=3)
    first = next(batches)
    buffer.load_state_dict(state)
    assert plain(first) == expected
    zoo.assert_same(ring(), buffer)
    batches.close()


class TestMemory:
    """A state cannot make the loader allocate more memory than the state itself takes."""

    @pytest.mark.parametrize("name", ["ring", "prioritized of 3 streams, n_step", "sequences of 3 streams, padded"])
    @pytest.mark.parametrize(
        "settings",
        [{"capacity": 10**8}, {"capacity": 10**15}, {"capacity": 2**62}, {"streams": 2**19, "capacity": 10**8}],
    )
    def test_a_capacity_is_only_a_number(self, name: str, settings: dict[str, int]) -> None:
        state = zoo.worked(KINDS[name].make, 1).state_dict()
        state["settings"].update(settings)
        used = memory_after(lambda: relive.__dict__[state["class"]].from_state(state))
        assert used < 128 << 20

    def test_going_back_from_many_rows_takes_memory_for_them_alone(self) -> None:
        """A stack as long as the ring, of rows that are linked."""
        buffer = relive.RingReplayBuffer(30_000, SCHEMA, frame_stack=2, streams=2, seed=0)
        length = 15_000
        observations = {"image": np.zeros((length + 1, 2, 2), np.uint8), "speed": np.zeros(length + 1, ">f2")}
        extras = {
            "big": np.zeros(length, int),
            "flag": np.zeros(length, bool),
            "pose": np.zeros(length, [("x", "<f8")]),
        }
        for stream in range(2):
            actions, rewards = np.zeros((length, 2), np.float32), np.zeros(length, np.float32)
            buffer.add_episode(observations, actions, rewards, terminated=True, stream=stream, **extras)
        state = buffer.state_dict()
        state["settings"]["frame_stack"] = 2**40
        assert memory_after(lambda: relive.RingReplayBuffer.from_state(state)) < 64 << 20


def memory_after(call: Callable[[], object]) -> int:
    """How many bytes more of memory were in use at the most, whether or not a CheckpointError came of it.

    The least of three times: what else happens in this process comes on top.
    """
    status = pathlib.Path("/proc/self/status")
    clear = pathlib.Path("/proc/self/clear_refs")
    if not (status.exists() and clear.exists()):
        pytest.skip("the peak of memory is read from Linux")

    def read(name: str) -> int:
        (line,) = [line for line in status.read_text().splitlines() if line.startswith(f"{name}:")]
        return int(line.split()[1]) << 10

    taken = []
    for _ in range(3):
        clear.write_text("5")
        before = read("VmRSS")
        with contextlib.suppress(errors.CheckpointError):
            call()
        taken.append(read("VmHWM") - before)
    return min(taken)


def test_settings_are_all_arguments_of_the_constructor(subtests: pytest.Subtests) -> None:
    """But for the storage, the generator and how memory is allocated."""
    for name in zoo.STORED:
        with subtests.test(name=name):
            buffer = KINDS[name].make()
            taken = inspect.signature(type(buffer)).parameters.keys() - {"storage", "seed", "allocate"}
            assert buffer.state_dict()["settings"].keys() >= taken - {"agents", "schemas"}


def test_a_repr_shows_what_differs_from_the_defaults(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        (lambda: relive.RingReplayBuffer(9, n_step=3, gamma=0.9), ", n_step=3, gamma=0.9>"),
        (lambda: relive.RingReplayBuffer(9, n_step=1, gamma=0.99, limiter=relive.MinSize(1)), " streams=1>"),
        (
            lambda: relive.RingReplayBuffer(9, frame_stack=4, limiter=relive.MinSize(5)),
            "frame_stack=4, limiter=MinSize(5)>",
        ),
        (
            lambda: relive.RingReplayBuffer(9, sampler=relive.PrioritizedSampler(alpha=1)),
            "=<PrioritizedSampler, alpha=1.0>>",
        ),
        (lambda: relive.PrioritizedReplayBuffer(9, alpha=0.7, beta=0.5), "streams=1, alpha=0.7, beta=0.5>"),
        (lambda: relive.SequenceReplayBuffer(9, length=3, prioritized=True), "streams=1, length=3, prioritized=True>"),
        (lambda: relive.JointSequenceReplayBuffer(9, agents=["a"], length=2), "streams=1, length=2>"),
        (lambda: relive.EpisodeReplayBuffer(), "max_transitions=None, max_episodes=None>"),
        (lambda: relive.EpisodeReplayBuffer(redeliver=True), "max_episodes=None, redeliver=True>"),
        (lambda: relive.TokenReplayBuffer(9, pad_token_id=3), "of 9 tokens, pad_token_id=3>"),
    ]
    for make, shown in rows:
        with subtests.test(shown=shown):
            assert repr(make()).endswith(shown)


def test_a_repr_shows_the_settings_of_subclasses_on_one_line() -> None:
    class Text:
        def __repr__(self) -> str:
            return "two\nlines"

    class Noted(relive.RingReplayBuffer):
        def __init__(self, capacity: int, *, note: object = None, **settings: Any) -> None:
            super().__init__(capacity, **settings)
            self.note = note

        def settings(self) -> dict[str, Any]:
            return {**super().settings(), "note": self.note}

    assert repr(Noted(9)) == "<Noted of 0 steps, capacity=9, streams=1>"
    assert repr(Noted(9, n_step=2, note=Text())).endswith("streams=1, n_step=2, note=two lines>")
