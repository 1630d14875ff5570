from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

from relive import errors
from relive.agents import groups

EVENTS = st.lists(
    st.tuples(st.just("append"), st.none() | st.integers(0, 4))
    | st.tuples(st.just("pop"), st.integers(0, 9))
    | st.tuples(st.just("take"), st.tuples(st.integers(1, 3), st.none() | st.integers(0, 5))),
    max_size=60,
)


def is_fresh(version: int | None, least: int | None) -> bool:
    return least is None or (version is not None and version >= least)


@hypothesis.given(EVENTS)
def test_a_line_is_a_list_that_is_searched(events: list[tuple[str, Any]]) -> None:
    line: groups.PendingEpisodes[int] = groups.PendingEpisodes()
    naive: list[tuple[str, int, int | None]] = []
    for number, (kind, value) in enumerate(events):
        if kind == "append":
            line.append(f"k{number}", number, value)
            naive.append((f"k{number}", number, value))
        elif kind == "pop" and naive:
            key, item, _ = naive.pop(value % len(naive))
            assert key in line
            assert line.pop(key) == item
            assert key not in line
        elif kind == "take":
            count, least = value
            fresh = [row for row in naive if is_fresh(row[2], least)]
            assert line.num_fresh(least) == len(fresh)
            if len(fresh) >= count:
                last = naive.index(fresh[count - 1])
                before = naive[: last + 1]
                expected = [row[0] for row in before if is_fresh(row[2], least)]
                stale = [row[0] for row in before if not is_fresh(row[2], least)]
                assert line.find(count, least) == (expected, stale)
                assert [line[key] for key in expected] == [row[1] for row in fresh[:count]]
                for key in (*expected, *stale):
                    line.pop(key)
                del naive[: last + 1]
        assert (len(line), list(line), list(line.keys())) == (
            len(naive),
            [row[1] for row in naive],
            [row[0] for row in naive],
        )
        line.check()


def test_a_miscount_is_found() -> None:
    line: groups.PendingEpisodes[int] = groups.PendingEpisodes()
    line.append("a", 1, 3)
    line._versions[3] += 1
    with pytest.raises(errors.CorruptionError, match=r"versions that wait must be \{3: 1\}, found \{3: 2\}"):
        line.check()
