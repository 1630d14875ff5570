"""`relive verify`: says that a checkpoint or a journal is whole, or what is broken in it, a line each."""

import argparse
import sys

from relive.episodes import buffer as episode_buffer
from relive.persistence import files
from relive.persistence import inspect
from relive.tools import reading
from relive.tools import wording


def run(options: argparse.Namespace) -> int:
    """Verify a path; return 0 if it is whole, else 1."""
    path = files.absolute("PATH", options.path)
    with reading.shown("verifying") as progress:
        found = inspect.examine(path, progress)
    if not found.faults:
        sys.stdout.write(f"{files.named(path)} is whole: {_described(path, found)}\n")
        return 0
    for fault in found.faults:
        sys.stderr.write(f"relive verify: {fault}\n")
    return 1


def _described(path: str, found: inspect.Examination) -> str:
    """Return what was looked at, and what was made of it."""
    if found.findings is None:
        words, made = wording.counted(found.num_arrays, "array"), "loaded"
    else:
        findings, made = found.findings, "rebuilt"
        records, segments = findings.num_records, findings.num_segments
        words = f"{wording.counted(records, 'record')} in {wording.counted(segments, 'segment')}"
        if findings.num_torn_bytes:
            torn = f"a torn record of {wording.counted(findings.num_torn_bytes, 'byte')}, as a crash leaves it"
            return f"{words}, with the right checksums, and {torn}: relive repair cuts it off"
    if found.place != path:
        words += f", read from {files.named(found.place)}, as a crash left it (relive repair renames it)"
    if found.buffer is None:
        return f"{words}, with the right checksums; not {made}: {found.reason}"
    name = type(found.buffer).__name__
    noun = "transition" if isinstance(found.buffer, episode_buffer.EpisodeReplayBuffer) else "step"
    size = wording.counted(len(found.buffer), noun)
    return (
        f"{words}, and {name} loads {size}"
        if found.findings is None
        else f"{words}, and they rebuild {name} with {size}"
    )
