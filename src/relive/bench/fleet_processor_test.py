import os
import pathlib
import subprocess
import sys

import pytest

from relive.bench import fleet_processor

_STAT = "{number} (a (b) c) S {parent} 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 5\n"


@pytest.fixture
def tree(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """This process, a child with a child of its own, and a stranger with one."""
    monkeypatch.setattr(fleet_processor, "_PROCESSES", tmp_path)
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    for number, parent, user in ((os.getpid(), 1, 100), (7, os.getpid(), 200), (8, 7, 300), (5, 1, 400), (6, 5, 500)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "stat").write_text(_STAT.format(number=number, parent=parent, user=user, system=50), encoding="utf-8")
    (tmp_path / "9").mkdir()
    (tmp_path / "meminfo").mkdir()
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 500 6 7 8 900 900\ncpu0 1 1 1 1\n", encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("tree")
def test_the_seconds_are_those_of_this_process_and_of_all_that_came_of_it() -> None:
    assert fleet_processor.seconds_by_process() == {os.getpid(): 1.5, 7: 2.5, 8: 3.5}


@pytest.mark.usefixtures("tree")
def test_cores_that_wait_are_not_at_work() -> None:
    assert fleet_processor.busy_seconds() == 1.71


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_child_is_found_on_this_machine() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = fleet_processor.seconds_by_process()
        child.communicate(b"\n")
    assert {os.getpid(), child.pid} <= set(found)
    assert fleet_processor.busy_seconds() > 0
