r"""Arrays as members of an archive: a .npy file each, written in chunks and validated when read.

    \x93NUMPY\x01\x00 length {'descr': '<f8', 'fortran_order': False, 'shape': (3,), }   |  rows, in the order of C
    Member.header, made once                                                             |  Member.nbytes

The bytes are those of `np.save`, and `np.load` reads them. The reader here is given the dtype and shape, and requires
the header to match byte for byte. So no header is parsed, no pickle is read, and no memory is allocated for rows that
the file does not have.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import io
import math
import operator
import re
from typing import Any
import zlib

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import files
from relive.persistence import state

PIECE = 1 << 18
"""Bytes that are still in the cache of the processor when they have been moved."""
_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
_LONGEST_HEADER = 10_000
"""Characters of the longest header that numpy reads."""
_LONGEST_LENGTH = np.lib.format.GROWTH_AXIS_MAX_DIGITS
"""Digits for which numpy leaves room in a header, so that an array can grow in place."""
_MOST_NAME_CHARACTERS = 100


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


@dataclasses.dataclass(frozen=True)
class Member:
    """An array in an archive, apart from its values."""

    name: str
    """The name of the array, such as "rows/reward"."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @functools.cached_property
    def file(self) -> str:
        """The name of its file."""
        return file_name(self.name)

    @functools.cached_property
    def header(self) -> bytes:
        """All bytes before the first row."""
        text = f"{{'descr': {dtypes.as_numpy_writes(self.dtype)!a}, 'fortran_order': False, 'shape': {self.shape}, }}"
        text += " " * (_LONGEST_LENGTH - len(str(self.shape[0]))) if self.shape else ""
        length = len(_MAGIC) + 2 + len(text) + 1
        text += " " * (_ALIGNMENT - length % _ALIGNMENT) + "\n"
        return _MAGIC + len(text).to_bytes(2, "little") + text.encode() if len(text) <= _LONGEST_HEADER else b""

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + self.nbytes

    def check(self) -> None:
        """Raise CheckpointError if numpy could not read the file."""
        if len(self.shape) > dtypes.MOST_AXES:
            raise errors.CheckpointError(f"it must have at most {dtypes.MOST_AXES} axes, got {len(self.shape)}")
        if not self.header:
            raise errors.CheckpointError(f"its dtype and shape must take at most {_LONGEST_HEADER} characters")


def file_name(name: str) -> str:
    """Return the file name of an array, without any directory.

    Letters, digits, "_" and "-" are kept, "/" becomes ".", any other UTF-8 byte its hexadecimal number. Long names are
    cut. Long names and names with capitals, which some file systems do not distinguish, get a checksum at the end.

    >>> from relive.persistence import npy
    >>> npy.file_name("rows/observation/camera 1")
    'rows.observation.camera%201.npy'
    >>> npy.file_name("../RAM")
    '%2e%2e.RAM~84f3525f.npy'
    """
    raw = name.encode(errors="surrogatepass")
    text = re.sub(rb"[^0-9A-Za-z_/-]", lambda match: b"%%%02x" % match[0][0], raw).decode().replace("/", ".")
    if len(text) > _MOST_NAME_CHARACTERS or text != text.lower():
        text = f"{text[:_MOST_NAME_CHARACTERS]}~{zlib.crc32(raw):08x}"
    return f"{text}.npy"


def member_of(name: str, column: arrays_lib.Array | state.ChunkedArray) -> Member:
    """Return what an array or column is saved as; raise ArgumentError if no file can hold it."""
    check_dtype(f"array {name!r}", column.dtype)
    member = Member(name, column.dtype, tuple(map(operator.index, column.shape)))
    try:
        member.check()
    except errors.CheckpointError as error:
        raise errors.ArgumentError(f"array {name!r} cannot be saved: {error}") from error
    return member


def parts_of(member: Member, column: arrays_lib.Array | state.ChunkedArray) -> Iterator[memoryview]:
    """Yield the bytes of the file of an array or column: the header, then chunks.

    Memory use beyond the column is one chunk of `state.CHUNK` bytes, or one row; a C-ordered array is not copied.
    """
    yield memoryview(member.header)
    for start, stop in state.chunks(member.shape[0], member.nbytes):
        rows = np.asarray(column[start:stop] if isinstance(column, np.ndarray) else column.read(start, stop))
        if rows.shape != (stop - start, *member.shape[1:]) or rows.dtype != member.dtype:
            rule = f"must return rows of dtype {member.dtype} and shape {(stop - start, *member.shape[1:])}"
            raise errors.ArgumentError(f"array {member.name!r} {rule}, got {rows.dtype} and {rows.shape}")
        rows = np.ascontiguousarray(rows)
        if not dtypes.are_values(rows):
            raise errors.ArgumentError(f"array {member.name!r} {dtypes.VALUES}")
        yield _bytes_of(rows)
        del rows


def _bytes_of(array: arrays_lib.Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class Column:
    """The rows of an array in an open archive; rows read in order from the first are checked against the CRC-32.

    Args:
        file: The archive.
        start: Where in it the header of the array begins, which is read at once.
        label: The name of the member in errors.
        crc32: The CRC-32 of the whole member.
        report: Called with the number of bytes of rows that were read for the first time.
    """

    def __init__(
        self, member: Member, file: io.FileIO, start: int, label: str, crc32: int, report: Callable[[int], None]
    ) -> None:
        self.member, self.dtype, self.shape = member, member.dtype, member.shape
        self._file, self._label, self._expected_crc32, self._report = file, label, crc32, report
        self._start, self._nbytes = start + len(member.header), member.nbytes
        self._row_bytes = self._nbytes // max(self.shape[0], 1)
        file.seek(start)
        if file.read(len(member.header)) != member.header:
            raise errors.CheckpointError(f"{label} must have the header of dtype {self.dtype} and shape {self.shape}")
        self._head_crc32 = self._crc32 = zlib.crc32(member.header)
        self._position = self._reported = 0
        if not self._nbytes:
            check_crc32(label, self._expected_crc32, self._crc32)

    def read(self, start: int, stop: int) -> arrays_lib.Array:
        """Return the rows in [start, stop) as a new array; errors are those of `read_into`."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise errors.ArgumentError(f"rows must be in [0, {self.shape[0]}], got [{start}, {stop})")
        try:
            rows: arrays_lib.Array = np.empty((stop - start, *self.shape[1:]), self.dtype)
        except (MemoryError, ValueError) as error:
            raise errors.CheckpointError(f"{self._label} does not fit in memory: {error}") from error
        self.read_into(rows, start)
        return rows

    def read_into(self, rows: arrays_lib.Array, start: int) -> None:
        """Read the rows from `start` on into a C-ordered array.

        CheckpointError is raised if reading failed, a value is invalid, or the CRC-32 differs after reading all rows in
        order.
        """
        if self._file.closed:
            raise errors.ClosedError(f"{self._label} was closed: read it before")
        if start == 0:
            self._position, self._crc32 = 0, self._head_crc32
        memory, crc32, stop = _bytes_of(rows), self._crc32, start + len(rows)
        with files.raising(self._label, "cannot be read"):
            self._file.seek(self._start + start * self._row_bytes)
            for begin in range(0, len(memory), PIECE):
                piece = memory[begin : begin + PIECE]
                if not files.read_into(self._file, piece):
                    raise errors.CheckpointError(f"{self._label} ends early")
                crc32 = zlib.crc32(piece, crc32)
        if start == self._position:
            self._position, self._crc32 = stop, crc32
            if stop == self.shape[0]:
                check_crc32(self._label, self._expected_crc32, crc32)
            self._report(max(0, stop * self._row_bytes - self._reported))
            self._reported = max(self._reported, stop * self._row_bytes)
        if not dtypes.are_values(rows):
            raise errors.CheckpointError(f"{self._label} {dtypes.VALUES}")

    def verify(self) -> None:
        """Read all rows once, in order; raise CheckpointError as `read_into` does."""
        for start, stop in state.chunks(self.shape[0], self._nbytes):
            self.read(start, stop)


def check_crc32(label: str, expected: int, found: int) -> None:
    """Raise CheckpointError if the checksum of a member is another than the expected one."""
    if found != expected:
        raise errors.CheckpointError(f"{label} was changed: its CRC-32 must be {expected}, got {found}")
