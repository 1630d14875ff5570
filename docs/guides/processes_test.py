"""The program of the page about processes runs, as a file of its own."""

import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).with_name("processes.md").read_text("utf-8")


@pytest.fixture
def program() -> str:
    (block,) = re.findall(r"^```py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(block)


def run(path: pathlib.Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text, "utf-8")
    return subprocess.run(
        [sys.executable, "-W", "error", path], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_owner_stores_the_episodes_of_all_actors(program: str, tmp_path: pathlib.Path) -> None:
    ended = run(tmp_path / "program.py", program)
    assert re.fullmatch(r"60 episodes, \d{3} steps\n", ended.stdout), ended.stderr


def test_the_owner_says_that_an_actor_has_died(program: str, tmp_path: pathlib.Path) -> None:
    text = program.replace("    steps.put((actor, None))\n", "    raise SystemExit(3)\n")
    assert text != program
    ended = run(tmp_path / "program.py", text)
    assert ended.returncode == 1
    assert "RuntimeError: actor 0 has died" in ended.stderr
