"""How numbers, settings and names are written for people."""

from typing import Any

import pytest

from relive.cli import formatting

NUMBERS = {
    0: "0", -3.0: "-3", 1234567: "1,234,567", 1 / 3: "0.3333", -1.5: "-1.5", 123456.7: "123,457", 999.99: "1000",
    1e-9: "1e-09", 0.00012345678: "0.0001235", 1e20: "1e+20", float("inf"): "inf", None: "—",
}  # fmt: skip
SIZES = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 30: "1.0 GiB", 1 << 40: "1.0 TiB", 1 << 51: "2,048.0 TiB"}


def test_numbers_have_four_digits_and_sizes_a_unit() -> None:
    assert {value: formatting.statistic(value) for value in NUMBERS} == NUMBERS
    assert {nbytes: formatting.size(nbytes) for nbytes in SIZES} == SIZES
    assert [formatting.counted(count, "step") for count in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "True"),
        ({}, "none"),
        ({"stale": 2, "empty": None}, "stale: 2, empty: —"),
        ({f"{number}\r": 0.5 for number in range(8)}, r"'0\r: 0.5, "),
        (dict.fromkeys(range(9), 0.5), "9 of them"),
    ],
)
def test_statistics_are_one_line(value: Any, words: str) -> None:
    """Mappings with many entries are counted."""
    shown = formatting.statistic(value)
    assert shown.startswith(words)
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        ("zeros", "zeros"),
        ([], "[]"),
        ({"kind": "own", "class": "agents.Curriculum"}, "an object of agents.Curriculum"),
        ({"kind": "LinearSchedule", "start": 0.4, "end": 1.0}, "LinearSchedule(start=0.4, end=1.0)"),
        ({"kind": 3}, "{'kind': 3}"),
        ([["reward", "<f4", []], ["image", "|u1", [8, 8]]], "reward float32, image uint8 [8, 8]"),
        ([["action", [["x", "<f4"]], []], ["odd", "no dtype", [2]]], "action structured, odd no dtype [2]"),
        ("a\x1b[31mb", "'a\\x1b[31mb'"),
        ("x" * 1000, "x" * 300 + " ..."),
    ],
)
def test_settings_are_one_line_that_a_terminal_shows(value: Any, words: str) -> None:
    assert formatting.setting(value) == words
