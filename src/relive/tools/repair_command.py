"""`relive repair`: puts in order what a crash left of a checkpoint or a journal, and says what it did.

    checkpoint    .NAME.new, .NAME.old       what was being built or deleted is deleted, once NAME is whole
                  NAME missing, NAME.1 ...   are renamed: NAME.1 to NAME, NAME.2 to NAME.1, and so on
                  NAME missing, no NAME.1    .NAME.new becomes NAME, if it is whole
    journal       a torn tail                is cut off
                  damage                     is set aside with what follows it, when told to

What is damaged in a checkpoint stays as it is: nothing can make it whole. A second repair finds nothing to do.
"""

import argparse
import os
import shlex
import sys

from relive import errors
from relive.persistence import files
from relive.persistence import inspect
from relive.persistence import journal_reader
from relive.persistence import repair
from relive.tools import reading
from relive.tools import wording


def run(options: argparse.Namespace) -> int:
    """Repair a path; return 0 if it is whole then, else 1."""
    path = files.absolute("PATH", options.path)
    is_left_over = not os.path.lexists(files.newest(path)) and os.path.isdir(files.beside(path, "new"))
    try:
        if not is_left_over and inspect.kind_of(path) is inspect.Kind.JOURNAL:
            return _repair_journal(path, options)
        return _repair_checkpoint(path)
    except OSError as error:
        raise errors.CheckpointError(f"{files.named(path)} cannot be repaired: {files.reason(error)}") from error


# Journals.


def _repair_journal(path: str, options: argparse.Namespace) -> int:
    damage = journal_reader.examine(path).damage
    if damage is not None and not options.drop_damaged:
        num_records = journal_reader.examine(path).num_records
        kept = f"keeps the {wording.counted(num_records, 'record')} before it, and sets the rest aside"
        _refuse(f"{damage}: relive repair --drop-damaged {shlex.quote(files.named(path))} {kept}")
        return 1
    result = repair.repair(path, drop_damaged=options.drop_damaged)
    label, records = files.named(path), wording.counted(result.num_records, "record")
    if result.damage is not None:
        _say(f"{result.damage}")
        _say(f"{label} now ends before that, with {records}; set aside in it: {', '.join(result.set_aside)}")
    elif result.num_bytes_cut:
        _say(f"{label}: cut {wording.counted(result.num_bytes_cut, 'byte')} of a torn record; {records} are whole")
    else:
        _say(f"{label}: nothing to repair, {records} are whole")
    return 0


# Checkpoints.


def _repair_checkpoint(path: str) -> int:
    with files.locked(path), reading.shown("verifying") as progress:
        result = _renamed(path)
        faults = inspect.faults(path, progress)
        if not faults:
            result += _cleaned(path)
    label = files.named(path)
    for line in result:
        _say(line)
    if faults:
        for fault in faults:
            _refuse(fault)
        _refuse(_remedy(path))
        return 1
    _say(f"{label} is whole{'' if result else ': nothing to repair'}")
    return 0


def _renamed(path: str) -> list[str]:
    """Give a checkpoint its name that a crash left without it, and return what it did, a line each."""
    if os.path.lexists(path):
        return []
    older = inspect.older(path)
    new = files.beside(path, "new")
    moves = [(each, path if not number else older[number - 1]) for number, each in enumerate(older)]
    if not older:
        if not os.path.isdir(new):  # NAME.1 is there, but was saved by that name.
            raise errors.CheckpointError(f"{files.named(path)} does not exist")
        if inspect.faults(new):
            raise errors.CheckpointError(
                f"{files.named(path)} does not exist, and {files.named(new)} was never completed"
            )
        moves = [(new, path)]
    for source, target in moves:
        os.rename(source, target)
    files.fsync_directory(os.path.dirname(path))
    return [f"renamed {files.named(source)} to {files.named(target)}" for source, target in moves]


def _cleaned(path: str) -> list[str]:
    """Delete what a crash left beside a checkpoint that is whole, and return what it did, a line each."""
    lines = []
    for kind, what in (("new", "was never completed"), ("old", "was being deleted")):
        place = files.beside(path, kind)
        if os.path.lexists(place):
            files.remove_directory(place)
            lines.append(f"deleted {files.named(place)}, which {what}")
    return lines


def _remedy(path: str) -> str:
    """Return what to do about a checkpoint that is damaged."""
    label = files.named(path)
    for each in (files.beside(path, "new"), *inspect.older(path)):
        if os.path.isdir(each) and not inspect.faults(each):
            return f"{label} is left as it is, but {files.named(each)} is whole: load that"
    return f"{label} is left as it is: nothing beside it is whole"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _refuse(line: str) -> None:
    sys.stderr.write(f"relive repair: {line}\n")
