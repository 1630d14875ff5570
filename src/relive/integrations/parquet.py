"""Steps as Parquet files, and back: `parquet_format` says what is in one.

A new file is built beside, synced, and renamed: a reader sees the old one or the new one, whole.
"""

from collections.abc import Iterator
import contextlib
import os
from typing import Any, TypeAlias

import numpy as np

from relive import checks
from relive import column_buffer
from relive import directories
from relive import durable
from relive import errors
from relive import extras
from relive import schema as schema_lib
from relive import states
from relive import trees
from relive.integrations import parquet_format
from relive.integrations import step_columns
from relive.integrations import stored_episodes

with extras.needed("pandas"):
    import pyarrow
    from pyarrow import parquet

Path: TypeAlias = str | os.PathLike[str]
AnyBuffer: TypeAlias = "column_buffer.ColumnReplayBuffer[Any]"


# Writing.


def write_parquet(buffer: AnyBuffer, path: Path, *, progress: states.Progress | None = None) -> None:
    """Writes all steps of a buffer into a new file, or one in the place of an older that relive wrote.

    Whoever reads `path` finds the old file or the new one, whole. It takes memory for a group of episodes, of 16 MiB or
    one episode. Priorities, the generator and counters are not in it: for those there is `buffer.save`.

    Args:
        buffer: Where the steps are.
        path: Of a file that is not there, is empty, or that `write_parquet` made; its parent must exist.
        progress: Called after each episode with the bytes read so far, and those of all rows.

    Raises:
        ArgumentError: A field is of a dtype that has no place in such a file: complex, dates, structured.
        ArgumentTypeError: An argument is of the wrong type.
        CheckpointError: Something else is at `path`, it is in use, or the system cannot write.
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
    place = directories.absolute("path", path)
    episodes = stored_episodes.stored_episodes(buffer, progress=progress)
    new, label = durable.beside(place, "new"), directories.named(place)
    try:
        with durable.locked(place):
            _check_ours(place)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            try:
                _write(new, schema, kind, episodes)
                os.replace(new, place)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new)
                raise
            directories.fsync_directory(os.path.dirname(place))
    except (OSError, pyarrow.ArrowException) as error:
        raise errors.CheckpointError(f"{label} cannot be written: {_reason(error)}") from error


def _check_ours(place: str) -> None:
    """Raises CheckpointError unless nothing is there, or an empty file, or one of ours."""
    if not os.path.lexists(place):
        return
    label = directories.named(place)
    if os.path.islink(place) or not os.path.isfile(place):
        raise errors.CheckpointError(f"{label} is not a file: name another path")
    if os.path.getsize(place):
        try:
            with _opened(place):
                pass
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{error}: name another path") from error


def _write(new: str, schema: schema_lib.Schema, kind: Any, episodes: Iterator[stored_episodes.StoredEpisode]) -> None:
    """Writes and syncs a new file."""
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | directories.STRICT, 0o666)
    with open(descriptor, "wb") as file:
        with parquet.ParquetWriter(file, kind, compression="zstd", write_page_checksum=True) as writer:
            group: list[stored_episodes.StoredEpisode] = []
            num_steps = 0
            for episode in episodes:
                group.append(episode)
                num_steps += len(episode)
                if num_steps * schema.nbytes >= states.CHUNK:
                    writer.write_table(parquet_format.table_of(schema, kind, group), num_steps)
                    group, num_steps = [], 0
            if group:
                writer.write_table(parquet_format.table_of(schema, kind, group), num_steps)
        file.flush()
        directories.fsync_file(file.fileno())


# Reading.


def describe(path: Path) -> parquet_format.Description:
    """Answers what a file that `write_parquet` made says of itself; it reads no step.

    Raises:
        ArgumentError: `path` is no path.
        CheckpointError: Nothing is there, or no file of relive's, or one that was cut, or is of another version.
    """
    with _opened(directories.absolute("path", path)) as file:
        return file.description


def schema_of(path: Path) -> schema_lib.Schema:
    """Answers what a step in a file that `write_parquet` made holds; raises what `describe` raises."""
    return describe(path).schema


def add_parquet(buffer: AnyBuffer, path: Path, *, progress: states.Progress | None = None) -> int:
    """Adds all steps in a file that `write_parquet` made to a buffer, and answers how many they are.

    Each episode goes to the stream that it came from, and an open one stays open. Keys are new ones. An episode whose
    first steps were evicted before it was written begins with the first step that is left. The file is read twice: all
    of it is checked before the first step is added.

    Args:
        buffer: Where they go; without a schema it takes that of the file.
        path: Of the file.
        progress: Called after each group of episodes with the bytes read so far, and all there are to read.

    Raises:
        ArgumentError: The buffer has no room for all of the steps, has fewer streams, or holds an episode that cannot
            be ended where one is to begin.
        ArgumentTypeError: An argument is of the wrong type.
        CheckpointError: Nothing is there, or no file of relive's, or one that was cut or damaged, or is of another
            version.
        NotReadyError: The limiter holds inserts back; the episodes before are in.
        SchemaError: The steps of the buffer hold something else.
    """
    checks.instance("buffer", buffer, column_buffer.ColumnReplayBuffer)
    states.check_progress(progress)
    with _opened(directories.absolute("path", path)) as file:
        description = file.description
        if buffer.schema is not None and buffer.schema != description.schema:
            raise errors.SchemaError(
                f"buffer must have the schema of {file.label}, {description.schema}, got {buffer.schema}"
            )
        _check_room(buffer, file, progress)
        for episode in file.episodes(progress, 1):
            _add(buffer, episode)
    return description.num_steps


def _check_room(buffer: AnyBuffer, file: "_File", progress: states.Progress | None) -> None:
    """Reads all of a file, and checks that its episodes can be added to a buffer."""
    num_steps = file.description.num_steps
    if num_steps > buffer.capacity:
        raise errors.ArgumentError(f"buffer must have a capacity of at least {num_steps} steps, got {buffer.capacity}")
    streams = {episode.stream for episode in file.episodes(progress, 0)}
    if streams and max(streams) >= buffer.streams:
        raise errors.ArgumentError(f"buffer must have at least {max(streams) + 1} streams, got {buffer.streams}")
    timeline, numbers = buffer.history.timeline, np.array(sorted(streams), np.int64)
    is_stuck = (timeline.open_handles(numbers) >= 0) & ~timeline.are_announced(numbers)
    for stream in numbers[is_stuck]:
        raise errors.ArgumentError(
            f"buffer must know the observation after the newest step of stream {stream}: add that step with "
            "next_observation"
        )


def _add(buffer: AnyBuffer, episode: stored_episodes.StoredEpisode) -> None:
    """Adds an episode to a buffer that has room for it."""
    given: Any = (episode.observations, episode.actions, episode.rewards)
    is_terminated, stream, more = episode.status == "COMPLETED", episode.stream, episode.extras
    if episode.has_final_observation and episode.status != "IN_PROGRESS":
        buffer.add_episode(given[0], given[1], given[2], is_terminated, stream=stream, **more)
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
        buffer.add(observation, action, reward, next_observation, is_end, stream=stream, **row)


class _File:
    """An open file of ours."""

    def __init__(self, place: str, file: Any) -> None:
        self.label = directories.named(place)
        self._file = file
        self.description = parquet_format.described(self.label, file)

    def episodes(self, progress: states.Progress | None, turn: int) -> Iterator[stored_episodes.StoredEpisode]:
        """Gives every episode, checked; `turn` says how often the file was read before, of two times."""
        schema, total = self.description.schema, self.description.num_steps
        num_read = turn * total
        order = parquet_format.Order()
        for number in range(self._file.num_row_groups):
            try:
                table = self._file.read_row_group(number)
            except (OSError, pyarrow.ArrowException) as error:
                raise errors.CheckpointError(f"{self.label} is damaged: {_reason(error)}") from error
            try:
                for episode in parquet_format.episodes(schema, table):
                    order.check(episode)
                    yield episode
            except errors.CheckpointError as error:
                raise errors.CheckpointError(f"{self.label} is damaged: {error}") from error
            num_read += table.num_rows
            if progress is not None:
                progress(num_read * schema.nbytes, 2 * total * schema.nbytes)


@contextlib.contextmanager
def _opened(place: str) -> Iterator[_File]:
    """Opens a file of ours.

    Raises:
        CheckpointError: There is none.
    """
    label = directories.named(place)
    try:
        file = parquet.ParquetFile(place, page_checksum_verification=True)
    except FileNotFoundError:
        raise errors.CheckpointError(f"{label} does not exist") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise errors.CheckpointError(f"{label} is no Parquet file, or was cut: {_reason(error)}") from error
    with file:
        yield _File(place, file)


def _reason(error: Exception) -> str:
    """Answers why the system or the library could not, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())
