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


def write(folder: pathlib.Path, updates: int, every: int) -> None:
    """Write the program, with other numbers of updates, and of updates between two saves."""
    numbers = "UPDATES, SAVE_EVERY, GROUPS, GROUP, MAX_LAG = 12, 3,"
    assert numbers in PROGRAM
    (folder / "program.py").write_text(PROGRAM.replace(numbers, f"{numbers.split('=')[0]}= {updates}, {every},"))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
@pytest.mark.parametrize("names", ["", "learn save_weights train main"])
@pytest.mark.parametrize(("kills", "every"), [(3, 3), pytest.param(100, 10, marks=pytest.mark.long)])
def test_a_learner_killed_at_any_place_trains_each_group_once(
    names: str, kills: int, every: int, tmp_path: pathlib.Path
) -> None:
    """Of the weights that there are in the end; the program itself checks that no lag is too large."""
    write(tmp_path, 10**6, every)
    rng = random.Random(f"kills {names}")
    for _ in range(kills):
        code = run(tmp_path, rng.randrange(1, every * (40 if names else 250)), names)
        assert code == -signal.SIGKILL, "the program ended before it was killed"
    saved = tmp_path / "run/weights.json"
    version = json.loads(saved.read_text())["version"] if saved.exists() else 0
    write(tmp_path, version + every, every)
    assert run(tmp_path, 10**9, names) == 0
    weights = json.loads(saved.read_text())
    trained = weights["trained"]
    assert weights["version"] == version + every
    assert version or kills < 100
    assert len(trained) == len(set(trained)) == 2 * weights["version"]
    left, complete = waiting(tmp_path)
    assert not set(left) & set(trained)
    assert set(left) | set(trained) == set(complete)
