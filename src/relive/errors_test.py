import importlib

import pytest

from relive import errors
from relive.common import imports


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (errors.ArgumentError, [ValueError]),
        (errors.ArgumentTypeError, [TypeError, ValueError]),
        (errors.UnknownEpisodeError, [ValueError, KeyError]),
        (errors.UnknownKeyError, [ValueError, KeyError]),
        (errors.OutOfRangeError, [ValueError, IndexError]),
        (errors.SchemaError, [ValueError]),
        (errors.NotReadyError, [ValueError, RuntimeError]),
        (errors.ClosedError, [RuntimeError]),
        (errors.EventLoopError, [RuntimeError]),
        (errors.SamplerError, [RuntimeError]),
        (errors.CorruptionError, []),
        (errors.CheckpointError, []),
        (errors.MissingExtraError, [ImportError]),
    ],
)
def test_every_error_is_caught_by_its_bases(error: type[Exception], bases: list[type[Exception]]) -> None:
    expected: list[type[Exception]] = [errors.ReplayError, *bases]
    for base in expected:
        with pytest.raises(base, match=r"^the thing must be so, got this$"):
            raise error("the thing must be so, got this")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, errors.ReplayError):
            assert f" {name} " in errors.__doc__ or f" {name}\n" in errors.__doc__, name


def test_a_key_error_is_not_quoted() -> None:
    assert str(errors.UnknownEpisodeError("episode x not found")) == "episode x not found"


def test_a_missing_library_names_the_extra() -> None:
    message = '^no_such_module is not installed: it comes with the extra "x" of relive$'
    with pytest.raises(errors.MissingExtraError, match=message), imports.optional_dependency("x"):
        importlib.import_module("no_such_module")


def test_an_installed_library_is_imported() -> None:
    with imports.optional_dependency("x"):
        module = importlib.import_module("json")
    assert module.loads("1") == 1


def test_an_error_message_is_always_one_line() -> None:
    assert str(errors.ArgumentError("episode a\nb\u2028c not found")) == "episode a b c not found"
