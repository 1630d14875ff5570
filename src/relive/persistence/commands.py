"""Commands: the calls that change a buffer, as records of its journal.

    a call       abort("1b4e28ba-...")                  a method and its arguments
    its record   its kind, and PlainCodec of the tuple of the arguments
    its replay   the types are checked, then the method of that name is called

A table says for each kind of record which method it stands for, and what its arguments may be.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any, TypeAlias

from relive import errors
from relive.common import validation
from relive.persistence import codec as codec_lib
from relive.persistence import journal as journal_lib

Check: TypeAlias = Callable[[Any], bool]
Table: TypeAlias = Mapping[int, tuple[str, tuple[Check, ...]]]
"""By kind: the name of a method, and a check of each argument."""
_PLAIN = codec_lib.PlainCodec()


def encoded(*arguments: Any) -> bytes:
    """Return the record of a call with those arguments."""
    return _PLAIN.encode(arguments)


class Writer(journal_lib.Bound):
    """Writes commands to a journal, before they are carried out."""

    def write(self, kind: int, *arguments: Any) -> None:
        """Write a command."""
        self.write_record(kind, encoded(*arguments))


def replay(table: Table, target: Any, kind: int, payload: bytes) -> None:
    """Make the call of a record, which is untrusted, to a target; raise CheckpointError if it is malformed."""
    if kind not in table:
        raise errors.CheckpointError(f"is of kind {kind} with {len(payload)} bytes, which is not valid here")
    method, checks = table[kind]
    getattr(target, method)(*checked(f"calls {method.lstrip('_')}", checks, _PLAIN.decode(payload)))


def checked(what: str, checks: tuple[Check, ...], values: Any) -> tuple[Any, ...]:
    """Return the values of a tuple, which is untrusted; the CheckpointError for others begins with `what`."""
    wrong = [values]
    if type(values) is tuple and len(values) == len(checks):
        wrong = [value for check, value in zip(checks, values, strict=True) if not check(value)]
    if wrong:
        raise errors.CheckpointError(f"{what}, which cannot be with {validation.short_repr(wrong[0])}")
    return tuple(values)


def is_a(*kinds: type) -> Check:
    """Return what tells whether a value is of exactly one of those types."""
    return lambda value: type(value) in kinds


is_text, is_bytes, is_bool = is_a(str), is_a(bytes), is_a(bool)


def is_count(value: Any) -> bool:
    """Return whether a value is an integer from 0 to 2^62."""
    return type(value) is int and 0 <= value <= validation.LARGEST


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite float."""
    return type(value) is float and math.isfinite(value)


def one_of(*texts: str) -> Check:
    """Return what tells whether a value is one of those strings."""
    return lambda value: type(value) is str and value in texts


def list_of(check: Check) -> Check:
    """Return what tells whether a value is a list of such values."""
    return lambda value: type(value) is list and all(map(check, value))


is_texts = list_of(is_text)


def or_none(check: Check) -> Check:
    """Return what also accepts None."""
    return lambda value: value is None or check(value)
