"""Python blocks of the pages: those with prompts are doctests; those without run here, in order, in one namespace.

A `text` block right behind one is what it prints, compared as in a doctest.
"""

from collections.abc import Iterator
import contextlib
import doctest
import importlib.util
import io
import pathlib
import random
import re
import sys
import tempfile
from typing import Any

import numpy as np
import pytest

# No extra brings what this example plays.
collect_ignore = [] if importlib.util.find_spec("pettingzoo") else ["examples/turns.py"]

_DOCS = pathlib.Path(__file__).parent
_BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks_of(text: str) -> list[tuple[str, str | None]]:
    """Return the blocks without prompts, each behind as many empty lines as stand before it, and what each prints."""
    return [
        ("\n" * text.count("\n", 0, block.start(1)) + block[1], block[2])
        for block in _BLOCK.finditer(text)
        if ">>> " not in block[1]
    ]


class Blocks(pytest.Item):
    """All blocks of a page."""

    page: pathlib.Path

    def runtest(self) -> None:
        """Run them in an empty directory, as far as the libraries are installed that they import."""
        namespace: dict[str, Any] = {"__name__": "__main__"}
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
            for block, expected in blocks_of(self.page.read_text(encoding="utf-8")):
                printed = io.StringIO()
                try:
                    with contextlib.redirect_stdout(printed) if expected else contextlib.nullcontext():
                        exec(compile(block, str(self.page), "exec"), namespace)
                except ImportError as error:
                    if not error.name or error.name.startswith("relive"):
                        raise
                    pytest.skip(f"could not import {error.name!r}")
                if expected and not doctest.OutputChecker().check_output(expected, printed.getvalue(), _OPTIONS):
                    pytest.fail(f"{self.page.name} shows {expected!r}, its block prints {printed.getvalue()!r}")


class Page(pytest.File):
    """A page; README, which no conftest lies beside, goes with the first one."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield its blocks as one test, if it has any."""
        is_first = self.path == _DOCS / "index.md"
        for page in [self.path, _DOCS.parent / "README.md"] if is_first else [self.path]:
            if blocks_of(page.read_text(encoding="utf-8")):
                item = Blocks.from_parent(self, name=f"blocks of {page.name}")
                item.page = page
                yield item


def pytest_collect_file(file_path: pathlib.Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect each page."""
    return Page.from_parent(parent, path=file_path) if file_path.suffix == ".md" else None


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the number of threads of torch and the global generators after each test: other libraries seed them."""
    torch: Any = sys.modules.get("torch")
    states = np.random.get_state(), random.getstate()  # noqa: NPY002
    threads, state = (torch.get_num_threads(), torch.get_rng_state()) if torch else (0, None)
    yield
    np.random.set_state(states[0])  # noqa: NPY002
    random.setstate(states[1])
    if torch:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
