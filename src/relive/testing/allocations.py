"""Makes numpy run out of memory at a chosen allocation, for tests that a call which raises has changed nothing.

    with allocations.failing(3) as count:
        buffer.add(...)             raises MemoryError at the third array
    count()                         3; fewer if there is no third one

Every array that numpy allocates is counted, results of methods and temporaries included: numpy's allocator is replaced
(NEP 49), of this thread alone.
"""

from collections.abc import Callable, Iterator
import contextlib
import ctypes
import importlib
from typing import Any

_Pointer, _Size = ctypes.c_void_p, ctypes.c_size_t
_Malloc = ctypes.PYFUNCTYPE(_Pointer, _Pointer, _Size)
_Calloc = ctypes.PYFUNCTYPE(_Pointer, _Pointer, _Size, _Size)
_Realloc = ctypes.PYFUNCTYPE(_Pointer, _Pointer, _Pointer, _Size)
_numpy: Any = importlib.import_module("numpy._core._multiarray_umath")
_SET_HANDLER, _GET_HANDLER = 304, 305
"""The places of PyDataMem_SetHandler and PyDataMem_GetHandler in the table of numpy's C functions."""
_NAME = b"mem_handler"


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of numpy."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", _Pointer),
        ("malloc", _Malloc),
        ("calloc", _Calloc),
        ("realloc", _Realloc),
        ("free", _Pointer),
    )


_pointer_of, _capsule_of = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
_pointer_of.restype, _pointer_of.argtypes = _Pointer, [ctypes.py_object, ctypes.c_char_p]
_capsule_of.restype, _capsule_of.argtypes = ctypes.py_object, [_Pointer, ctypes.c_char_p, _Pointer]
_functions = ctypes.cast(_pointer_of(_numpy._ARRAY_API, None), ctypes.POINTER(_Pointer))
_set_handler: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_functions[_SET_HANDLER])
_get_handler: Any = ctypes.PYFUNCTYPE(ctypes.py_object)(_functions[_GET_HANDLER])
_numpys = _Handler.from_address(_pointer_of(_get_handler(), _NAME))


class _Counter:
    """Counts allocations, of which one fails."""

    def __init__(self) -> None:
        self.count = self.fails_at = 0

    def allowed(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts, and calls `allocate` unless it is to fail."""

        def call(*arguments: Any) -> Any:
            self.count += 1
            return None if self.count == self.fails_at else allocate(*arguments)

        return call


_counter = _Counter()
# Arrays keep the handler that made them, so it lives as long as the process.
_counting = _Handler(
    b"counting",
    1,
    _numpys.context,
    _Malloc(_counter.allowed(_numpys.malloc)),
    _Calloc(_counter.allowed(_numpys.calloc)),
    _Realloc(_counter.allowed(_numpys.realloc)),
    _numpys.free,
)
_capsule = _capsule_of(ctypes.addressof(_counting), _NAME, None)


@contextlib.contextmanager
def failing(number: int) -> Iterator[Callable[[], int]]:
    """Let the allocation of that number fail, counted from 1; yield a function that returns how many there were."""
    _counter.count, _counter.fails_at = 0, number
    before = _set_handler(_capsule)
    try:
        yield lambda: _counter.count
    finally:
        _counter.fails_at = 0
        _set_handler(before)
