"""Which kernels a buffer runs on: those in numpy, or those that numba compiles. Both write the same bits."""

from collections.abc import Callable
import dataclasses
import functools
import os
import sys
import sysconfig
from typing import Any

from relive import errors
from relive.common import arrays
from relive.common import imports
from relive.common import validation
from relive.kernels import append
from relive.kernels import draw
from relive.kernels import windows

VARIABLE = "RELIVE_KERNELS"
"""The environment variable that names the kernels to begin with."""
NAMES = ("numpy", "numba")


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The functions that run on flat arrays; a copy or a pickle keeps the name and finds the functions again.

    For fewer rows than `few` the loop of CPython in `kernels.append` is faster than `append`.
    """

    name: str
    settle: Callable[[arrays.Floats, arrays.Ints, arrays.Ints, arrays.Floats], None]
    stratify: Callable[[arrays.Floats, arrays.Floats, arrays.Floats, float, float], None]
    find: Callable[[arrays.Floats, arrays.Ints, arrays.Floats, arrays.Floats, arrays.Ints], None]
    eligible_among: Callable[[arrays.Ints, arrays.Floats, int, int], tuple[arrays.Ints, int]]
    append: Callable[..., None]
    follow: Callable[[arrays.Ints, arrays.Ints, int], windows.Run]
    transitions: Callable[
        [arrays.Ints, arrays.Ints, int, windows.Rewards, arrays.Floats, arrays.Array], windows.Transitions
    ]
    look_back: Callable[[Any, arrays.Ints, arrays.Ints, int], arrays.Ints]
    advance: Callable[..., int]
    few: int

    def __reduce__(self) -> tuple[Any, ...]:
        return named, (self.name,)


@functools.cache
def named(name: str) -> Kernels:
    """Return the kernels of that name; those of numba are compiled in the call.

    Raises:
        ArgumentError: This build of Python cannot run them.
        MissingExtraError: numba is not installed.
    """
    if name == "numpy":
        return Kernels(
            name,
            settle=draw.settle,
            stratify=draw.stratify,
            find=draw.find,
            eligible_among=draw.eligible_among,
            append=append.append_many,
            follow=windows.follow,
            transitions=windows.transitions,
            look_back=windows.look_back,
            advance=windows.advance_by_views,
            few=8,
        )
    for is_such, build in ((sys.maxsize < 2**32, "32-bit"), (_is_free_threaded(), "free-threaded")):
        if is_such:
            raise errors.ArgumentError(f"kernels must be 'numpy' on a {build} build of Python, got {name!r}")
    with imports.optional_dependency("numba"):
        from relive.kernels import compiled
    compiled.compile_all()
    return Kernels(
        name,
        settle=compiled.settle,
        stratify=compiled.stratify,
        find=compiled.find,
        eligible_among=compiled.eligible_among,
        append=compiled.append,
        follow=compiled.follow,
        transitions=compiled.transitions,
        look_back=compiled.look_back,
        advance=compiled.advance,
        few=2,
    )


def use_kernels(name: str) -> None:
    """Choose the kernels of all buffers that are made or loaded afterwards.

    The answers are the same, bit for bit. "numba" takes seconds when its kernels are compiled for the first time, and
    less than one when they come from its cache.

    Args:
        name: "numpy", which is what they are at first, or "numba".

    Raises:
        ArgumentError: There are no such kernels, or this build of Python cannot run them.
        MissingExtraError: numba is not installed.
    """
    _choose("kernels", name)


def chosen() -> Kernels:
    """Return the kernels of what is made now."""
    return _chosen


def _choose(source: str, name: str) -> None:
    global _chosen
    validation.require_choice(source, name, NAMES)
    _chosen = named(name)


def _is_free_threaded() -> bool:
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


_chosen = named("numpy")
if os.environ.get(VARIABLE):
    _choose(VARIABLE, os.environ[VARIABLE])
