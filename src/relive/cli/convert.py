"""`relive convert`: carries the steps of a checkpoint, a Parquet file or a Minari dataset over to another of the three.

    checkpoint, journal ─┐                         ┌─ checkpoint
    FILE.parquet         ├──> a buffer in memory ──┤  FILE.parquet
    minari:ID           ─┘                         └─ minari:ID

What exists is not replaced unless one says so, and then by a rename, once the new one is whole.
"""

import argparse
import enum
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import relive
from relive import errors
from relive.buffers import column
from relive.cli import formatting
from relive.cli import progress
from relive.common import imports
from relive.integrations import replaced_file
from relive.persistence import files
from relive.persistence import inspect
from relive.persistence import places
from relive.persistence import state

if TYPE_CHECKING:
    from relive.integrations import arrow as arrow_lib
    from relive.integrations import minari as minari_lib
else:
    minari_lib = imports.lazy_module("relive.integrations.minari")
    arrow_lib = imports.lazy_module("relive.integrations.arrow")

AnyBuffer: TypeAlias = "column.ColumnReplayBuffer[Any]"

_MINARI = "minari:"
_SEPARATORS = os.sep + (os.altsep or "")


class Kind(enum.Enum):
    """What FROM and TO can be."""

    CHECKPOINT = "checkpoint"
    PARQUET = "Parquet file"
    MINARI = "Minari dataset"


def kind_of(text: str) -> Kind:
    """Return what somebody means by FROM or TO, by its form alone.

    >>> from relive.cli import convert
    >>> [convert.kind_of(text).value for text in ("replay", "steps.parquet", "minari:pendulum/mine-v0")]
    ['checkpoint', 'Parquet file', 'Minari dataset']
    """
    if text.startswith(_MINARI):
        return Kind.MINARI
    return Kind.PARQUET if text.lower().endswith(".parquet") else Kind.CHECKPOINT


def run(options: argparse.Namespace) -> int:
    """Convert FROM to TO; return 0."""
    source, target = kind_of(options.source), kind_of(options.target)
    _check(options, source, target)
    _check_target(options, target)
    # What is missing is said before anything is read.
    _ = minari_lib.add_dataset if Kind.MINARI in (source, target) else None
    _ = arrow_lib.add_parquet if Kind.PARQUET in (source, target) else None
    try:
        with progress.shown("reading") as show:
            buffer = _read(options, source, show)
        if buffer.schema is None:
            said = formatting.plain(options.source)
            raise errors.CheckpointError(f"{said} holds no step, and does not say what one holds: nothing to convert")
        with progress.shown("writing") as show:
            num_steps, num_episodes = _write(options, target, buffer, show)
    except MemoryError as error:
        raise errors.ArgumentError(f"FROM must fit into memory: {error}") from error
    counts = f"{formatting.counted(num_steps, 'step')} in {formatting.counted(num_episodes, 'episode')}"
    sys.stdout.write(f"wrote {counts} to {formatting.plain(options.target)}\n")
    return 0


def _check(options: argparse.Namespace, source: Kind, target: Kind) -> None:
    """Exit with 2 if FROM, TO and the options make no sense together."""
    refuse = options.parser.error
    for text in (options.source, options.target):
        if text in ("", _MINARI):
            refuse(f"FROM and TO must be a directory, FILE.parquet or {_MINARI}ID, got {text!r}")
        bare = text.rstrip(_SEPARATORS)
        if bare != text and kind_of(bare) is Kind.PARQUET and not os.path.isdir(text):
            refuse(f"FROM and TO must be a directory, FILE.parquet or {_MINARI}ID, got {text!r}: leave the slash out")
    if source is target:
        refuse(f"FROM and TO are both a {source.value}: there is nothing to convert")
    if options.capacity is not None and target is not Kind.CHECKPOINT:
        refuse(f"argument --capacity: not allowed where TO is a {target.value}")
    if (options.info or options.no_infos) and source is not Kind.MINARI:
        name = "--info" if options.info else "--no-infos"
        refuse(f"argument {name}: not allowed where FROM is a {source.value}")
    if options.incomplete is not None and target is not Kind.MINARI:
        refuse(f"argument --incomplete: not allowed where TO is a {target.value}")
    if options.overwrite and target is Kind.MINARI:
        refuse(f"argument --overwrite: not allowed where TO is a {target.value}: delete it with minari delete")


def _check_target(options: argparse.Namespace, target: Kind) -> None:
    """Raise an error if TO cannot be made where it is, or something is there that is not to be replaced."""
    if target is Kind.MINARI:
        return
    absolute = files.absolute if target is Kind.CHECKPOINT else replaced_file.absolute
    path = absolute("TO", options.target)
    replaced_file.check_parent(path)
    _check_is_new(options, target, path)
    older = places.older(path) if target is Kind.CHECKPOINT else []
    if older:
        names = ", ".join(os.path.basename(each) for each in older)
        label = files.named(path)
        raise errors.CheckpointError(f"{label} has older ones beside it, which would be lost: move {names} away first")


def _check_is_new(options: argparse.Namespace, target: Kind, path: str) -> None:
    """Raise ArgumentError if something is at a path that is not to be replaced."""
    if not options.overwrite and os.path.lexists(files.newest(path) if target is Kind.CHECKPOINT else path):
        raise errors.ArgumentError(f"{files.named(path)} exists: name another path, or say --overwrite")


# Reading.


def _read(options: argparse.Namespace, source: Kind, show: state.Progress | None) -> AnyBuffer:
    if source is Kind.CHECKPOINT:
        return _saved(files.absolute("FROM", options.source), show)
    if source is Kind.PARQUET:
        said = arrow_lib.describe(options.source)
        buffer = _new(options, said.schema, said.num_steps, said.streams)
        arrow_lib.add_parquet(buffer, options.source, progress=show)
        return buffer
    dataset = options.source.removeprefix(_MINARI)
    infos = {} if options.no_infos else minari_lib.infos_of(dataset)
    for name in options.info or ():
        if name not in infos:
            raise errors.ArgumentError(f"--info must be among {', '.join(infos) or 'no infos'}, got {name}")
    if options.info:
        infos = {name: name for name in options.info}
    schema = minari_lib.schema_of(dataset, infos=infos)
    buffer = _new(options, schema, importlib.import_module("minari").load_dataset(dataset).total_steps, 1)
    minari_lib.add_dataset(buffer, dataset, infos=infos, progress=show)
    return buffer


def _new(options: argparse.Namespace, schema: relive.Schema, num_steps: int, streams: int) -> AnyBuffer:
    least = max(num_steps, streams, 1)
    capacity = least if options.capacity is None else options.capacity
    if capacity < least:
        needs = f"{formatting.counted(num_steps, 'step')} of {formatting.counted(streams, 'stream')}"
        raise errors.ArgumentError(f"--capacity must be at least {least} for {needs}, got {capacity}")
    return relive.RingReplayBuffer(capacity, schema, streams=streams, seed=0)


def _saved(path: str, show: state.Progress | None) -> AnyBuffer:
    """Return the buffer of a checkpoint or a journal; code that is in neither is not run.

    Raises:
        CheckpointError: There is none, or it is broken, or not one of columns.
    """
    label = files.named(path)
    if places.kind_of_buffer(path) is places.Kind.JOURNAL:
        found = inspect.examine(path)
        if found.findings is not None and found.findings.damage is not None:
            raise errors.CheckpointError(f"{found.findings.damage}: relive repair puts the rest aside")
        if found.findings is not None and found.findings.num_torn_bytes:
            raise errors.CheckpointError(f"{label} has a torn record at its end: relive repair cuts it off")
        if found.buffer is None:
            raise errors.CheckpointError(f"{label} cannot be converted: {'; '.join(found.faults) or found.reason}")
        buffer = found.buffer
    else:
        reason = inspect.why_not(places.read_manifest(path).values)
        if reason:
            raise errors.CheckpointError(f"{label} cannot be converted: {reason}")
        buffer = inspect.load(path, progress=show)
    if not isinstance(buffer, column.ColumnReplayBuffer):
        name = type(buffer).__name__
        raise errors.CheckpointError(f"{label} cannot be converted: it is of {name}, whose steps are no columns")
    return buffer


# Writing.


def _write(
    options: argparse.Namespace, target: Kind, buffer: AnyBuffer, show: state.Progress | None
) -> tuple[int, int]:
    """Write the steps of a buffer to TO, and return how many steps and episodes it has then."""
    if target is Kind.MINARI:
        name = options.target.removeprefix(_MINARI)
        try:
            dataset = minari_lib.to_dataset(buffer, name, incomplete=options.incomplete or "refuse", progress=show)
        except errors.ArgumentError as error:
            said = str(error).replace("incomplete='as_sampled'", "--incomplete as_sampled")
            raise errors.ArgumentError(said) from error
        return int(dataset.total_steps), int(dataset.total_episodes)
    if target is Kind.PARQUET:
        arrow_lib.write_parquet(buffer, options.target, overwrite=options.overwrite, progress=show)
    else:
        # Once more, for what was made meanwhile. What is made while `save` builds beside, it replaces if that is ours.
        _check_target(options, target)
        buffer.save(options.target, progress=show)
    stats = buffer.get_stats()
    return len(buffer), stats.open_episodes + stats.terminated_episodes + stats.truncated_episodes
