"""Write docs/tested_versions.md for the libraries installed here; with --check, fail if it misses one of an extra."""

import importlib.metadata
import pathlib
import re
import sys
import tomllib

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "tested_versions.md"
PROJECT = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
TEXT = """# Tested versions

CI tests every change on Python {pythons}, on Linux, macOS and Windows; on Linux with all libraries too,
the newest versions and the oldest allowed. relive needs numpy alone. `.ci/tested_versions.py` wrote this table.

| library | with | at least | tested with |
|---|---|---|---|
{rows}
"""


def rows() -> dict[str, str]:
    """Return the row of each library without its tested version, by its name."""
    needed = [("", each) for each in PROJECT["dependencies"]]
    extras = {name: each for name, each in PROJECT["optional-dependencies"].items() if name not in ("docs", "dev")}
    needed += [(f"`relive[{extra}]`", each) for extra, requirements in extras.items() for each in requirements]
    found: dict[str, tuple[list[str], str]] = {}
    for extra, requirement in needed:
        name, least = re.fullmatch(r"([\w-]+)(?:\[.*\])?(?:>=(.*))?", requirement).groups()  # type: ignore[union-attr]
        if name != "relive":
            found.setdefault(name, ([], least))[0].append(extra)
    return {name: f"| {name} | {', '.join(by)} | {least} |" for name, (by, least) in sorted(found.items())}


if "--check" in sys.argv:
    missing = ", ".join(name for name, row in rows().items() if row not in PAGE.read_text("utf-8"))
    sys.exit(f"docs/tested_versions.md must have {missing}: run .ci/tested_versions.py" if missing else 0)
pythons = re.findall(r"3\.\d+", " ".join(PROJECT["classifiers"]))
lines = "\n".join(f"{row} {importlib.metadata.version(name)} |" for name, row in rows().items())
PAGE.write_text(TEXT.format(pythons=", ".join(pythons), rows=lines), "utf-8")
