"""`import relive` gives every public name, and imports it when it is first used."""

import ast
import importlib
import pathlib
import subprocess
import sys
import types

import pytest

import relive

NAMES: list[str] = vars(relive)["__all__"]
"""Type checkers know them one by one."""


def listed_for_type_checkers() -> dict[str, str]:
    """Return the module of each name that type checkers see."""
    tree = ast.parse(pathlib.Path(relive.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "relive"]
    return {str(alias.asname): str(node.module) for node in imports for alias in node.names}


def printed(program: str) -> str:
    """Return the output of a new Python process."""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_public_names_are_those_of_the_stub() -> None:
    assert sorted(listed_for_type_checkers()) == NAMES
    assert len(NAMES) > 90


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_the_object_of_its_module(name: str) -> None:
    module = importlib.import_module(listed_for_type_checkers()[name])
    assert getattr(relive, name) is getattr(module, name)
    assert vars(relive)[name] is getattr(module, name)


def test_a_name_is_there_before_its_module_is_imported() -> None:
    program = """
import sys, relive
print([name for name in sys.modules if name.startswith(("relive.", "numpy"))])
print({*relive.__all__, "__version__"} <= {*dir(relive)})
relive.Episode
print("relive.storage.memory" in sys.modules)
relive.RingReplayBuffer
print("asyncio" in sys.modules)
relive.ThreadSafeReplayBuffer
print("asyncio" in sys.modules)
print(relive.errors.NotReadyError is relive.NotReadyError)
from relive import *
print(RingReplayBuffer.__name__, relabel.__name__)
"""
    expected = ["[]", "True", *["False"] * 3, "True", "RingReplayBuffer relabel"]
    assert printed(program).splitlines() == expected


def test_existing_names_are_public() -> None:
    names = [name for name in dir(relive) if not name.startswith("_")]
    assert [name for name in names if not isinstance(getattr(relive, name), types.ModuleType)] == NAMES


def test_dir_lists_only_public_names() -> None:
    names = {name for name in dir(relive) if not name.startswith("__")}
    assert names == {*NAMES, "errors", "integrations", "testing"}
    assert "__version__" in dir(relive)


def test_public_modules_need_no_import() -> None:
    program = """
import sys, relive
print(relive.testing.SamplerTests.__name__, relive.errors.MisuseWarning.__name__)
print([name for name in dir(relive.integrations) if not name.startswith("__")])
print([name for name in sys.modules if name.startswith("relive.integrations.")])
print(relive.integrations.stored_episodes is sys.modules["relive.integrations.stored_episodes"])
print(hasattr(relive.integrations, "tensorflow"))
"""
    folder = pathlib.Path(relive.__file__).parent / "integrations"
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.endswith(("_test", "__"))} | {"gymnasium"}
    public = sorted(modules - {"step_columns", "tensor_storage"})
    assert printed(program).splitlines() == ["SamplerTests MisuseWarning", str(public), "[]", "True", "False"]


def test_integrations_are_listed_and_others_are_missing() -> None:
    module = importlib.import_module("relive.integrations.stored_episodes")
    assert relive.integrations.stored_episodes is module
    assert {"stored_episodes", "torch", "__name__"} <= {*dir(relive.integrations)}
    assert vars(relive.integrations)["__getattr__"]("stored_episodes") is module
    with pytest.raises(AttributeError, match="^module 'relive.integrations' has no attribute 'tensorflow'$"):
        _ = relive.integrations.tensorflow  # type: ignore[attr-defined]
