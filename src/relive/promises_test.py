"""The tests that the documentation names are there, readers find the page that lists them, and README is true."""

import pathlib
import re
import tomllib

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


def rows_below(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading of README, without its head."""
    section = text_of("README.md").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_readme_has_at_most_170_lines() -> None:
    assert text_of("README.md").count("\n") <= 170


def test_badges_of_readme_are_what_the_package_declares() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    badges = f"**Python {', '.join(versions)}** | [**{project['license']}**](LICENSE) | **typed** | "
    assert f"\n{badges}" in text_of("README.md")
    assert (SOURCES / "py.typed").is_file()


def test_figures_of_readme_are_those_of_the_benchmarks() -> None:
    rows = rows_below("How fast it is")
    for name, alone, compiled, peer in rows:
        [workload] = re.findall(r"`(.+)`", name)
        table = text_of("docs/benchmarks.md").partition(f"<code>{workload}</code>")[2].partition("</details>")[0]
        medians = dict(re.findall(r"^\| ([\w-]+) \| ([\d.,]+) \|.*\| right \|$", table, re.MULTILINE))
        assert (alone, compiled) == (medians.pop("relive"), medians.pop("relive-numba"))
        fastest = min(medians, key=lambda one: float(medians[one].replace(",", "")))
        is_ahead = float(medians[fastest].replace(",", "")) < float(alone.replace(",", ""))
        stars = "**" if is_ahead else ""
        assert peer == f"{stars}{fastest} {medians[fastest]}{stars}", name
    assert {"add", "extend"} <= set(re.findall(r"\(`(.+?)`\)", text_of("README.md")))


def test_each_comparison_of_readme_has_its_reasons() -> None:
    rows = rows_below("Compared with other libraries")
    assert len(rows) == 10
    page = text_of("docs/comparison.md")
    assert [row[0] for row in rows] == re.findall("^## (.+)$", page, re.MULTILINE)
    for name, ours, *marks in rows[:-1]:  # The last row has years.
        assert re.fullmatch(r"\[(yes|part|no)\]\(.+\)", ours), name
        assert set(marks) <= {"yes", "part", "no", "?"}, name
        reasons = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert {f"- **{mark.capitalize()}**:" for mark in marks} <= set(
            re.findall(r"^- \*\*.+?\*\*:", reasons, re.M)
        ), name


def test_links_of_readme_lead_to_files() -> None:
    targets = re.findall(r"\]\((?!https:|\.github/)([^)#]+)", text_of("README.md"))
    assert [target for target in targets if not (ROOT / target).exists()] == []
    assert len(targets) > 20
