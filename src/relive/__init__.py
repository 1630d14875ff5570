"""relive: the replay memory of reinforcement learning, in pure Python on numpy alone.

Public names are imported lazily, on first use: `import relive` loads neither asyncio nor numpy before they are needed.
The stub beside this file lists them, for type checkers and for this module alike.
"""

import importlib

__version__ = "0.2.0"


def _modules() -> dict[str, str]:
    """Return the module of each name in the stub, whose lines are `from module import name as name`."""
    stub = __spec__.loader.get_data(f"{__path__[0]}/__init__.pyi").decode()
    imports = [line.split() for line in stub.splitlines() if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in imports}


_MODULES = _modules()
__all__ = sorted(name for name, module in _MODULES.items() if module != __name__)


def __getattr__(name: str) -> object:
    """Import and return a public name or module (PEP 562)."""
    module = _MODULES.get(name)
    if module is None:
        raise importlib.import_module("relive.common.words").missing_name(__name__, name, _MODULES)
    if module == __name__:
        return importlib.import_module(f"relive.{name}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    """Return the public names and modules, imported or not, and what every module has."""
    return sorted([*_MODULES, *(name for name in globals() if name.startswith("__"))])
