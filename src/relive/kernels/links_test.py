"""Links against a naive twin: chains as lists."""

import hypothesis
from hypothesis import strategies as st
import numpy as np

from relive.kernels import chains as chains_lib

CAPACITY = 8


def assert_same(linked: chains_lib.Links, chains: list[list[int]], first_steps: list[int]) -> None:
    """Compare every answer about every row."""
    for chain, first_step in zip(chains, first_steps, strict=True):
        for place, slot in enumerate(chain):
            here = np.array([slot])
            assert linked.step[slot] == first_step + place
            for count in range(1, 5):
                ahead = [chain[min(place + k, len(chain) - 1)] for k in range(count)]
                assert linked.ahead(here, count).tolist() == [ahead]
                behind = [chain[max(place - k, 0)] for k in reversed(range(count))]
                assert linked.behind(here, count).tolist() == [behind]
            for count in range(5):
                assert linked.num_behind(here, count).tolist() == [min(place, count)]
                assert linked.earlier(here, count).tolist() == ([chain[place - count]] if place >= count else [])
    slots = np.array([slot for chain in chains for slot in chain], np.int64)
    left = [len(chain) - 1 - place for chain in chains for place in range(len(chain))]
    lasts = [chain[-1] for chain in chains for _ in chain]
    assert linked.later(slots, np.array(left, np.int64)).tolist() == lasts
    assert linked.later(slots, np.zeros(len(slots), np.int64)).tolist() == slots.tolist()
    befores = [chain[place - 1] for chain in chains for place in range(1, len(chain))]
    assert linked.earlier(slots, 1).tolist() == befores


@hypothesis.given(st.integers(0, 2**32))
def test_every_answer_equals_that_of_chains_in_lists(seed: int) -> None:
    rng = np.random.default_rng(seed)
    linked = chains_lib.Links(CAPACITY)
    chains: list[list[int]] = []
    first_steps: list[int] = []
    order: list[int] = []
    for _ in range(20):
        free = [slot for slot in range(CAPACITY) if slot not in order]
        count = int(rng.integers(1, 4))
        if count > len(free):
            gone, order = order[:count], order[count:]
            linked.cut_off(np.array(gone))
            for number, chain in enumerate(chains):
                first_steps[number] += sum(slot in gone for slot in chain)
                chains[number] = [slot for slot in chain if slot not in gone]
            assert_same(linked, chains, first_steps)
            continue
        slots = rng.permutation(free)[:count]
        chosen = rng.permutation(len(chains) + count)[:count]
        steps, before = [], []
        for slot, number in zip(slots.tolist(), chosen.tolist(), strict=True):
            if number < len(chains) and chains[number]:
                steps.append(first_steps[number] + len(chains[number]))
                before.append(chains[number][-1])
                chains[number].append(slot)
            else:
                steps.append(0)
                before.append(slot)
                chains.append([slot])
                first_steps.append(0)
        order += slots.tolist()
        linked.link(slots, np.array(steps), np.array(before))
        assert_same(linked, chains, first_steps)


def test_bytes_are_those_of_three_numbers_a_slot() -> None:
    assert chains_lib.Links(10).nbytes == 240
