"""Blocks for one kind of `with`: in the other kind, the error says what to use there."""

import contextlib
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from relive import errors

T = TypeVar("T")


class PlainBlock(contextlib.AbstractContextManager[T], Generic[T]):
    """The block of a context manager; `async with` raises ArgumentTypeError with that message."""

    def __init__(self, inside: contextlib.AbstractContextManager[T], refusal: str) -> None:
        self._inside, self._refusal = inside, refusal

    def __enter__(self) -> T:
        return self._inside.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        return self._inside.__exit__(*raised)

    async def __aenter__(self) -> NoReturn:
        raise errors.ArgumentTypeError(self._refusal)

    __aexit__: ClassVar[None] = None
    """Never called, and looked up before `__aenter__` is called."""


class AsyncBlock(contextlib.AbstractAsyncContextManager[T], Generic[T]):
    """The block of an async context manager; a plain `with` raises ArgumentTypeError with that message."""

    def __init__(self, inside: contextlib.AbstractAsyncContextManager[T], refusal: str) -> None:
        self._inside, self._refusal = inside, refusal

    async def __aenter__(self) -> T:
        return await self._inside.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._inside.__aexit__(*raised)

    def __enter__(self) -> NoReturn:
        raise errors.ArgumentTypeError(self._refusal)

    __exit__: ClassVar[None] = None
    """Never called, and looked up before `__enter__` is called."""
