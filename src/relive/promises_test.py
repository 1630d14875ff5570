"""The tests that the documentation names are there, and readers find the page that lists them."""

import pathlib
import re

import pytest

SOURCES = pathlib.Path(__file__).parent
ROOT = SOURCES.parents[1]
PAGES = sorted(path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts)

pytestmark = pytest.mark.skipif(not PAGES, reason="the documentation is not here")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_tests_named_by_a_page_exist() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*_test.py"))
    written = set(re.findall(r"def (test_\w+)", tests))
    for page in PAGES:
        assert set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))) <= written, page.name


def test_every_promise_links_modules_that_exist() -> None:
    rows = [line for line in text_of("docs/guarantees.md").splitlines() if re.match(r"\| (?!promise)", line)]
    for row in rows:
        modules = re.findall(r"\[`([\w/]+_test\.py)`\]\(\.\./src/relive/([\w/]+\.py)\)", row)
        assert modules, row
        for name, target in modules:
            assert name == target
            assert (SOURCES / name).is_file(), name
    assert len(rows) > 30


def test_readme_and_the_index_link_the_guarantees() -> None:
    assert "](docs/guarantees.md)" in text_of("README.md")
    index = text_of("docs/index.md")
    assert "](guarantees.md)" in index
    assert "\nguarantees\n" in index.partition("```{toctree}")[2]
