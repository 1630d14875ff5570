"""`relive convert`: carries the steps of a checkpoint, a Parquet file or a Minari dataset over to another of the three.

    checkpoint, journal ─┐                         ┌─ FILE.relive, a checkpoint
    Parquet file         ├──> a buffer in memory ──┤  FILE.parquet
    minari:ID           ─┘                         └─ minari:ID

An existing target is replaced only with --overwrite, and then by a rename, once the new one is whole.
"""

import argparse
import enum
import importlib
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import relive
from relive import errors
from relive.buffers import column
from relive.cli import command_line
from relive.cli import formatting
from relive.cli import terminal
from relive.common import imports
from relive.persistence import checkpoint
from relive.persistence import files
from relive.persistence import inspect
from relive.persistence import settings as settings_lib
from relive.persistence import state

if TYPE_CHECKING:
    from relive.integrations import arrow as arrow_lib
    from relive.integrations import minari as minari_lib
else:
    minari_lib = imports.lazy_module("relive.integrations.minari")
    arrow_lib = imports.lazy_module("relive.integrations.arrow")

AnyBuffer: TypeAlias = "column.ColumnReplayBuffer[Any]"

_MINARI = "minari:"
_PARQUET = ".parquet"
_CHECKPOINT = ".relive"
_FORMS = f"FILE{_CHECKPOINT}, FILE{_PARQUET} or {_MINARI}ID"
_SEPARATORS = (os.sep, os.altsep or os.sep)


class Kind(enum.Enum):
    """What FROM and TO can be."""

    CHECKPOINT = "checkpoint"
    PARQUET = "Parquet file"
    MINARI = "Minari dataset"


def run(options: argparse.Namespace) -> int:
    """Convert FROM to TO; return 0."""
    target = _kind_of_target(options)
    if target is not Kind.CHECKPOINT:  # What is missing is said before anything is read.
        _ = minari_lib.to_dataset if target is Kind.MINARI else arrow_lib.write_parquet
    source = _kind_of_source(options)
    _check(options, source, target)
    _check_target(options, target)
    with terminal.progress("reading") as show:
        buffer = _read(options, source, show)
    if buffer.schema is None:
        said = formatting.plain(options.source)
        raise errors.CheckpointError(f"{said} holds no step and no schema: nothing to convert")
    with terminal.progress("writing") as show:
        num_steps, num_episodes = _write(options, target, buffer, show)
    counts = f"{formatting.counted(num_steps, 'step')} in {formatting.counted(num_episodes, 'episode')}"
    made = "" if target is not Kind.CHECKPOINT else f": a {type(buffer).__name__} of capacity {buffer.capacity:,}"
    other = "; --like PATH for another" if made and options.like is None else ""
    sys.stdout.write(f"wrote {counts} to {formatting.plain(options.target)}{made}{other}\n")
    return 0


def _kind_of_source(options: argparse.Namespace) -> Kind:
    """Return the kind of FROM, by its content and not by its name."""
    if options.source.startswith(_MINARI):
        return Kind.MINARI
    found = inspect.kind_of(files.absolute("FROM", options.source, files.ANY))
    return Kind.PARQUET if found is inspect.Kind.PARQUET else Kind.CHECKPOINT


def _kind_of_target(options: argparse.Namespace) -> Kind:
    """Return what TO is to be, by its form; exit with 2 if that says nothing."""
    text = options.target
    if text.startswith(_MINARI):
        return Kind.MINARI
    ending = pathlib.PurePath(text).suffix.lower()
    if ending not in (_PARQUET, _CHECKPOINT, "") or text.endswith(_SEPARATORS):
        rule = f"TO must be {_FORMS} (a checkpoint may have no ending)"
        options.parser.error(f"{rule}, got {text!r}{command_line.hint(ending, [_PARQUET, _CHECKPOINT])}")
    return Kind.PARQUET if ending == _PARQUET else Kind.CHECKPOINT


def _check(options: argparse.Namespace, source: Kind, target: Kind) -> None:
    """Exit with 2 if FROM, TO and the options make no sense together."""
    refuse = options.parser.error
    if source is target:
        refuse(f"FROM and TO are both a {source.value}: there is nothing to convert")
    for name in ("capacity", "like"):
        if getattr(options, name) is not None and target is not Kind.CHECKPOINT:
            refuse(f"argument --{name}: not allowed where TO is a {target.value}")
    if options.capacity is not None and options.like is not None:
        refuse("argument --capacity: not allowed with --like")
    if options.overwrite and target is Kind.MINARI:
        refuse(f"argument --overwrite: not allowed where TO is a {target.value}: delete it with minari delete")


def _check_target(options: argparse.Namespace, target: Kind) -> None:
    """Raise an error if TO cannot be made where it is, or something is there that is not to be replaced."""
    if target is Kind.MINARI:
        return
    path = files.absolute("TO", options.target, "file")
    label = files.named(path)
    if not os.path.isdir(os.path.dirname(path)):
        raise errors.ArgumentError(f"{label} cannot be made: {files.named(os.path.dirname(path))} is not a directory")
    if not options.overwrite and os.path.lexists(path):
        raise errors.ArgumentError(f"{label} exists: name another path, or pass --overwrite")
    older = checkpoint.kept(path) if target is Kind.CHECKPOINT else []
    if older:
        names = ", ".join(os.path.basename(each) for each in older)
        raise errors.CheckpointError(f"{label} has older ones beside it, which would be lost: move {names} away first")


def _read(options: argparse.Namespace, source: Kind, show: state.Progress | None) -> AnyBuffer:
    if source is Kind.CHECKPOINT:
        return _saved(files.absolute("FROM", options.source, files.ANY), show)
    if source is Kind.PARQUET:
        said = arrow_lib.describe(options.source)
        buffer = _new(options, said.schema, said.num_steps, said.streams)
        arrow_lib.add_parquet(buffer, options.source, progress=show)
        return buffer
    dataset = options.source.removeprefix(_MINARI)
    infos = minari_lib.infos_of(dataset)
    schema = minari_lib.schema_of(dataset, infos=infos)
    buffer = _new(options, schema, importlib.import_module("minari").load_dataset(dataset).total_steps, 1)
    minari_lib.add_dataset(buffer, dataset, infos=infos, progress=show)
    return buffer


def _new(options: argparse.Namespace, schema: relive.Schema, num_steps: int, streams: int) -> AnyBuffer:
    least = max(num_steps, streams, 1)
    if options.like is None:
        name, capacity = "--capacity", options.capacity or least
        buffer: AnyBuffer = relive.RingReplayBuffer(max(capacity, streams), schema, streams=streams, seed=0)
    else:
        buffer = _like(files.absolute("--like", options.like, files.ANY))
        name, capacity = f"the capacity of --like {formatting.plain(options.like)}", buffer.capacity
    if capacity < least:
        needs = f"{formatting.counted(num_steps, 'step')} of {formatting.counted(streams, 'stream')}"
        raise errors.ArgumentError(f"{name} must be at least {least} for {needs}, got {capacity}")
    return buffer


def _like(path: str) -> AnyBuffer:
    """Return a new buffer with the class and the settings of a saved one, of which nothing else is taken."""
    saved = _saved(path, None)
    settings = state.StateReader(saved._encoded_settings(), {})
    return type(saved)(**{name: settings_lib.load(settings, name) for name in settings.names()}, seed=0)


def _saved(path: str, show: state.Progress | None) -> AnyBuffer:
    """Return the buffer of a checkpoint or a journal, which stays as it is; code that is in neither is not run.

    Raises:
        CheckpointError: There is none, or it is broken, or not one of columns.
    """
    if inspect.kind_of_buffer(path) is inspect.Kind.JOURNAL:
        found = inspect.examine(path, show)
        buffer, reason = found.buffer, "; ".join(found.faults) or found.reason
    else:
        values, _ = checkpoint.read_manifest(path)
        reason = inspect.why_not(values)
        buffer = None if reason else inspect.load(path, progress=show)
    if isinstance(buffer, column.ColumnReplayBuffer):
        return buffer
    reason = reason or f"it is of {type(buffer).__name__}, whose steps are no columns"
    raise errors.CheckpointError(f"{files.named(path)} cannot be converted: {reason}")


def _write(
    options: argparse.Namespace, target: Kind, buffer: AnyBuffer, show: state.Progress | None
) -> tuple[int, int]:
    """Write the steps of a buffer to TO, and return how many steps and episodes it has then."""
    if target is Kind.MINARI:
        dataset = minari_lib.to_dataset(buffer, options.target.removeprefix(_MINARI), progress=show)
        return int(dataset.total_steps), int(dataset.total_episodes)
    if target is Kind.PARQUET:
        arrow_lib.write_parquet(buffer, options.target, overwrite=options.overwrite, progress=show)
    else:
        # Once more, for what was made meanwhile. What is made while `save` builds beside, it replaces if that is ours.
        _check_target(options, target)
        buffer.save(options.target, progress=show)
    stats = buffer.get_stats()
    return len(buffer), stats.open_episodes + stats.terminated_episodes + stats.truncated_episodes
