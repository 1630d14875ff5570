import copy
import enum
import fractions
import inspect
import json
import pickle
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


class PassingSampler(SettingsSampler):
    def __init__(self, extra: int = 3, **named: Any) -> None:
        super().__init__(**named)
        self.extra = extra


def back(value: Any, name: str = "a") -> Any:
    """Return a setting after a round trip through JSON."""
    written = json.loads(json.dumps({name: settings.encoded(value)}, allow_nan=False))
    return settings.load(state.StateReader({"settings": written}, {}).part("settings"), name)


def test_numbers_and_texts_of_other_classes_become_plain(subtests: pytest.Subtests) -> None:
    for value, plain in [
        *((value, value) for value in (None, True, False, 0, 3, -0.5, "zeros", "")),
        (np.int32(3), 3), (np.float32(0.5), 0.5), (np.longdouble(0.5), 0.5), (np.True_, True), (np.array(True), True),
        (fractions.Fraction(1, 4), 0.25), (Padding.FIRST, "first"), (Number.ONE, 1),
    ]:  # fmt: skip
        with subtests.test(value=value):
            for found in (settings.encoded(value), back(value)):
                assert found == plain
                assert type(found) is type(plain)


def test_objects_come_back_as_such(subtests: pytest.Subtests) -> None:
    for value in [
        relive.MinSize(100),
        relive.SampleToInsertRatio(4.0, 10, 64.0),
        relive.LinearSchedule(0.4, 1.0, 100),
        relive.UniformSampler(),
        relive.PrioritizedSampler(beta=relive.LinearSchedule(0.4, 1.0, 9), stratified=False),
        relive.TransitionWindow(3, 0.9, 4, "first"), relive.SequenceWindow(5, 1, 2, True),
        SettingsLimiter(3), SettingsSampler(0.5), PassingSampler(extra=7, temperature=0.25),
    ]:  # fmt: skip
        with subtests.test(value=value):
            other = back(value)
            assert type(other) is type(value)
            assert settings.encoded(other) == settings.encoded(value)


def test_a_schema_comes_back_in_its_order() -> None:
    schema = back(SCHEMA, "schema")
    assert schema == SCHEMA
    assert list(schema.fields) == list(SCHEMA.fields)


class Hidden(relive.UniformSampler):
    def __init__(self, temperature: Any) -> None:
        self._hidden = temperature


class Named(Hidden):
    def settings(self) -> dict[str, Any]:
        return {"temperature": self._hidden, "kind": 3}


class Few(Hidden):
    def settings(self) -> dict[str, Any]:
        return {}


def test_what_does_not_say_its_settings_is_not_saved(subtests: pytest.Subtests) -> None:
    for value, rule in [
        (Hidden([1.0]), "settings.. of Hidden must return what its constructor takes, got no temperature$"),
        (Few(1.0), "settings.. of Few must return what its constructor takes, got no temperature$"),
        (Named(1.0), "settings.. of Named must .*, by other names than 'kind', got"),
        ({1}, "it must be a number, .*, got .1.$"),
        (np.ones(2), "it must be a number"),
    ]:
        with subtests.test(rule=rule):
            with pytest.raises(errors.CheckpointError, match=f"^sampler cannot be saved: {rule}"):
                settings.encoded(value, "sampler")
            with pytest.raises(errors.CheckpointError, match=f"^a setting cannot be saved: {rule}"):
                settings.encoded(value)


class Passing(Hidden):
    """Passes on what it is given, and more."""

    def __init__(self, *arguments: Any, share: Any = 0.5, **named: Any) -> None:
        named.setdefault("temperature", 3.0)
        super().__init__(*arguments, **named)


class Taking(Hidden):
    """Takes an argument of the same name as the class above it."""

    def __init__(self, temperature: Any) -> None:
        super().__init__(2 * temperature)


class Constant(relive.Schedule):
    """Has a method of the same name as its argument."""

    def __init__(self, value: float) -> None:
        self._value = value

    def value(self, tick: int) -> float:
        return self._value


def test_settings_are_remembered_from_the_constructor() -> None:
    rows: list[Any] = [
        (Hidden(np.float32(0.5)), {"temperature": 0.5}),
        (Hidden(relive.MinSize(2)), {"temperature": {"kind": "MinSize", "n": 2}}),
        (Passing(), {"temperature": 3.0, "share": 0.5}),
        (Passing(temperature=1.0, share="x"), {"temperature": 1.0, "share": "x"}), (Taking(1.0), {"temperature": 1.0}),
        (Constant(0.25), {"value": 0.25}),
    ]  # fmt: skip
    for made, remembered in rows:
        for each in (made, back(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert settings.encoded(each) == {"kind": type(made).__name__, **remembered}


def test_an_argument_taken_by_a_subclass_is_its_own() -> None:
    """Even if it cannot be remembered, and what is passed on under that name could be."""
    with pytest.raises(errors.CheckpointError, match="settings.. of Taking must .*, got no temperature$"):
        settings.encoded(Taking(np.ones(3)))


class Slotted(relive.UniformSampler):
    __slots__ = ("temperature",)

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature


def test_an_attribute_counts_before_the_argument() -> None:
    for kind in (SettingsSampler, Slotted):
        sampler: Any = kind(0.5)
        sampler.temperature = 0.25
        assert sampler.settings() == {"temperature": 0.25}


def test_a_second_call_of_the_constructor_counts() -> None:
    limiter = relive.MinSize(3)
    limiter.__init__(4)  # type: ignore[misc]
    assert limiter.settings() == {"n": 4}
    with pytest.raises(TypeError, match="unexpected keyword argument 'm'$"):
        limiter.__init__(m=5)  # type: ignore[misc]


def test_arguments_that_a_part_does_not_take_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'$"):
        Passing(colour=1)
    with pytest.raises(TypeError, match=r"^Hidden takes .* takes 2 positional arguments but 3 were given$"):
        Hidden(1, 2)  # type: ignore[call-arg]


def test_a_constructor_keeps_its_signature() -> None:
    assert list(inspect.signature(relive.MinSize).parameters) == ["n"]
    assert inspect.signature(Taking) == inspect.signature(Hidden)


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
        settings.load(state.StateReader({"a": {"kind": "Twin", "n": 3}}, {}), "a")


def test_a_class_defined_again_replaces_the_older() -> None:
    def limiter() -> relive.RateLimiter:
        class Redefined(relive.MinSize):
            pass

        return Redefined(3)

    older, newer = limiter(), limiter()
    assert type(back(newer)) is type(newer)
    message = "^a setting cannot be saved: Redefined must be the newest class of that"
    with pytest.raises(errors.CheckpointError, match=message):
        back(older)


def deep(levels: int) -> Any:
    value: Any = 0.5
    for _ in range(levels):
        value = {"kind": "LinearSchedule", "start": value, "end": 1.0, "steps": 1}
    return value


def test_what_no_setting_is_is_refused(subtests: pytest.Subtests) -> None:
    for value, message in [
        ([1], r"^settings/a must be a plain value or a mapping with a kind, got \[1\]$"),
        ({}, "^settings/a/kind is missing$"), ({"kind": 3}, "^settings/a/kind must be a string, got 3$"),
        (
            {"kind": "os.system"},
            "^a was a 'os.system', a class that is not defined here: import its module, or give a=",
        ),
        (
            {"kind": "RingReplayBuffer", "capacity": 10**15},
            "^a was a 'RingReplayBuffer', a class that is not defined h",
        ),
        ({"kind": "MinSize"}, "^settings/a/n is missing$"),
        ({"kind": "MinSize", "n": 0}, "^a cannot be made: n must be at least 1, got 0$"),
        ({"kind": "MinSize", "n": {"kind": "MinSize", "n": 1}}, "^a cannot be made: n must be an integer"),
        ({"kind": "MinSize", "n": {"kind": "MinSize", "n": {}}}, "^settings/a/n/n/kind is missing$"),
        ({"kind": "MinSize", "n": 1, "m": 2}, "^a cannot be made: .*unexpected keyword argument 'm'$"),
        (deep(3000), "^settings/a(/start){8} must be a plain value"),
    ]:  # fmt: skip
        with subtests.test(message=message), pytest.raises(errors.CheckpointError, match=message):
            settings.load(state.StateReader({"settings": {"a": value}}, {}).part("settings"), "a")


def test_settings_are_compared_value_by_value(subtests: pytest.Subtests) -> None:
    for own, other, is_same in [
        *((own, own, True) for own in (None, 1, True, "x", [1, ["x"]], {"a": [1]})), (1.0, 1, True), (None, 0, False),
        (1, True, False), (True, 1, False), ([1, ["x"]], [1, ["x", 2]], False), ([1], (1,), False),
        ({"a": 1}, {"a": 2}, False), ({"a": 1}, {"b": 1}, False), ({"a": 1}, 1, False), (1, np.ones(2), False),
        ([1, 2], np.array([1, 2]), False),
    ]:  # fmt: skip
        with subtests.test(own=own):
            assert settings.are_same(own, other) is is_same
