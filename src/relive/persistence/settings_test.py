import enum
import fractions
import json
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.persistence import settings
from relive.persistence import state

SCHEMA = relive.Schema(
    {"image": relive.Field((4, 4), ">u2"), "hand": {"angle": relive.Field((), "float16")}},
    relive.Field((), np.dtype([("x", "<f4"), ("y", "|u1", (3,))], align=True)),
    reward=relive.Field((), "float32"),
    extras={"when": relive.Field((), "M8[ms]"), "name": relive.Field((), "U3")},
)


class Padding(enum.StrEnum):
    FIRST = "first"


class Number(enum.IntEnum):
    ONE = 1


class SettingsLimiter(relive.MinSize):
    pass


class SettingsSampler(relive.UniformSampler):
    def __init__(self, temperature: float) -> None:
        self.temperature = temperature


def back(value: Any, name: str = "a") -> Any:
    """Return a setting after a round trip through JSON."""
    written = json.loads(json.dumps({name: settings.encoded(value)}, allow_nan=False))
    return settings.load(state.StateReader({"settings": written}, {}).part("settings"), {name: None})[name]


@pytest.mark.parametrize("value", [None, True, False, 0, 3, -0.5, "zeros", ""])
def test_plain_values_are_themselves(value: object) -> None:
    assert settings.encoded(value) is value
    assert back(value) == value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int32(3), 3),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.True_, True),
        (np.array(True), True),
        (fractions.Fraction(1, 4), 0.25),
        (Padding.FIRST, "first"),
        (Number.ONE, 1),
    ],
)
def test_numbers_and_texts_of_other_classes_become_plain(value: Any, plain: object) -> None:
    assert settings.encoded(value) == plain
    assert type(settings.encoded(value)) is type(plain)


@pytest.mark.parametrize(
    "value",
    [
        relive.MinSize(100),
        relive.SampleToInsertRatio(4.0, 10, 64.0),
        relive.LinearSchedule(0.4, 1.0, 100),
        relive.UniformSampler(),
        relive.PrioritizedSampler(beta=relive.LinearSchedule(0.4, 1.0, 9), stratified=False),
        relive.TransitionWindow(3, 0.9, 4, "first"),
        relive.SequenceWindow(5, 1, 2, True),
        relive.EpisodeWindow(),
    ],
)
def test_objects_come_back_as_such(value: Any) -> None:
    other = back(value)
    assert type(other) is type(value)
    assert settings.encoded(other) == settings.encoded(value)


def test_a_schema_comes_back_in_its_order() -> None:
    schema = back(SCHEMA, "schema")
    assert schema == SCHEMA
    assert list(schema.fields) == list(SCHEMA.fields)


def test_an_object_of_a_class_of_ones_own_comes_back_as_such() -> None:
    assert settings.encoded(SettingsLimiter(3)) == {"kind": "SettingsLimiter", "n": 3}
    limiter = back(SettingsLimiter(3))
    assert (type(limiter), limiter.min_size) == (SettingsLimiter, 3)
    sampler = back(SettingsSampler(0.5))
    assert (type(sampler), sampler.temperature) == (SettingsSampler, 0.5)


def test_an_object_that_does_not_say_its_settings_is_not_saved() -> None:
    class Hidden(relive.UniformSampler):
        def __init__(self, temperature: float) -> None:
            self._temperature = temperature

    class Named(Hidden):
        def settings(self) -> dict[str, Any]:
            return {"temperature": self._temperature, "kind": 3}

    rule = "^sampler cannot be saved: settings.. of Hidden must return what its constructor takes, got no temperature$"
    with pytest.raises(errors.CheckpointError, match=rule):
        settings.encoded(Hidden(1.0), "sampler")
    with pytest.raises(errors.CheckpointError, match="^sampler cannot be saved: .*, by other names than 'kind', got"):
        settings.encoded(Named(1.0), "sampler")
    with pytest.raises(errors.CheckpointError, match="^a setting cannot be saved: it must be a number, .*, got .1.$"):
        settings.encoded({1})


class Nested(relive.Schedule):
    def __init__(self, inner: relive.Schedule) -> None:
        self.inner = inner

    def value(self, tick: int) -> float:
        return self.inner.value(tick)


def test_objects_within_objects_come_back_or_are_not_saved() -> None:
    schedule: relive.Schedule = relive.LinearSchedule(0.1, 0.5, 9)
    for _ in range(6):
        schedule = Nested(schedule)
    sampler = relive.PrioritizedSampler(beta=schedule)
    assert settings.encoded(back(sampler)) == settings.encoded(sampler)
    with pytest.raises(errors.CheckpointError, match="cannot be saved: it must be within at most 8 objects$"):
        settings.encoded(relive.PrioritizedSampler(beta=Nested(schedule)))


class PassingSampler(SettingsSampler):
    def __init__(self, extra: int = 3, **named: Any) -> None:
        super().__init__(**named)
        self.extra = extra


def test_what_a_constructor_passes_on_comes_back_too() -> None:
    sampler = back(PassingSampler(extra=7, temperature=0.25))
    assert (sampler.extra, sampler.temperature) == (7, 0.25)


def test_an_array_of_several_numbers_is_no_setting() -> None:
    with pytest.raises(errors.CheckpointError, match="^temperature cannot be saved: it must be a number"):
        settings.encoded(np.ones(2), "temperature")


def limiters_of_one_name() -> list[relive.RateLimiter]:
    """Return two limiters of different classes of one name."""

    def first() -> relive.RateLimiter:
        class Twin(relive.MinSize):
            pass

        return Twin(3)

    def second() -> relive.RateLimiter:
        class Twin(relive.MinSize):
            pass

        return Twin(3)

    return [first(), second()]


def test_two_classes_of_one_name_are_refused() -> None:
    limiters = limiters_of_one_name()
    rule = "^the name of a class that is saved must be its own, got Twin of .*first.* and .*second.*: rename"
    for limiter in limiters:
        with pytest.raises(errors.CheckpointError, match=rule):
            settings.encoded(limiter)
    with pytest.raises(errors.CheckpointError, match=rule):
        settings.load(state.StateReader({"a": {"kind": "Twin", "n": 3}}, {}), {"a": None})


def test_a_class_defined_again_replaces_the_older() -> None:
    def limiter() -> relive.RateLimiter:
        class Redefined(relive.MinSize):
            pass

        return Redefined(3)

    older, newer = limiter(), limiter()
    assert type(back(newer)) is type(newer)
    with pytest.raises(
        errors.CheckpointError, match="^a setting cannot be saved: Redefined must be the newest class of that"
    ):
        back(older)


def test_a_class_that_is_not_there_has_to_be_defined_or_given() -> None:
    given = state.StateReader({"a": {"kind": "Gone"}}, {})
    message = "^a was a 'Gone', a class that is not defined here: import its module, or give a= to load$"
    with pytest.raises(errors.CheckpointError, match=message):
        settings.load(given, {"a": None})
    own = SettingsLimiter(5)
    assert settings.load(given, {"a": own})["a"] is own


def test_a_buffer_is_no_part_of_a_buffer() -> None:
    with pytest.raises(errors.CheckpointError, match="^a was a 'RingReplayBuffer', a class that is not defined here"):
        settings.load(state.StateReader({"a": {"kind": "RingReplayBuffer", "capacity": 10**15}}, {}), {"a": None})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], r"^settings/a must be a plain value or a mapping with a kind, got \[1\]$"),
        ({}, "^settings/a/kind is missing$"),
        ({"kind": 3}, "^settings/a/kind must be a string, got 3$"),
        ({"kind": "os.system"}, "^a was a 'os.system', a class that is not defined here"),
        ({"kind": "MinSize"}, "^settings/a/n is missing$"),
        ({"kind": "MinSize", "n": 0}, "^a cannot be made: n must be at least 1, got 0$"),
        ({"kind": "MinSize", "n": {"kind": "MinSize", "n": 1}}, "^a cannot be made: n must be an integer"),
        ({"kind": "MinSize", "n": {"kind": "MinSize", "n": {}}}, "^settings/a/n/n/kind is missing$"),
        ({"kind": "MinSize", "n": 1, "m": 2}, "^a cannot be made: .*unexpected keyword argument 'm'$"),
    ],
)
def test_what_no_setting_is_is_refused(value: object, message: str) -> None:
    with pytest.raises(errors.CheckpointError, match=message):
        settings.load(state.StateReader({"settings": {"a": value}}, {}).part("settings"), {"a": None})


def test_settings_within_settings_do_not_go_deep() -> None:
    value: dict[str, Any] = {"kind": "LinearSchedule", "start": 0.0, "end": 1.0, "steps": 1}
    for _ in range(3000):
        value = {"kind": "LinearSchedule", "start": value, "end": 1.0, "steps": 1}
    with pytest.raises(errors.CheckpointError, match="^settings/a(/start){8} must be a plain value"):
        settings.load(state.StateReader({"settings": {"a": value}}, {}).part("settings"), {"a": None})


def test_a_twin_has_the_same_settings_and_no_buffer() -> None:
    sampler = relive.PrioritizedSampler(alpha=0.3)
    twin = settings.twin(sampler)
    assert twin is not None
    assert twin is not sampler
    assert settings.encoded(twin) == settings.encoded(sampler)
    assert type(settings.twin(SettingsSampler(0.5))) is SettingsSampler


@pytest.mark.parametrize(
    ("own", "other", "is_same"),
    [
        (None, None, True),
        (None, 0, False),
        (1, 1, True),
        (1.0, 1, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        ("x", "x", True),
        ([1, ["x"]], [1, ["x"]], True),
        ([1, ["x"]], [1, ["x", 2]], False),
        ([1], (1,), False),
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, 1, False),
        (1, np.ones(2), False),
        ([1, 2], np.array([1, 2]), False),
    ],
)
def test_settings_are_compared_value_by_value(own: Any, other: Any, is_same: bool) -> None:
    assert settings.are_same(own, other) is is_same
