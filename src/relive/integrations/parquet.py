"""Steps as Parquet files, and back: `parquet_format` says what is in one.

A new file is built beside, synced, and renamed: a reader sees the old one or the new one, whole.
"""

from collections.abc import Iterator
import contextlib
import os
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations import parquet_format
from relive.integrations import replaced_file
from relive.integrations import step_columns
from relive.integrations import stored_episodes
from relive.persistence import files
from relive.persistence import state
from relive.schema import schema as schema_lib

with imports.optional_dependency("arrow"):
    import pyarrow
    from pyarrow import parquet

Path: TypeAlias = str | os.PathLike[str]
AnyBuffer: TypeAlias = "column.ColumnReplayBuffer[Any]"

_MAGIC = b"PAR1"
_GROUP = 1 << 22
"""Bytes of rows in a group, but for its last episode."""
_STEPS_A_REPORT = 256
_BROKEN = (OSError, ValueError, ArithmeticError, pyarrow.ArrowException)
"""What pyarrow raises where a file is broken."""


# Writing.


def write_parquet(
    buffer: AnyBuffer, path: Path, *, overwrite: bool = True, progress: state.Progress | None = None
) -> None:
    """Write all steps of a buffer into a new file, or one in the place of an older that relive wrote.

    A reader of `path` finds the old file or the new one, whole. It takes memory for some fifty bytes a step, and for
    a group of episodes of 4 MiB, or one that is longer, up to twenty times: for each element of an image, one byte in
    the buffer, pyarrow builds a number of four bytes and what says in which list it is. Priorities, the generator and
    counters are not in it: for those there is `buffer.save`.

    Args:
        buffer: Where the steps are.
        path: Of a file that is not there, is empty, or that `write_parquet` made; its parent must exist.
        overwrite: Whether there may be an older file; its mode is kept.
        progress: Called after each episode with the bytes read so far, and those of all rows.

    Raises:
        ArgumentError: A field has no place in such a file: it is of a dtype such as complex, dates or structured, holds
            2**31 elements, or its path is not text or is too deep.
        ArgumentTypeError: An argument is of the wrong type.
        CheckpointError: Something else is at `path`, it is in use or within what was saved, or the system cannot write.
        NotReadyError: The buffer has no schema yet.

    >>> import os, tempfile
    >>> import pandas
    >>> import relive
    >>> from relive.integrations import parquet
    >>> buffer = relive.RingReplayBuffer(10)
    >>> keys = buffer.add_episode([0, 1, 2], [1, 0], [0.0, 1.0], terminated=True)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     path = os.path.join(parent, "steps.parquet")
    ...     parquet.write_parquet(buffer, path)
    ...     print(pandas.read_parquet(path)[["episode", "step", "observation", "reward", "terminated"]])
       episode  step  observation  reward  terminated
    0        0     0            0     0.0       False
    1        0     1            1     1.0        True
    """
    schema = step_columns.known_schema("write_parquet", buffer)
    kind = parquet_format.arrow_schema(schema, buffer.streams)
    overwrite = validation.boolean("overwrite", overwrite)
    place = replaced_file.absolute("path", path)
    episodes = stored_episodes.stored_episodes(buffer, progress=progress)
    try:
        with replaced_file.replacing(place, _MAGIC, lambda: _check_free(place, overwrite)) as file:
            _write(file, schema, kind, episodes)
    except (OSError, pyarrow.ArrowException) as error:
        raise errors.CheckpointError(f"{files.named(place)} cannot be written: {_reason(error)}") from error


def _check_free(place: str, overwrite: bool) -> None:
    """Raise CheckpointError unless nothing is there, or what may be replaced: an empty file, or one of ours."""
    if not os.path.lexists(place):
        return
    label = files.named(place)
    if not overwrite:
        raise errors.CheckpointError(f"{label} exists: name another path")
    if os.path.islink(place) or not os.path.isfile(place):
        raise errors.CheckpointError(f"{label} is not a file: name another path")
    if os.path.getsize(place):
        try:
            with _opened(place):
                pass
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{error}: name another path") from error


def _write(
    file: BinaryIO, schema: schema_lib.Schema, kind: Any, episodes: Iterator[stored_episodes.StoredEpisode]
) -> None:
    with parquet.ParquetWriter(file, kind, compression="zstd", write_page_checksum=True) as writer:
        group: list[stored_episodes.StoredEpisode] = []
        num_steps = 0
        for episode in episodes:
            group.append(episode)
            num_steps += len(episode)
            if num_steps * schema.nbytes >= _GROUP:
                writer.write_table(parquet_format.table_of(schema, kind, group), num_steps)
                group, num_steps = [], 0
        if group:
            writer.write_table(parquet_format.table_of(schema, kind, group), num_steps)


# Reading.


def describe(path: Path) -> parquet_format.Description:
    """Return what a file that `write_parquet` made says of itself; it reads no step.

    Raises:
        ArgumentError: `path` is no path.
        CheckpointError: Nothing is there, or no file of relive's, or one that was cut, or is of another version.
    """
    with _opened(replaced_file.absolute("path", path)) as file:
        return file.description


def schema_of(path: Path) -> schema_lib.Schema:
    """Return what a step in a file that `write_parquet` made holds; raise what `describe` raises."""
    return describe(path).schema


def add_parquet(buffer: AnyBuffer, path: Path, *, progress: state.Progress | None = None) -> int:
    """Add all steps in a file that `write_parquet` made to a buffer, and return how many they are.

    Each episode goes to the stream that it came from, and an open one stays open. Keys are new ones. An episode whose
    first steps were evicted before it was written begins with the first step that is left. The file is read twice: all
    of it is checked before the first step is added.

    Args:
        buffer: Where they go; without a schema it takes that of the file.
        path: Of the file.
        progress: Called after each episode, and within a long one now and then, with the bytes read so far, and all
            there are to read.

    Raises:
        ArgumentError: The buffer has no room for all of the steps, has fewer streams, or holds an episode that cannot
            be ended where one is to begin.
        ArgumentTypeError: An argument is of the wrong type.
        CheckpointError: Nothing is there, or no file of relive's, or one that was cut or damaged, or is of another
            version.
        NotReadyError: The limiter holds inserts back; the steps before are in. It is asked once for an episode that
            ended with a final observation, and for each step of another: one of those can be in to a part.
        SchemaError: The steps of the buffer hold something else.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    state.check_progress(progress)
    with _opened(replaced_file.absolute("path", path)) as file:
        description = file.description
        if buffer.schema is not None and buffer.schema != description.schema:
            raise errors.SchemaError(
                f"buffer must have the schema of {file.label}, {description.schema}, got {buffer.schema}"
            )
        report = _Report(progress, description)
        _check_room(buffer, file, report)
        for episode in file.episodes():
            _add(buffer, episode, report)
    return description.num_steps


class _Report:
    """Tells how much of a file was read, which is read twice."""

    def __init__(self, progress: state.Progress | None, description: parquet_format.Description) -> None:
        self._progress = progress
        self._nbytes, self._total = description.schema.nbytes, 2 * description.num_steps
        self._num_read = 0

    def more(self, count: int) -> None:
        """Record how many more steps were read."""
        self._num_read += count
        if self._progress is not None:
            self._progress(self._num_read * self._nbytes, self._total * self._nbytes)


def _check_room(buffer: AnyBuffer, file: "_File", report: _Report) -> None:
    """Read all of a file, and check that its episodes can be added to a buffer."""
    num_steps = file.description.num_steps
    if num_steps > buffer.capacity:
        raise errors.ArgumentError(f"buffer must have a capacity of at least {num_steps} steps, got {buffer.capacity}")
    streams = set()
    for episode in file.episodes():
        streams.add(episode.stream)
        report.more(len(episode))
    if streams and max(streams) >= buffer.streams:
        raise errors.ArgumentError(f"buffer must have at least {max(streams) + 1} streams, got {buffer.streams}")
    history, numbers = buffer.history, np.array(sorted(streams), np.int64)
    is_stuck = history.is_open(numbers) & ~history.is_announced(numbers)
    for stream in numbers[is_stuck]:
        raise errors.ArgumentError(
            f"buffer must know the observation after the newest step of stream {stream}: add that step with "
            "next_observation"
        )


def _add(buffer: AnyBuffer, episode: stored_episodes.StoredEpisode, report: _Report) -> None:
    given: Any = (episode.observations, episode.actions, episode.rewards)
    is_terminated, stream, more = episode.status == "COMPLETED", episode.stream, episode.extras
    if episode.has_final_observation and episode.status != "IN_PROGRESS":
        buffer.add_episode(given[0], given[1], given[2], terminated=is_terminated, stream=stream, **more)
        report.more(len(episode))
        return
    buffer.end_episode(stream=stream)
    last = len(episode) - 1
    for step in range(len(episode)):
        # An array keeps its byte order; a scalar would not.
        observation, action, reward = [trees.rows(tree, (step, ...)) for tree in given]
        is_known = step == last and episode.has_final_observation
        next_observation = trees.rows(episode.observations, (step + 1, ...)) if is_known else None
        is_end = step == last and is_terminated
        row = trees.rows(more, (step, ...))
        buffer.add(observation, action, reward, next_observation, terminated=is_end, stream=stream, **row)
        if step == last or step % _STEPS_A_REPORT == _STEPS_A_REPORT - 1:
            report.more(step % _STEPS_A_REPORT + 1)


class _File:
    """An open file of ours."""

    def __init__(self, place: str, file: Any) -> None:
        self.label = files.named(place)
        self._file = file
        self.description = parquet_format.described(self.label, file)

    def episodes(self) -> Iterator[stored_episodes.StoredEpisode]:
        """Yield every episode, checked."""
        order = parquet_format.Order()
        for number in range(self._file.num_row_groups):
            try:
                table = self._file.read_row_group(number)
                wanted = self._file.metadata.row_group(number).num_rows
                if table.num_rows != wanted:
                    raise errors.CheckpointError(f"group {number} must have {wanted} rows, got {table.num_rows}")
                for episode in parquet_format.episodes(self.description.schema, table):
                    order.check(episode)
                    yield episode
            except (errors.CheckpointError, *_BROKEN) as error:
                raise errors.CheckpointError(f"{self.label} is damaged: {_reason(error)}") from error


@contextlib.contextmanager
def _opened(place: str) -> Iterator[_File]:
    """Open a file of ours.

    Raises:
        CheckpointError: There is none.
    """
    label = files.named(place)
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(replaced_file.opened(place))
        try:
            file = stack.enter_context(parquet.ParquetFile(raw, page_checksum_verification=True))
            ours = _File(place, file)
        except errors.CheckpointError:
            raise
        except _BROKEN as error:
            raise errors.CheckpointError(f"{label} is no Parquet file, or was cut: {_reason(error)}") from error
        yield ours


def _reason(error: Exception) -> str:
    """Return why the system or the library could not, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())
