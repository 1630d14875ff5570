r"""Apply each mutant of .ci/mutants.tsv alone, run the tests of its package, and name the mutants that none notices.

    python .ci/mutants.py [PACKAGE | LINE | FIRST-LAST ...]
    python .ci/mutants.py --check

A line of the table holds a file under src/relive, whole lines of its text without the first indentation, and what
replaces them, with tabs between; a line break is written \n. Without arguments all run, else those of some packages or
lines of the table. It fails if a text is not in its file exactly once, which `--check` tells without running anything,
if the tests fail without a mutant, and if a mutant survives. One that takes much longer than the tests is noticed too.
"""

import collections
from collections.abc import Iterator
import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / ".ci" / "mutants.tsv"
PACKAGES = pathlib.Path("src", "relive")
LANE = "not full and not long"
PYTEST = (sys.executable, "-m", "pytest", "-xq", "--tb=no", "-pno:cacheprovider", "-m", LANE)
IGNORED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
DO_NOT_SHRINK = """
hypothesis.settings.register_profile("mutants", hypothesis.settings.default, phases=list(hypothesis.Phase)[:3])
hypothesis.settings.load_profile("mutants")
"""
WORKERS = os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A line of the table."""

    line: int
    file: str
    text: str
    replacement: str

    @property
    def package(self) -> str:
        """The package of the file."""
        return self.file.split("/")[0]

    def __str__(self) -> str:
        return f"{TABLE.name}:{self.line}: {self.file}: {self.text!r} as {self.replacement!r}"

    def count(self, code: str) -> int:
        """Return how often the text is in the code of its file."""
        return len(self._pattern.findall(code))

    def apply(self, code: str) -> str:
        """Return the code with the replacement."""
        return self._pattern.sub(lambda found: found[1] + self.replacement, code)

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"^( *){re.escape(self.text)}$", re.MULTILINE)


def parse(table: str) -> list[Mutant]:
    r"""Return the mutants of the text of a table, whose first line names its columns.

    >>> (mutant,) = parse("file\ttext\treplacement\nagents/x.py\tif a < b:\\n        c()\tif a <= b:\\n        c()\n")
    >>> code = "def f():\n    if a < b:\n        c()\n    if a < b:\n        d()\n"
    >>> mutant.count(code), mutant.count(code.replace("c()", "c(1)")), mutant.count(2 * code)
    (1, 0, 2)
    >>> mutant.apply(code)
    'def f():\n    if a <= b:\n        c()\n    if a < b:\n        d()\n'
    >>> [[each.line for each in chosen([mutant], [words])] for words in ("2", "1-3", "agents", "3", "fleet")]
    [[2], [2], [2], [], []]
    """
    rows = enumerate(table.splitlines()[1:], start=2)
    return [Mutant(line, *(cell.replace("\\n", "\n") for cell in row.split("\t"))) for line, row in rows]


def chosen(mutants: list[Mutant], arguments: list[str]) -> list[Mutant]:
    """Return the mutants that the arguments name, or all if there are none."""
    lines, packages = set[int](), set[str]()
    for each in arguments:
        if found := re.fullmatch(r"(\d+)(?:-(\d+))?", each):
            lines.update(range(int(found[1]), int(found[2] or found[1]) + 1))
        else:
            packages.add(each)
    return [each for each in mutants if not arguments or each.line in lines or each.package in packages]


def misplaced(mutants: list[Mutant]) -> Iterator[str]:
    """Yield what is wrong with the places of the mutants."""
    for mutant in mutants:
        file = ROOT / PACKAGES / mutant.file
        count = mutant.count(file.read_text("utf-8")) if file.exists() else 0
        if count != 1 or mutant.text == mutant.replacement:
            yield f"{mutant}: the text must be there once and change, and is there {count} times"


def copy(tree: pathlib.Path) -> pathlib.Path:
    """Copy the working tree there, with property tests that do not look for the smallest example that fails."""
    shutil.copytree(ROOT, tree, ignore=IGNORED)
    with (tree / "src" / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(DO_NOT_SHRINK)
    return tree


def run_tests(tree: pathlib.Path, paths: list[pathlib.Path], seconds: float) -> str | None:
    """Return the first test that fails, or None if all pass."""
    environ = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    tests = subprocess.Popen(
        [*PYTEST, *map(str, paths)],
        cwd=tree,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = tests.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"the time limit of {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tests.pid, signal.SIGKILL)  # With the processes that the tests started.
        tests.communicate()
    if tests.returncode in (0, 5):  # 5: no test is in this lane.
        return None
    failed = re.search(r"^(?:\w*FAILED\S*|ERROR) (src.*?)(?: - .*)?$", output, re.MULTILINE)
    return failed[1].removeprefix(f"{PACKAGES}/") if failed else f"exit status {tests.returncode}"


def main(arguments: list[str]) -> int:
    """Print who notices each mutant, and return 1 if one is noticed by none."""
    mutants = parse(TABLE.read_text("utf-8"))
    faults = list(misplaced(mutants))
    if faults or arguments == ["--check"]:
        print(*faults, sep="\n", end="\n" * bool(faults))
        return bool(faults)
    mutants = chosen(mutants, arguments)

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(WORKERS) as threads:
        trees: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()
        for number in range(WORKERS):
            trees.put(copy(pathlib.Path(folder, str(number))))
        limits: dict[str, float] = {}

        def test_unmutated(package: str) -> str | None:
            tree, start = trees.get(), time.monotonic()
            failed = run_tests(tree, [PACKAGES / package], 3600)
            limits[package] = 60 + 3 * (time.monotonic() - start)
            trees.put(tree)
            return failed

        def test_mutated(mutant: Mutant) -> str | None:
            tree, module = trees.get(), PACKAGES / mutant.file
            original = (tree / module).read_text("utf-8")
            code = mutant.apply(original)
            compile(code, str(mutant), "exec")  # What is no Python would be noticed by every test.
            (tree / module).write_text(code, "utf-8")
            beside = module.with_name(f"{module.stem}_test.py")
            stages = [[beside]] * (tree / beside).exists() + [[PACKAGES / mutant.package]]
            killers = (run_tests(tree, paths, limits[mutant.package]) for paths in stages)
            killer = next(filter(None, killers), None)
            (tree / module).write_text(original, "utf-8")
            trees.put(tree)
            return killer

        packages = sorted({mutant.package for mutant in mutants})
        for package, failed in zip(packages, threads.map(test_unmutated, packages), strict=True):
            print(f"{package}: {failed or 'all pass'}, limit {limits[package]:.0f} s", flush=True)
            if failed:
                faults.append(f"{package} fails without a mutant: {failed}")
                mutants = [mutant for mutant in mutants if mutant.package != package]
        for mutant, killer in zip(mutants, threads.map(test_mutated, mutants), strict=True):
            print(f"{mutant}: {killer or 'SURVIVES'}", flush=True)
            faults += [f"SURVIVES: {mutant}"] * (killer is None)

    counts = collections.Counter(mutant.package for mutant in mutants)
    print(f"{len(mutants)} mutants: {', '.join(f'{name} {count}' for name, count in sorted(counts.items()))}")
    print(*faults, sep="\n", end="\n" * bool(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
