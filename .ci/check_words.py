"""Checks style rule 14: pages, docstrings and error messages are plain English, without the words below."""

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

# Refused in docstrings, those of tests and of attributes too, and in error messages.
REFUSED_IN_STRINGS = {
    r"\bof your own\b": "custom",
    r"\bsays? of (itself|themselves)\b": "its manifest, its description, its statistics",
    r"\b(tell|tells|told) of (what|which|all)\b": "record, notify, report",
    r"\bwhat (comes|came) of\b": "the result, the outcome",
    r"\bas [`\w.]+ has it\b": "as in",
    r"\b[Tt]he law of (it|this)\b": "Invariant",
    r"\b[Tt]he rest is as in\b": "otherwise like",
    r"\bit is said\b|\bhas said so\b|\bhas said it\b": "the subject and the verb",
    r"\bis asked of\b": "is required",
    r"\bbreaks? (its|a|their) rules?\b": "is invalid",
    r"\b[Hh]ands? over\b": "pass, return",
    r"\bstopped looking\b": "truncated, cut off",
    r"\bleft no trace\b": "changed nothing",
    r"\bis closing once\b": "Closing twice has no effect",
    r"\bgoes first\b": "is evicted first",
    r"\w, ever[.;]": "so far",
    r"\b[Ss]ee to it that\b": "ensure that",
    r"\b[Tt]ake note\b": "record",
    r"\bwith suspicion\b": "validated when read",
    r"^(What|Who) (says|draws|decides|makes|plays|reads|writes|takes|does|stands)\b": "name the thing and what it does",
    r"^Give (the|so) ": "Yield",
    r"\b[Hh]ears?\b": "record, the calls of its hooks",
    r"\b[Aa]s ever\b|\bby all accounts\b": "otherwise unchanged",
    r"\bcalls (itself|themselves)\b": "has the id, has the name",
    r"\blives? through\b": "has",
    r"\bof a class of (its|their|one's) own\b": "custom",
    r"\bwhat there is\b|\bwhat is no\b|\bthat there are not\b": "name the thing",
    r"\b(beside|outlives?) (what|its process)\b": "name the thing",
}

# Refused in error messages.
REFUSED_IN_MESSAGES = {
    r"(?<!\bthere )\bis no (?!longer)[a-z]": "is not a",
    r"\b(say|says) (that|so|--|\w+=)": "pass, has, contains",
    r"\bstill answers\b|\bto answer\b": "still works, to return",
    r"\bours\b": "relive's, that relive wrote",
    r"\bthat cannot be$|\bcannot be here\b": "invalid, not valid here",
    r"\bas it is here\b": "as in this object",
    r"\bbehind (its|the) (last )?value\b": "after",
    r"\bbe told\b|\b(tells|told) of\b": "be recorded",
}

# Refused in docstrings of definitions outside of tests.
REFUSED_IN_CODE = {
    r"\b([Ss]omebody|[Aa]nybody|[Nn]obody|[Ww]hosoever|[Ww]hom)\b": "a caller, a user, no process",
    r"\b[Ss]o many (a|of|are|is|may|steps|rows|episodes|agents|samples|streams|others|versions)\b": "that many, n",
    r"\b(has|have|agents|agent) lived\b": "history, transitions",
}
PAGES = [pathlib.Path("README.md"), *pathlib.Path("docs").rglob("*.md")]
NOT_PAGES = {"CHANGELOG.md", "benchmarks.md"}


def strings(path: pathlib.Path) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yield the lines of docstrings and error messages of a module: number, line, and what is refused in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    in_code = {} if path.name.endswith("_test.py") else REFUSED_IN_CODE
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    of_definitions = {id(node.body[0]) for node in ast.walk(tree) if isinstance(node, definitions) and node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            refused = REFUSED | REFUSED_IN_STRINGS | (in_code if id(node) in of_definitions else {})
            for offset, line in enumerate(node.value.value.splitlines()):
                yield node.lineno + offset, line.strip(), refused
        elif isinstance(node, ast.Raise):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value, REFUSED_IN_STRINGS | REFUSED_IN_MESSAGES


def names_of_tests() -> Iterator[str]:
    """Yield what is wrong with the name of a test: it is long, or another test has it."""
    places: dict[str, pathlib.Path] = {}
    for path in sorted([*pathlib.Path("src").rglob("*.py"), *pathlib.Path("docs").rglob("*_test.py")]):
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")):
            if len(name) > 60:
                yield f"{path}: {name} has {len(name)} characters, and may have 60"
            if name in places:
                yield f"{path}: {name} is the name of a test in {places[name]}"
            places[name] = path


def main() -> int:
    """Print each refused word with its place, and return 1 if there is one."""
    lines = [(path, *line) for path in sorted(pathlib.Path("src").rglob("*.py")) for line in strings(path)]
    for path in PAGES:
        if path.name not in NOT_PAGES and "decisions" not in path.parts:
            text = path.read_text(encoding="utf-8")
            lines += [(path, number, line, REFUSED) for number, line in enumerate(text.splitlines(), start=1)]
    faults = 0
    for fault in names_of_tests():
        faults += 1
        print(fault)
    for path, number, line, refused in lines:
        for pattern, instead in refused.items():
            if found := re.search(pattern, line):
                faults += 1
                print(f"{path}:{number}: say {instead} instead of {found[0]!r}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
