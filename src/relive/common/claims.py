"""Claims: an object that two owners would spoil for each other is used by one alone, as long as that owner is there."""

from collections.abc import Callable, Iterator
import contextlib
import functools
import gc
import threading
from typing import Any
import weakref

from relive import errors

_OWNERS: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
"""The owner of each claimed object, by its id: the owner holds it, so no other has that id meanwhile."""


class _Blocks(threading.local):
    """The blocks of `kept_on_success` that a thread is in: how many, and what gives up what was claimed in them."""

    def __init__(self) -> None:
        self.depth = 0
        self.made: list[Callable[[], object]] = []


_BLOCKS = _Blocks()


def claim(name: str, claimed: object, owner: object) -> None:
    """Claim an argument of that name for an owner, in a block of `kept_on_success`.

    Raises:
        ArgumentError: It has an owner.
    """
    if id(claimed) in _OWNERS:
        gc.collect()  # Its owner may be part of a cycle that nobody holds any more.
    other = _OWNERS.setdefault(id(claimed), owner)
    if other is not owner:
        remedy = "make another one, or delete that buffer before"
        raise errors.ArgumentError(
            f"{name} must belong to one buffer alone, got that of a {type(other).__name__}: {remedy}"
        )
    on_failure(functools.partial(_OWNERS.pop, id(claimed), None))


def on_failure(undo: Callable[[], object]) -> None:
    """Call a function if the block of `kept_on_success` that runs raises; it gives up something else that was taken."""
    if _BLOCKS.depth:
        _BLOCKS.made.append(undo)


def give_up(before: int = 0) -> None:
    """Give up what was claimed in the blocks of `kept_on_success` that run, but for the first `before` claims."""
    while len(_BLOCKS.made) > before:
        _BLOCKS.made.pop()()


@contextlib.contextmanager
def kept_on_success() -> Iterator[None]:
    """Give up what is claimed in a block that raises: its owner may live on in the traceback."""
    before = len(_BLOCKS.made)
    _BLOCKS.depth += 1
    try:
        yield
    except BaseException:
        give_up(before)
        raise
    finally:
        _BLOCKS.depth -= 1
        if not _BLOCKS.depth:
            _BLOCKS.made.clear()
