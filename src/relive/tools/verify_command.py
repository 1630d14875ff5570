"""`relive verify`: says that a checkpoint or a journal is whole, or what is broken in it, a line each."""

import argparse
import dataclasses
import math
import os
import sys
from typing import Any

import relive
from relive import errors
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import state
from relive.tools import loading
from relive.tools import reading
from relive.tools import saved_path
from relive.tools import wording


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What was found.

    Attributes:
        faults: What is broken, a line each.
        words: What is whole, and what was not looked at and why.
    """

    faults: list[str]
    words: str = ""


def run(options: argparse.Namespace) -> int:
    """Verify a path; return 0 if it is whole, else 1."""
    path = files.absolute("PATH", options.path)
    with reading.shown("verifying") as progress:
        found = verdict(path, progress)
    if not found.faults:
        sys.stdout.write(f"{files.named(path)} is whole: {found.words}\n")
        return 0
    for fault in found.faults:
        sys.stderr.write(f"relive verify: {fault}\n")
    return 1


def verdict(path: str, progress: state.Progress | None = None) -> Verdict:
    """Read all that is at an absolute path, loads the buffer where that can be, and return what was found.

    Raises:
        CheckpointError: Neither a checkpoint nor a journal is there.
    """
    if saved_path.kind_of(path) is saved_path.Kind.JOURNAL:
        return _of_journal(path)
    faults = saved_path.faults(path, progress)
    if faults:
        return Verdict(faults)
    said = saved_path.read_manifest(path)
    words = [wording.counted(len(said.entries), "array")]
    if said.place != path:
        words.append(f"read from {files.named(said.place)}, as a crash left it (relive repair renames it)")
    try:
        reason = loading.why_not(said.values) or _why_too_large(said)
        if reason:
            return Verdict([], f"{', '.join(words)}, with the right checksums; not loaded: {reason}")
        name = said.values["class"]
        buffer = loading.loaded(path, name)
    except errors.ReplayError as error:
        return Verdict([f"{files.named(path)} cannot be loaded: {error}"])
    return Verdict([], f"{', '.join(words)}, and {name} loads {_described(buffer)}")


def _described(buffer: Any) -> str:
    noun = "transition" if isinstance(buffer, relive.EpisodeReplayBuffer) else "step"
    return wording.counted(len(buffer), noun)


def _why_too_large(said: saved_path.Manifest) -> str:
    """Return why there is no memory for a buffer; nothing if there is, or if the machine does not say."""
    needed, there = _needed_bytes(said), _memory_bytes()
    if there is None or needed <= there // 2:
        return ""
    return f"it takes {wording.size(needed)} of memory, and this machine has {wording.size(there)}"


def _needed_bytes(said: saved_path.Manifest) -> int:
    """Return about how many bytes a loaded buffer takes: those of its files, and of all rows it has room for."""
    nbytes = sum(entry.nbytes for entry in said.entries.values())
    rows = [entry for name, entry in said.entries.items() if name.startswith("rows/")]
    per_row = sum(entry.dtype.itemsize * math.prod(entry.shape[1:]) for entry in rows)
    capacity = state.StateReader(said.values, {}).part("settings").value("capacity") if rows else 0
    return nbytes + (capacity if type(capacity) is int else 0) * per_row


def _memory_bytes() -> int | None:
    """Return how much memory the machine has; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _of_journal(path: str) -> Verdict:
    findings = journal_reader.examine(path)
    if findings.damage is not None:
        return Verdict([str(findings.damage)])
    words = f"{wording.counted(findings.num_records, 'record')} in {wording.counted(findings.num_segments, 'segment')}"
    if findings.num_torn_bytes:
        torn = f"a torn record of {wording.counted(findings.num_torn_bytes, 'byte')}, as a crash leaves it"
        return Verdict([], f"{words}, with the right checksums, and {torn}: relive repair cuts it off")
    try:
        buffer, reason = loading.rebuilt(path)
    except errors.ReplayError as error:
        return Verdict([f"{files.named(path)} rebuilds no buffer: {error}"])
    if buffer is None:
        return Verdict([], f"{words}, with the right checksums; not rebuilt: {reason}")
    return Verdict([], f"{words}, and they rebuild {type(buffer).__name__} with {_described(buffer)}")
