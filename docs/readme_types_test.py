"""mypy accepts README's programs as they are printed."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.full
def test_mypy_accepts_the_programs_of_readme(tmp_path: pathlib.Path) -> None:
    for library in ("gymnasium", "mypy", "torch"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    paths = [tmp_path / f"program_{number}.py" for number in range(len(blocks))]
    for path, block in zip(paths, blocks, strict=True):
        path.write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path}", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
