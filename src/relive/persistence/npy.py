"""Arrays as .npy files, written in chunks and read with suspicion.

A file is what `np.save` makes of the array in the order of C, and `np.load` reads it. The reader does not: it is told
the dtype and the shape, and demands the header that the writer would write for them, byte for byte. So no header is
parsed, no pickle ever found, and no memory taken for rows that the file does not have.
"""

from collections.abc import Callable, Iterator
from concurrent import futures
import math
import operator
import os
import struct
from typing import Any
import zlib

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import files
from relive.persistence import state

_MOST_LENGTH = 2**63 - 1
MOST_AXES = 32
_GROWTH_DIGITS = 21
"""So many characters may the length of the first axis grow to, in place."""
_ALIGNMENT = 64


def dtype_of(description: object) -> np.dtype[Any]:
    """Return the dtype of a description.

    Raises:
        CheckpointError: It is no description that `dtypes.described` returns, or one of no bytes.
    """
    refused = f"dtype must be a description of values without objects, got {validation.short_repr(description)}"
    try:
        dtype = dtypes.from_descr(description)
    except errors.CheckpointError as error:
        raise errors.CheckpointError(refused) from error
    if not dtype.itemsize or dtypes.described(dtype) != description:
        raise errors.CheckpointError(refused)
    return dtype


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Check that a file can hold values of a dtype.

    Raises:
        ArgumentError: They are objects, or of no size, or their fields have titles, overlap or are out of order.
    """
    if dtype.hasobject:
        raise errors.ArgumentError(f"{name} must hold no Python objects, got dtype {validation.short_repr(dtype)}")
    try:
        is_same = dtype_of(dtypes.described(dtype)) == dtype
    except errors.CheckpointError:
        is_same = False
    if not is_same:
        raise errors.ArgumentError(
            f"{name} must be of a dtype that a .npy file can hold, got {validation.short_repr(dtype)}"
        )


def shape_of(value: object) -> tuple[int, ...]:
    """Return the shape that a list of lengths is.

    Raises:
        CheckpointError: It is none.
    """
    if type(value) is not list or not 1 <= len(value) <= MOST_AXES:
        raise errors.CheckpointError(
            f"shape must be a list of 1 to {MOST_AXES} lengths, got {validation.short_repr(value)}"
        )
    if not all(type(length) is int and 0 <= length <= _MOST_LENGTH for length in value):
        raise errors.CheckpointError(f"shape must hold lengths of at least 0, got {validation.short_repr(value)}")
    return tuple(value)


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return all bytes before the first row: version 1.0 of the format, 2.0 if they are too many for it."""
    text = f"{{'descr': {_packed(dtypes.described(dtype))!a}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (_GROWTH_DIGITS - len(repr(shape[0])))
    prefix = np.lib.format.MAGIC_PREFIX
    size = _aligned(len(prefix) + 4, len(text) + 1)
    if size < 1 << 16:
        prefix += b"\x01\x00" + struct.pack("<H", size)
    else:
        size = _aligned(len(prefix) + 6, len(text) + 1)
        prefix += b"\x02\x00" + struct.pack("<I", size)
    return prefix + text.ljust(size - 1).encode("ascii") + b"\n"


def _packed(description: Any) -> Any:
    """Return a description in tuples, as numpy writes it."""
    if isinstance(description, str):
        return description
    return [(name, _packed(part), *map(tuple, shape)) for name, part, *shape in description]


def _aligned(start: int, size: int) -> int:
    """Return the least size above `size` that, from `start` on, ends where rows may begin."""
    return size + _ALIGNMENT - (start + size) % _ALIGNMENT


def size_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return how many bytes the file of an array takes."""
    return len(header(dtype, shape)) + dtype.itemsize * math.prod(shape)


_WORTH_A_THREAD = 1 << 20
"""So many bytes take longer to sum up than a thread to start."""


def _bytes_of(array: arrays.Array) -> memoryview:
    """Return the memory of an array in the order of C."""
    return array.reshape(-1).view(np.uint8).data


# Writing.
def write(descriptor: int, name: str, column: arrays.Array | state.ChunkedArray, wrote: Callable[[int], None]) -> int:
    """Write an array or column to a new file, syncs it, and return the CRC-32 of the file.

    Beyond a column's own memory it takes one chunk of `states.CHUNK` bytes, or one row; an array in the order of C is
    not copied.

    Args:
        descriptor: Of the file.
        name: What the column is called in an error.
        column: Of a dtype that `check_dtype` lets pass, and with at least one axis.
        wrote: Is called with the number of bytes of each chunk after it was written.

    Raises:
        ArgumentError: The column returns rows of another shape or dtype, or values that are none.
        OSError: The system cannot write.
    """
    shape, dtype = tuple(map(operator.index, column.shape)), column.dtype
    head = header(dtype, shape)
    crc32 = _append(descriptor, memoryview(head), 0, wrote)
    for start, stop in state.chunks(shape[0], dtype.itemsize * math.prod(shape)):
        rows = np.asarray(column[start:stop] if isinstance(column, np.ndarray) else column.read(start, stop))
        if rows.shape != (stop - start, *shape[1:]) or rows.dtype != dtype:
            rule = f"must return rows of dtype {dtype} and shape {(stop - start, *shape[1:])}"
            raise errors.ArgumentError(f"{name} {rule}, got {rows.dtype} and {rows.shape}")
        rows = np.ascontiguousarray(rows)
        if not dtypes.are_values(rows):
            raise errors.ArgumentError(f"{name} {dtypes.VALUES}")
        crc32 = _append(descriptor, _bytes_of(rows), crc32, wrote)
    files.fsync_file(descriptor)
    return crc32


def _append(descriptor: int, memory: memoryview, crc32: int, wrote: Callable[[int], None]) -> int:
    """Write memory, and return the CRC-32 of what `crc32` is that of, and of it."""
    for start in range(0, len(memory), state.CHUNK):
        chunk = memory[start : start + state.CHUNK]
        if len(chunk) < _WORTH_A_THREAD:
            crc32 = zlib.crc32(chunk, crc32)
            _put(descriptor, chunk)
        else:  # Both let go of the interpreter, so that the sum costs no time of its own.
            with futures.ThreadPoolExecutor(1) as executor:
                summed = executor.submit(zlib.crc32, chunk, crc32)
                _put(descriptor, chunk)
                crc32 = summed.result()
        wrote(len(chunk))
    return crc32


def _put(descriptor: int, chunk: memoryview) -> None:
    """Write all of a chunk, of which the system may take a part at a time."""
    written = 0
    while written < len(chunk):
        written += os.write(descriptor, chunk[written:])


# Reading.
class Reader:
    """The rows of a file, as a column: read in order from the first one on, they are checked against the CRC-32.

    Rows read in another order are not, unless `verify` was called before.
    """

    def __init__(
        self,
        descriptor: int,
        label: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        crc32: int,
        *,
        report: Callable[[int], None],
    ) -> None:
        """Take over the descriptor of a regular file, and check size and header; no row is read.

        Args:
            descriptor: Of the file; it is closed when the reader is, also by an error here.
            label: What the file is called in an error.
            dtype: Of the values, without objects.
            shape: Of the array.
            crc32: Of the whole file.
            report: Is called with the number of bytes of rows that were read for the first time.

        Raises:
            CheckpointError: The file is of another size or has another header, or has no rows and another CRC-32.
        """
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._label, self._expected_crc32, self._report = label, crc32, report
        self.dtype, self.shape = dtype, shape
        self.nbytes = dtype.itemsize * math.prod(shape)
        """Bytes of the rows."""
        try:
            head = header(dtype, shape)
            self._start = len(head)
            size = os.fstat(descriptor).st_size
            if size != self._start + self.nbytes:
                raise errors.CheckpointError(f"{label} must have {self._start + self.nbytes} bytes, got {size}")
            found = bytearray(self._start)
            self._fill(0, memoryview(found))
            if found != head:
                raise errors.CheckpointError(f"{label} must have the header of dtype {dtype} and shape {shape}")
            self._head_crc32 = self._crc32 = zlib.crc32(head)
            self._position = 0
            self._reported = 0
            if not self.nbytes:
                self._check_crc32()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, start: int, stop: int) -> arrays.Array:
        """Return the rows in [start, stop) as an array of its own.

        Raises:
            ArgumentError: There are no such rows.
            CheckpointError: They were the last ones of all, read in order, and the CRC-32 is another; or a value is
                none; or the system cannot read or has no memory.
            ClosedError: The file was closed.
        """
        length = self.shape[0]
        if not 0 <= start <= stop <= length:
            raise errors.ArgumentError(f"rows must be in [0, {length}], got [{start}, {stop})")
        if self._file.closed:
            raise errors.ClosedError(f"{self._label} was closed: read it before")
        try:
            rows: arrays.Array = np.empty((stop - start, *self.shape[1:]), self.dtype)
        except (MemoryError, ValueError) as error:
            raise errors.CheckpointError(f"{self._label} does not fit in memory: {error}") from error
        memory = _bytes_of(rows)
        row_bytes = self.nbytes // max(length, 1)
        self._fill(self._start + start * row_bytes, memory)
        if start == 0:
            self._position, self._crc32 = 0, self._head_crc32
        if start == self._position:
            self._crc32 = zlib.crc32(memory, self._crc32)
            self._position = stop
            if stop == length:
                self._check_crc32()
            self._report(max(0, stop * row_bytes - self._reported))
            self._reported = max(self._reported, stop * row_bytes)
        if not dtypes.are_values(rows):
            raise errors.CheckpointError(f"{self._label} {dtypes.VALUES}")
        return rows

    def chunks(self) -> Iterator[arrays.Array]:
        """Yield all rows in order, in parts of about `states.CHUNK` bytes; after the last one they are verified.

        Raises:
            CheckpointError: As `read` has it.
        """
        for start, stop in state.chunks(self.shape[0], self.nbytes):
            yield self.read(start, stop)

    def verify(self) -> None:
        """Read all rows once.

        Raises:
            CheckpointError: As `read` has it.
        """
        for _ in self.chunks():
            pass

    def _check_crc32(self) -> None:
        if self._crc32 != self._expected_crc32:
            raise errors.CheckpointError(
                f"{self._label} was changed: its CRC-32 must be {self._expected_crc32}, got {self._crc32}"
            )

    def _fill(self, offset: int, memory: memoryview) -> None:
        """Read so many bytes from there on."""
        try:
            self._file.seek(offset)
            filled = 0
            while filled < len(memory):
                count = self._file.readinto(memory[filled:])
                if not count:
                    raise errors.CheckpointError(f"{self._label} ends early")
                filled += count
        except OSError as error:
            raise errors.CheckpointError(f"{self._label} cannot be read: {files.reason(error)}") from error
