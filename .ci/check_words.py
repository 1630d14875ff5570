"""Checks style rule 14: docstrings and pages are plain English, without the words below."""

import ast
from collections.abc import Iterator
import pathlib
import re
import sys

# What each is to be replaced with is in the docstring style of the ecosystem: "Return the key of ...".
REFUSED = {
    r"\b[Aa]nswers (the|a|an|whether|what|how|which|exactly)\b": "return",
    r"\b[Hh]ears (that|of|which|what|how|whether)\b": "record, be told",
    r"^(Answers|Gives|Hears|Says)\b": "Return, Yield, Record, Set",
    r"\b[Ww]hoever\b": "who, a reader, the caller",
    r"\b[Nn]obody minds\b": "it does not matter",
    r"\bof strangers\b": "untrusted",
    r"\boutlives the process\b": "persistence",
    r"\b[Aa]gents that talk\b": "LLM agents",
    r"\b[Ss]hells that wait\b": "async and thread-safe wrappers",
    r"\bby a rule of your own\b": "custom samplers",
    r"\bof one's own\b": "custom, a user's",
    r"\boutlives? (its|your|a) process\b": "persistence, survives a restart",
}

# Refused in docstrings outside of tests.
REFUSED_IN_CODE = {
    r"\bof your own\b": "custom",
    r"\b([Ss]omebody|[Aa]nybody|[Nn]obody|[Ww]hosoever|[Ww]hom)\b": "a caller, a user, no process",
    r"\bsays? of (itself|themselves)\b": "its manifest, its description, its statistics",
    r"\b(tell|tells|told) of (what|which|all)\b": "record, notify, report",
    r"\bwhat (comes|came) of\b": "the result, the outcome",
    r"\bas [`\w.]+ has it\b": "as in",
    r"\b[Tt]he law of (it|this)\b": "Invariant",
    r"\b[Tt]he rest is as in\b": "otherwise like",
    r"\bit is said\b|\bhas said so\b|\bhas said it\b": "the subject and the verb",
    r"\bis asked of\b": "is required",
    r"\bbreaks? (its|a|their) rules?\b": "is invalid",
    r"\b[Ss]o many (a|of|are|is|may|steps|rows|episodes|agents|samples|streams|others|versions)\b": "that many, n",
    r"\b[Hh]ands? over\b": "pass, return",
    r"\bstopped looking\b": "truncated, cut off",
    r"\b(has|have|agents|agent) lived\b": "history, transitions",
    r"\bleft no trace\b": "changed nothing",
    r"\bis closing once\b": "Closing twice has no effect",
    r"\bgoes first\b": "is evicted first",
    r"\w, ever[.;]": "so far",
    r"\b[Ss]ee to it that\b": "ensure that",
    r"\b[Tt]ake note\b": "record",
    r"\bwith suspicion\b": "validated when read",
    r"^(What|Who) (says|draws|decides|makes|plays|reads|writes|takes|does|stands)\b": "name the thing and what it does",
    r"^Give (the|so) ": "Yield",
}
PAGES = [pathlib.Path("README.md"), *pathlib.Path("docs").rglob("*.md")]
NOT_PAGES = {"CHANGELOG.md", "benchmarks.md"}


def docstrings(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of the docstrings of a module, with their numbers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            for offset, line in enumerate(first.value.value.splitlines()):
                yield first.lineno + offset, line.strip()


def main() -> int:
    """Print each refused word with its place, and return 1 if there is one."""
    lines = [(path, *line) for path in sorted(pathlib.Path("src").rglob("*.py")) for line in docstrings(path)]
    for path in PAGES:
        if path.name not in NOT_PAGES and "decisions" not in path.parts:
            lines += [(path, *line) for line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)]
    faults = 0
    for path, number, line in lines:
        is_code = path.suffix == ".py" and not path.name.endswith("_test.py")
        refused = REFUSED | REFUSED_IN_CODE if is_code else REFUSED
        for pattern, instead in refused.items():
            if found := re.search(pattern, line):
                faults += 1
                print(f"{path}:{number}: say {instead} instead of {found[0]!r}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
