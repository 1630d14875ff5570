"""Each promise in the documentation names a test, and that test is there."""

import pathlib
import re

import pytest

SOURCES = pathlib.Path(__file__).parent
GUIDES = SOURCES.parents[1] / "docs"


@pytest.mark.skipif(not GUIDES.is_dir(), reason="the documentation is not here")
@pytest.mark.parametrize("page", ["security.md"])
def test_tests_named_by_a_page_exist(page: str) -> None:
    written = {
        name
        for path in SOURCES.rglob("*_test.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    named = set(re.findall(r"`(test_\w+)`", (GUIDES / page).read_text(encoding="utf-8")))
    assert len(named) > 5
    assert named <= written
