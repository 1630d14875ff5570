"""Arrays as .npy files, written in chunks and validated when read.

A file is identical to that of `np.save` for a C-ordered array, and `np.load` can read it. The reader here is given the
dtype and shape, and requires the header to match byte for byte. So no header is parsed, no pickle is read, and no
memory is allocated for rows that the file does not have.
"""

from collections.abc import Callable
import io
import math
import operator
import os
from typing import Any
import zlib

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import files
from relive.persistence import state

_PIECE = 1 << 18
"""Bytes that are still in the cache of the processor when they have been moved."""


def dtype_of(description: object) -> np.dtype[Any]:
    """Return the dtype of a description; raise CheckpointError if it is not valid, or values of it have no bytes."""
    dtype = dtypes.from_description(description)
    if not dtype.itemsize:
        raise errors.CheckpointError(f"dtype must have bytes, got {validation.short_repr(description)}")
    return dtype


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Raise ArgumentError if a file cannot hold values of a dtype, as it cannot hold objects or overlapping fields."""
    if not dtype.itemsize or not dtypes.has_description(dtype):
        rule = "hold no Python objects" if dtype.hasobject else "be of a dtype that a .npy file can hold"
        raise errors.ArgumentError(f"{name} must {rule}, got dtype {validation.short_repr(dtype)}")


def shape_of(column: arrays.Array | state.ChunkedArray) -> tuple[int, ...]:
    """Return the shape of a column as plain integers."""
    return tuple(map(operator.index, column.shape))


class _InAscii:
    """A description whose `repr`, which numpy writes, has the same characters in any version of the format."""

    def __init__(self, description: Any) -> None:
        self._description = description

    def __repr__(self) -> str:
        return ascii(self._description)


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return all bytes before the first row: version 1.0 of the format, 2.0 if they are too many for it."""
    members = {"descr": _InAscii(dtypes.as_numpy_writes(dtype)), "fortran_order": False, "shape": shape}
    file = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(file, members)
    except ValueError:
        np.lib.format.write_array_header_2_0(file, members)
    return file.getvalue()


def size_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return how many bytes the file of an array takes."""
    return len(header(dtype, shape)) + dtype.itemsize * math.prod(shape)


def _bytes_of(array: arrays.Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _summed(memory: memoryview, crc32: int, move: Callable[[memoryview], None]) -> int:
    """Move memory from or to a file, and return `crc32` updated with it."""
    for start in range(0, len(memory), _PIECE):
        piece = memory[start : start + _PIECE]
        move(piece)
        crc32 = zlib.crc32(piece, crc32)
    return crc32


# Writing.
def write(descriptor: int, name: str, column: arrays.Array | state.ChunkedArray, wrote: Callable[[int], None]) -> int:
    """Write an array or column, which `name` stands for in errors, to a new file, and return the CRC-32 of the file.

    Memory use beyond the column is one chunk of `state.CHUNK` bytes, or one row; a C-ordered array is not copied.
    `wrote` is called with the number of bytes of each chunk.
    """
    shape, dtype = shape_of(column), column.dtype
    crc32 = _append(descriptor, memoryview(header(dtype, shape)), 0, wrote)
    for start, stop in state.chunks(shape[0], dtype.itemsize * math.prod(shape)):
        rows = np.asarray(column[start:stop] if isinstance(column, np.ndarray) else column.read(start, stop))
        if rows.shape != (stop - start, *shape[1:]) or rows.dtype != dtype:
            rule = f"must return rows of dtype {dtype} and shape {(stop - start, *shape[1:])}"
            raise errors.ArgumentError(f"{name} {rule}, got {rows.dtype} and {rows.shape}")
        rows = np.ascontiguousarray(rows)
        if not dtypes.are_values(rows):
            raise errors.ArgumentError(f"{name} {dtypes.VALUES}")
        crc32 = _append(descriptor, _bytes_of(rows), crc32, wrote)
    return crc32


def _append(descriptor: int, memory: memoryview, crc32: int, wrote: Callable[[int], None]) -> int:
    def put(piece: memoryview) -> None:
        while piece:  # The system may write only part of it at a time.
            piece = piece[os.write(descriptor, piece) :]

    crc32 = _summed(memory, crc32, put)
    wrote(len(memory))
    return crc32


# Reading.
class Reader:
    """The rows of a file as a column; rows read in order from the first are checked against the CRC-32.

    The descriptor of the file is closed with the reader, or if size or header are wrong. `label` is the name of the
    file in errors, and `report` is called with the number of bytes of rows that were read for the first time.
    """

    def __init__(
        self,
        descriptor: int,
        label: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        crc32: int,
        report: Callable[[int], None],
    ) -> None:
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._label, self._expected_crc32, self._report = label, crc32, report
        self.dtype, self.shape = dtype, shape
        self._nbytes = dtype.itemsize * math.prod(shape)
        try:
            head = header(dtype, shape)
            self._start = len(head)
            size = os.fstat(descriptor).st_size
            if size != self._start + self._nbytes:
                raise errors.CheckpointError(f"{label} must have {self._start + self._nbytes} bytes, got {size}")
            found = bytearray(self._start)
            self._fill(memoryview(found))
            if found != head:
                raise errors.CheckpointError(f"{label} must have the header of dtype {dtype} and shape {shape}")
            self._head_crc32 = self._crc32 = zlib.crc32(head)
            self._position = self._reported = 0
            if not self._nbytes:
                self._check_crc32()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, start: int, stop: int) -> arrays.Array:
        """Return the rows in [start, stop) as a new array.

        CheckpointError is raised if reading or allocating failed, a value is invalid, or the CRC-32 differs after
        reading all rows in order.
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
        row_bytes = self._nbytes // max(length, 1)
        self._file.seek(self._start + start * row_bytes)
        if start == 0:
            self._position, self._crc32 = 0, self._head_crc32
        crc32 = _summed(_bytes_of(rows), self._crc32, self._fill)
        if start == self._position:
            self._position, self._crc32 = stop, crc32
            if stop == length:
                self._check_crc32()
            self._report(max(0, stop * row_bytes - self._reported))
            self._reported = max(self._reported, stop * row_bytes)
        if not dtypes.are_values(rows):
            raise errors.CheckpointError(f"{self._label} {dtypes.VALUES}")
        return rows

    def verify(self) -> None:
        """Read all rows once, in order; raise CheckpointError as `read` does."""
        for start, stop in state.chunks(self.shape[0], self._nbytes):
            self.read(start, stop)

    def _check_crc32(self) -> None:
        if self._crc32 != self._expected_crc32:
            raise errors.CheckpointError(
                f"{self._label} was changed: its CRC-32 must be {self._expected_crc32}, got {self._crc32}"
            )

    def _fill(self, memory: memoryview) -> None:
        with files.raising(self._label, "cannot be read"):
            while memory:
                count = self._file.readinto(memory)
                if not count:
                    raise errors.CheckpointError(f"{self._label} ends early")
                memory = memory[count:]
