import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.kernels import chains


def ring_of(capacity: int, next_key: int, count: int) -> chains.Ring:
    """Return a ring in which the `count` rows before that key are alive."""
    made = chains.Ring(capacity)
    made.next_key, made._num_rows = next_key, count
    return made


@pytest.mark.parametrize("start", [0, 2**31 - 5])
@hypothesis.given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 9))
def test_every_name_and_address_equals_the_naive_one(start: int, capacity: int, added: int, count: int) -> None:
    count = min(count, capacity, added)
    following = start + added
    made = ring_of(capacity, following, count)
    alive = list(range(following - count, following))
    places = {key % capacity: key for key in range(following - capacity, following)}
    assert len(made) == count
    assert made.is_full == (count == capacity)
    assert made.oldest_key == following - count
    slots = np.arange(capacity)
    assert made.keys(slots).tolist() == [places[slot] for slot in range(capacity)]
    assert [made.key_of_one(slot) for slot in range(capacity)] == [places[slot] for slot in range(capacity)]
    around = np.arange(following - 2 * capacity, following + capacity)
    assert made.is_alive(around).tolist() == [key in alive for key in around.tolist()]
    assert made.slots(around).tolist() == [key % capacity for key in around.tolist()]
    assert made.around(around - start - 40).tolist() == [(key - start - 40) % capacity for key in around.tolist()]
    assert made.alive_slots().tolist() == [key % capacity for key in alive]
    for number in range(capacity + 1):
        naive = [key % capacity for key in range(following, following + number)]
        assert made.free_slots(number).tolist() == naive
        assert slots[made.run(following, number)].tolist() == naive
        if number <= count:
            assert made.oldest_slots(number).tolist() == [key % capacity for key in alive[:number]]


def test_a_run_is_a_slice_up_to_the_end_of_the_ring_and_slots_beyond() -> None:
    made = ring_of(8, 0, 0)
    assert made.run(5, 3) == slice(5, 8)
    assert made.run(16, 8) == slice(0, 8)
    run = made.run(6, 3)
    assert isinstance(run, np.ndarray)
    assert run.tolist() == [6, 7, 0]
