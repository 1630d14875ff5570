"""The program of the tutorial is killed at random places: no group is trained on twice, and none is lost."""

import json
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import relive

PAGE = pathlib.Path(__file__).with_name("crash_and_resume.md").read_text(encoding="utf-8")
PROGRAM = PAGE.split("```python\n")[1].split("```")[0]
KILLER = """
    import os, signal, sys

    place, names = int(sys.argv[1]), sys.argv[2].split()
    source = open("program.py").read()

    def trace(frame, event, argument):
        global place
        code = frame.f_code
        if code.co_filename != "program.py" or (names and code.co_name not in names):
            return None if event == "call" else trace
        if event == "line":
            place -= 1
            if not place:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
    print("lines left:", place)
"""


def run(folder: pathlib.Path, place: int, names: str) -> int:
    """Run the program until it has executed that many lines of functions of those names, or of all."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(KILLER), str(place), names]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=120).returncode


def waiting(folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """Return the groups that wait after the last run, and all that are complete, from the journal alone."""
    buffer: Any = relive.recover(folder / "run/journal")
    buffer.check()
    ids: list[str] = []
    while True:
        try:
            ids += [group[0].group_id for group in buffer.next_groups_nowait(1)]
        except relive.NotReadyError:
            break
    members: dict[str, int] = {}
    for facts in buffer._store:
        members[facts.group_id] = members.get(facts.group_id, 0) + 1
    return ids, [group_id for group_id, count in members.items() if count == 4]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
@pytest.mark.parametrize("names", ["", "learn save_weights train"])
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.full)])
def test_a_learner_killed_at_ten_places_trains_each_group_once(names: str, kills: int, tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    rng = random.Random(f"kills {names}")
    for _ in range(kills):
        code = run(tmp_path, rng.randrange(1, 30 if names else 300), names)
        assert code == -signal.SIGKILL, "the program ended before it was killed"
    assert run(tmp_path, 10**9, names) == 0
    weights = json.loads((tmp_path / "run/weights.json").read_text())
    trained = weights["trained"]
    assert weights["version"] == 12
    assert len(trained) == len(set(trained)) == 24
    left, complete = waiting(tmp_path)
    assert not set(left) & set(trained)
    assert set(left) | set(trained) == set(complete)
