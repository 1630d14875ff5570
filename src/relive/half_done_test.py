"""A public call that raises has changed nothing, whatever it was that failed in it."""

import random
from typing import Any

import pytest

from relive import errors
from relive.testing import allocations
from relive.testing import zoo


def trial(buffer: Any, seed: int, number: int) -> tuple[Any, bool]:
    """Make the call of a seed, in which the allocation of that number fails; return its answer and whether it did."""
    with allocations.failing(number) as count:
        try:
            answer = zoo.work(buffer, random.Random(seed), 1)
        except MemoryError:
            return None, True
        except errors.ArgumentError as error:
            if "memory" not in str(error):
                raise
            return None, True
    assert count() < number, "failed in silence"
    return answer, False


@pytest.mark.parametrize("name", zoo.KINDS)
def test_a_call_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    buffer, twin = zoo.worked(zoo.KINDS[name].make, count=40), zoo.worked(zoo.KINDS[name].make, count=40)
    tried = 0
    for seed in range(12):
        before, number = zoo.state_of(buffer), 1
        while True:
            answer, has_failed = trial(buffer, seed, number)
            if not has_failed:
                break
            tried += 1
            assert zoo.state_of(buffer) == before, (seed, number)
            zoo.check(buffer)
            number += 1
        assert answer == zoo.work(twin, random.Random(seed), 1)
        assert zoo.state_of(buffer) == zoo.state_of(twin)
    print(name, tried)
