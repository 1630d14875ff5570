"""Walks: a machine of rules is driven by seeded generators by day and by hypothesis, which shrinks, at night.

    class Stack(walks.Machine):
        often = {"push": 3}
        least = {"full": 5}

        @walks.initialize(size=walks.integers(1, 4))
        def begin(self, size): ...

        @walks.rule(when=lambda self: self.can_push(), number=walks.integers(0, 9))
        def push(self, number): ...

        @walks.invariant(every=10)
        def all_is_alike(self): ...

    TestStack = walks.tests_of(Stack)

A rule draws its arguments with functions of a `random.Random`. What a walk has reached it counts in `reached`, and its
rules are counted under their names: over all walks every rule, and every name in `least`, must be reached that often.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import random
from typing import Any, ClassVar, TypeVar

import hypothesis
from hypothesis import strategies as st
import pytest

Draw = Callable[[random.Random], Any]
_Method = TypeVar("_Method", bound=Callable[..., None])


def generator(rng: random.Random) -> random.Random:
    """Return the generator of the walk, for a rule that draws by itself."""
    return rng


def integers(low: int, high: int) -> Draw:
    """Draw from `low` to `high`, both included."""
    return lambda rng: rng.randint(low, high)


def sampled_from(values: Sequence[Any]) -> Draw:
    """Draw one of the values."""
    return lambda rng: rng.choice(values)


def maybe(draw: Draw) -> Draw:
    """Draw None in half of the cases."""
    return lambda rng: draw(rng) if rng.random() < 0.5 else None


def lists(draw: Draw, min_size: int, max_size: int) -> Draw:
    """Draw a list."""
    return lambda rng: [draw(rng) for _ in range(rng.randint(min_size, max_size))]


def subsets(values: Collection[Any], min_size: int, max_size: int) -> Draw:
    """Draw a set of some of the values."""
    return lambda rng: set(rng.sample(list(values), rng.randint(min_size, max_size)))


def tuples(*draws: Draw) -> Draw:
    """Draw one of each."""
    return lambda rng: tuple(draw(rng) for draw in draws)


BOOLEANS = sampled_from([False, True])


@dataclasses.dataclass(frozen=True)
class _Part:
    """What a method of a machine is for."""

    kind: str
    every: int = 1
    when: Callable[[Any], object] = lambda self: True
    draws: Mapping[str, Draw] = dataclasses.field(default_factory=dict)

    def __call__(self, method: _Method) -> _Method:
        vars(method)["walked"] = self
        return method


def initialize(**draws: Draw) -> _Part:
    """Mark the method that begins a walk."""
    return _Part("initialize", draws=draws)


def rule(when: Callable[[Any], object] = lambda self: True, **draws: Draw) -> _Part:
    """Mark a method as a step, which may be taken where `when` holds."""
    return _Part("rule", when=when, draws=draws)


def invariant(every: int = 1) -> _Part:
    """Mark what holds after every step; by day it is checked after every so many, and at the end."""
    return _Part("invariant", every=every)


class Machine:
    """A thing under test, its naive twin, and rules that change both."""

    often: ClassVar[Mapping[str, int]] = {}
    """How often a rule is taken beside the others, which have 1."""
    least: ClassVar[Mapping[str, int]] = {}
    """How often what `reached` counts must have happened at least, over all walks."""

    def __init__(self) -> None:
        self.reached: collections.Counter[str] = collections.Counter()

    def teardown(self) -> None:
        """End the walk, also one that failed."""


def _parts(machine: type[Machine], kind: str) -> dict[str, _Part]:
    parts = {name: getattr(getattr(machine, name), "walked", None) for name in dir(machine)}
    return {name: part for name, part in parts.items() if part is not None and part.kind == kind}


def walk(machine: type[Machine], rng: random.Random, num_steps: int, *, is_thorough: bool) -> collections.Counter[str]:
    """Take a walk and return what it reached."""
    rules, invariants = _parts(machine, "rule"), _parts(machine, "invariant")
    self, calls = machine(), list[str]()

    def call(name: str, part: _Part) -> None:
        arguments = {each: draw(rng) for each, draw in part.draws.items()}
        calls.append(f"{name}({', '.join(f'{each}={value!r}' for each, value in arguments.items())})")
        getattr(self, name)(**arguments)
        self.reached[name] += part.kind == "rule"

    try:
        for name, part in _parts(machine, "initialize").items():
            call(name, part)
        for step in range(1, num_steps + 1):
            able = [name for name, part in rules.items() if part.when(self)]
            name = rng.choices(able, [machine.often.get(name, 1) for name in able])[0]
            call(name, rules[name])
            for name, part in invariants.items():
                if is_thorough or step % part.every == 0 or step == num_steps:
                    getattr(self, name)()
    except BaseException as error:
        error.add_note("\n".join(["The walk was:", *calls]))
        raise
    finally:
        self.teardown()
    return self.reached


def _assert_reached(machine: type[Machine], reached: collections.Counter[str]) -> None:
    least = {**dict.fromkeys(_parts(machine, "rule"), 1), **machine.least}
    missed = {name: (reached[name], count) for name, count in least.items() if reached[name] < count}
    assert not missed, f"reached too seldom (found, least): {missed}"


def _seeded(machine: type[Machine], seeds: range, *, is_thorough: bool) -> None:
    reached = collections.Counter[str]()
    for seed in seeds:
        reached += walk(machine, random.Random(seed), 100, is_thorough=is_thorough)
    _assert_reached(machine, reached)


def tests_of(machine: type[Machine]) -> type:
    """Return the tests of a machine: 20 walks of 100 steps by day; at night 200 and those of hypothesis."""

    class Walks:
        def test_by_day(self) -> None:
            """The walks of seeds 0 to 19."""
            _seeded(machine, range(20), is_thorough=False)

        @pytest.mark.long
        def test_at_night(self) -> None:
            """More walks, all invariants after each step, and walks of hypothesis, which are short and shrink."""
            _seeded(machine, range(20, 220), is_thorough=True)

            @hypothesis.settings(suppress_health_check=[*hypothesis.HealthCheck])  # pyright: ignore[reportArgumentType]
            @hypothesis.given(st.randoms(use_true_random=False), st.integers(1, 100))
            def take(rng: random.Random, num_steps: int) -> None:
                walk(machine, rng, num_steps, is_thorough=True)

            take()

    return Walks
