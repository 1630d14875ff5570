from typing import Any

import pytest

from relive import errors
from relive.common import words


class Named:
    def __init_subclass__(cls) -> None:
        words.name_methods(cls)


class Base(Named):
    def call(self) -> str:
        """Return its name."""
        return "base"

    @classmethod
    def make(cls, *, kind: int = 3) -> Any:
        return cls, kind

    size = property(lambda self: 3)


class Left(Base):
    pass


class Right(Base):
    def call(self) -> str:
        return "right"


class Both(Left, Right):
    def call(self) -> str:
        return f"both and {super().call()}"


class Neither(Left, Right):
    pass


def test_methods_are_found_in_the_order_of_python() -> None:
    """A copy does not hide the method of another base."""
    assert [kind().call() for kind in (Base, Left, Right, Both, Neither)] == [
        "base", "base", "right", "both and right", "right",
    ]  # fmt: skip


def test_a_class_has_the_methods_that_it_inherits() -> None:
    assert Neither.call.__qualname__ == "Neither.call"
    assert (Base.call.__qualname__, Right.call.__qualname__) == ("Base.call", "Right.call")
    made: Any = Neither.make
    assert made() == (Neither, 3)
    assert (made.__qualname__, made.__func__.__kwdefaults__) == ("Neither.make", {"kind": 3})
    assert (Neither().size, "size" in vars(Neither)) == (3, False)


def test_a_copy_is_like_the_method() -> None:
    class Fresh(Base):
        pass

    copy = vars(Fresh)["call"]
    assert (copy.__doc__, copy.__module__, copy.__name__) == ("Return its name.", __name__, "call")
    assert (copy.__code__, copy.__annotations__) == (Base.call.__code__, Base.call.__annotations__)


def test_a_module_that_is_not_imported_yet_is_named() -> None:
    error = words.missing_name("relive", "bench", ())
    assert (type(error), str(error)) == (
        AttributeError,
        "module 'relive' has no attribute 'bench': import relive.bench first",
    )


def test_a_foreign_word_is_no_extra_unless_declared() -> None:
    words.refuse_extras({"done": 1, "bogus": 2}, {"done"})
    with pytest.raises(errors.SchemaError, match="^unknown extra 'obs': say observation$"):
        words.refuse_extras({"done": 1, "obs": 2}, {"done"})
