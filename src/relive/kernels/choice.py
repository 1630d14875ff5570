"""Which kernels a buffer runs on: those in numpy, or those that numba compiles. Both write the same bits."""

import dataclasses
import functools
import os
import sys
import sysconfig
import types
from typing import Any

from relive import errors
from relive.common import imports
from relive.common import validation
from relive.kernels import draw
from relive.kernels import windows

VARIABLE = "RELIVE_KERNELS"
"""The environment variable that names the kernels to begin with."""
NAMES = ("numpy", "numba")


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The kernels of an object; if that is copied or unpickled, the new one has those that are chosen then and there.

    So what was pickled with those of numba can be opened where there is no numba.

    Attributes:
        name: One of `NAMES`.
    """

    name: str
    levels: Any
    settle: Any
    stratify: Any
    find: Any
    draw_uniform: Any
    follow: Any
    transitions: Any
    look_back: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return chosen, ()


def _of(name: str, *modules: types.ModuleType) -> Kernels:
    """Return the kernels of that name, which are functions of some modules."""
    functions = {call: function for module in modules for call, function in vars(module).items()}
    return Kernels(name, **{field.name: functions[field.name] for field in dataclasses.fields(Kernels)[1:]})


@functools.cache
def named(name: str) -> Kernels:
    """Return the kernels of that name; those of numba are compiled in the call.

    Raises:
        ArgumentError: This build of Python cannot run them.
        MissingExtraError: numba is not installed.
    """
    if name == "numpy":
        return _of(name, draw, windows)
    for is_such, build in ((sys.maxsize < 2**32, "32-bit"), (_is_free_threaded(), "free-threaded")):
        if is_such:
            raise errors.ArgumentError(f"kernels must be 'numpy' on a {build} build of Python, got {name!r}")
    with imports.optional_dependency("numba"):
        from relive.kernels import compiled
    compiled.compile_all()
    return _of(name, compiled)


def use_kernels(name: str) -> None:
    """Choose the kernels of all buffers that are made, loaded, copied or unpickled afterwards, in this process.

    The answers are the same, bit for bit, so a buffer may be saved or pickled with one kind and go on with the other,
    also where numba is not installed. "numba" takes some five seconds when its kernels are compiled for the first time,
    which is logged, and less than one when they come from its cache. It makes draws faster, and no writes.

    Args:
        name: "numpy", which is what they are at first, or "numba".

    Raises:
        ArgumentError: There are no such kernels, or this build of Python cannot run them.
        MissingExtraError: numba is not installed.
    """
    _choose("kernels", name)


def chosen() -> Kernels:
    """Return the kernels of what is made now."""
    return named(_chosen)


def _choose(source: str, name: str) -> None:
    global _chosen
    validation.require_choice(source, name, NAMES)
    named(name)
    _chosen = name


def _is_free_threaded() -> bool:
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


_chosen = "numpy"
if os.environ.get(VARIABLE):
    _choose(VARIABLE, os.environ[VARIABLE])
