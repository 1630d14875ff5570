"""`relive verify`: what is whole, what is broken, and the exit code."""

import json
import os
import pathlib

import pytest

import relive
from relive.cli import command_line
from relive.cli import saved_examples_test as examples
from relive.persistence import archive_test
from relive.persistence import inspect
from relive.persistence import posix_test


def verified(capsys: pytest.CaptureFixture[str], path: str = "buffer") -> tuple[int, str, list[str]]:
    """Return the exit code, what was printed, and the errors without their beginning."""
    code = command_line.main(["verify", path])
    shown = capsys.readouterr()
    place = f"{os.getcwd()}/"
    errors = [line.removeprefix("relive verify: ").replace(place, "") for line in shown.err.splitlines()]
    return code, shown.out.replace(place, ""), errors


def test_an_intact_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    examples.prioritized().save("buffer")
    words = "a checkpoint of 13 arrays, which loads <PrioritizedReplayBuffer of 60 steps, capacity=100, streams=1, "
    assert verified(capsys) == (0, f"buffer is whole: {words}max_times_sampled=5>\n", [])


def test_verify_prints_only_json(capsys: pytest.CaptureFixture[str]) -> None:
    examples.prioritized().save("buffer")
    path = os.path.abspath("buffer")
    said = {"path": path, "kind": "checkpoint", "faults": [], "notes": []}
    for code, fault in ((0, ""), (1, f"{path}/barred.npy was changed: ")):
        assert command_line.main(["verify", "--json", "buffer"]) == code
        shown = capsys.readouterr()
        found = json.loads(shown.out)
        assert ([each.startswith(fault) for each in found["faults"]], shown.err) == ([True] * code, "")
        assert found | {"faults": []} == said
        archive_test.change_byte(pathlib.Path("buffer"), "barred.npy", 150)


def test_each_broken_array_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    examples.prioritized().save("buffer")
    for name in ("rows.reward.npy", "barred.npy"):
        archive_test.change_byte(pathlib.Path("buffer"), name, 150)
    code, out, errors = verified(capsys)
    assert (code, out, len(errors)) == (1, "", 2)
    for name, line in zip(("rows.reward.npy", "barred.npy"), errors, strict=True):
        assert line.startswith(f"buffer/{name} was changed: its CRC-32 must be")


def test_a_forgery_with_valid_checksums_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    for forged, message in ({"next_key": 7}, ""), ({"settings": {}}, "settings/"):
        examples.prioritized().save("buffer")
        examples.forge(pathlib.Path("buffer"), **forged)
        code, _, (error,) = verified(capsys)
        assert code == 1
        assert error.startswith(f"buffer cannot be loaded: {message}")


def test_an_inconsistent_buffer_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(buffer: object) -> None:
        raise relive.CorruptionError("the sum tree is not a tree")

    examples.prioritized().save("buffer")
    examples.journal(pathlib.Path("journal"))
    monkeypatch.setattr(relive.PrioritizedReplayBuffer, "check", refuse)
    monkeypatch.setattr(relive.RingReplayBuffer, "check", refuse)
    assert verified(capsys)[2] == ["buffer cannot be loaded: the sum tree is not a tree"]
    assert verified(capsys, "journal")[2] == ["journal cannot be recovered: journal: the sum tree is not a tree"]


def test_a_buffer_that_does_not_fit_is_not_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples.prioritized().save("buffer")
    monkeypatch.setattr(inspect, "_memory_bytes", lambda: 50_000)
    code, out, _ = verified(capsys)
    assert code == 0
    assert "not loaded: it takes " in out
    assert "of memory, and this machine has 0.0 GiB" in out
    monkeypatch.setattr(inspect, "_memory_bytes", lambda: None)
    assert "which loads <" in verified(capsys)[1]


@posix_test.MEMORY
def test_unknown_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (inspect._memory_bytes() or 0) > 1 << 20

    def refuse(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", refuse, raising=False)
    assert inspect._memory_bytes() is None


@posix_test.MEMORY
def test_a_capacity_larger_than_memory_is_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    buffer.add(1.0, 0, 1.0, 2.0)
    buffer.save("buffer")
    settings = dict.fromkeys(buffer.settings())
    examples.forge(pathlib.Path("buffer"), settings=settings | {"capacity": 10**15})
    code, out, _ = verified(capsys)
    assert (code, "not loaded: it takes" in out) == (0, True)


def test_an_intact_journal_is_verified(capsys: pytest.CaptureFixture[str]) -> None:
    """A torn tail is no fault."""
    examples.journal(pathlib.Path("journal"))
    code, out, errors = verified(capsys, "journal")
    assert (code, errors) == (0, [])
    assert out.startswith("journal is whole: a journal of ")
    assert out.endswith(" segments, which loads <RingReplayBuffer of 30 steps, capacity=100, streams=1>\n")
    last = examples.segments(pathlib.Path("journal"))[-1]
    last.write_bytes(last.read_bytes() + b"x")
    code, out, _ = verified(capsys, "journal")
    assert code == 0
    assert out.endswith("; not loaded: it ends with a torn record of 1 B: relive repair cuts it off\n")
