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
from relive.samplers import prioritized
from relive.samplers import sampler as sampler_lib
from relive.samplers import schedules
from relive.waiting import rate_limiters
from relive.windows import windows

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


class OwnLimiter(rate_limiters.MinSize):
    pass


def back(value: Any, name: str = "a") -> Any:
    """What comes back of a setting by way of JSON."""
    written = json.loads(json.dumps({name: settings.encoded(value)}, allow_nan=False))
    return settings.made(state.Given({"settings": written}, {}).part("settings"), {name: None})[name]


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
        rate_limiters.MinSize(100),
        rate_limiters.SampleToInsertRatio(4.0, 10, 64.0),
        schedules.LinearSchedule(0.4, 1.0, 100),
        sampler_lib.UniformSampler(),
        prioritized.PrioritizedSampler(beta=schedules.LinearSchedule(0.4, 1.0, 9), new_priority="live"),
        windows.TransitionWindow(3, 0.9, 4, "first"),
        windows.SequenceWindow(5, 1, 2, True),
        windows.EpisodeWindow(),
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


def test_what_is_of_a_class_of_its_own_has_to_be_given() -> None:
    encoded = settings.encoded(OwnLimiter(3))
    assert encoded == {"kind": "own", "class": f"{__name__}.OwnLimiter"}
    message = f"^a was an object of a class of its own, {__name__}.OwnLimiter: give a= to load$"
    with pytest.raises(errors.CheckpointError, match=message):
        back(OwnLimiter(3))
    own = OwnLimiter(5)
    given = state.Given({"a": encoded}, {})
    assert settings.made(given, {"a": own})["a"] is own


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], r"^settings/a must be a plain value or a mapping with a kind, got \[1\]$"),
        ({}, "^settings/a/kind is missing$"),
        ({"kind": 3}, "^settings/a/kind must be a string, got 3$"),
        ({"kind": "os.system"}, "^settings/a/kind must be MinSize or .*, got 'os.system'$"),
        ({"kind": "MinSize"}, "^settings/a/n is missing$"),
        ({"kind": "MinSize", "n": 0}, "^a cannot be made: n must be at least 1, got 0$"),
        ({"kind": "MinSize", "n": {"kind": "MinSize", "n": 1}}, "^a cannot be made: n must be an integer"),
        ({"kind": "MinSize", "n": {"kind": "MinSize", "n": {}}}, "^settings/a/n/n must be a plain value"),
        ({"kind": "own", "class": None}, "^settings/a/class must be a string, got None$"),
    ],
)
def test_what_no_setting_is_is_refused(value: object, message: str) -> None:
    with pytest.raises(errors.CheckpointError, match=message):
        settings.made(state.Given({"settings": {"a": value}}, {}).part("settings"), {"a": None})


def test_settings_within_settings_do_not_go_deep() -> None:
    value: dict[str, Any] = {"kind": "LinearSchedule", "start": 0.0, "end": 1.0, "steps": 1}
    for _ in range(3000):
        value = {"kind": "LinearSchedule", "start": value, "end": 1.0, "steps": 1}
    with pytest.raises(errors.CheckpointError, match="^settings/a/start/start must be a plain value"):
        settings.made(state.Given({"settings": {"a": value}}, {}).part("settings"), {"a": None})


ROWS: list[Any] = [["observation", "<f4", [2]], ["action", "<i8", []], ["reward", "<f8", []]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (3, "^schema must be a list of a path, a dtype and a shape for each field, got 3$"),
        ([*ROWS, 3], "^schema must be a list of .*, got 3$"),
        ([*ROWS, ["x", "<f4"]], "^schema must be a list of "),
        ([*ROWS, [3, "<f4", []]], "^schema must be a list of "),
        ([*ROWS, ["extras/x", "<f4", 3]], "^schema must be a list of "),
        ([*ROWS, ROWS[0]], "^schema must be a list of "),
        ([*ROWS, ["extras" + "/x" * 65, "<f4", []]], "^schema must be a list of "),
        ([*ROWS, ["extras/x", "|O", []]], "^schema has a field that cannot be: "),
        ([*ROWS, ["extras/x", "<f4", [-1]]], "^schema has a field that cannot be: shape must have no negative length"),
        ([*ROWS, ["extras/x", "<f4", [None]]], "^schema has a field that cannot be: shape must be an integer"),
        ([*ROWS, ["other", "<f4", []]], "^schema must be a list of .*, of an observation, an action, a reward"),
        ([ROWS[1], ROWS[0], ROWS[2]], "^schema must be a list of .*, of an observation, an action, a reward"),
        (ROWS[:2], "^schema cannot be made: "),
        ([*ROWS[:2], ["reward", "<i8", []]], "^schema cannot be made: reward must be a Field"),
        ([*ROWS, ["extras/x", "<f4", []], ["extras/x/y", "<f4", []]], "^schema cannot be made: "),
        ([*ROWS, ["extras//y", "<f4", []]], "^schema cannot be made: "),
        ([*ROWS, ["extras/done", "<f4", []]], "^schema cannot be made: an extra must not be named 'done'"),
    ],
)
def test_what_no_schema_is_is_refused(rows: object, message: str) -> None:
    with pytest.raises(errors.CheckpointError, match=message):
        settings.schema_of(rows)


def test_a_twin_has_the_same_settings_and_no_buffer() -> None:
    sampler = prioritized.PrioritizedSampler(alpha=0.3)
    twin = settings.twin(sampler)
    assert twin is not None
    assert twin is not sampler
    assert settings.encoded(twin) == settings.encoded(sampler)

    class Own(sampler_lib.UniformSampler):
        pass

    assert settings.twin(Own()) is None


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
