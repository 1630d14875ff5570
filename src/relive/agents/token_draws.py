"""TokenDraws: the sequences of a token buffer as the anchors of a sampler, in a ring of slots that grows.

    key     6 7 8 9 10        the sequences that are stored
    slot    6 7 0 1 2         with 8 slots, key modulo 8

An anchor is eligible if its sequence has a token to train on. How many sequences fit into `max_tokens` is not known
beforehand, so when there are more than slots, these are doubled: the sampler goes on as if it was saved and loaded.
"""

from collections.abc import Callable, Collection, Iterator
import contextlib
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.agents import token_store
from relive.common import arrays as arrays_lib
from relive.common import claims
from relive.kernels import append
from relive.persistence import registry
from relive.persistence import state as state_lib
from relive.samplers import anchors as anchors_lib
from relive.samplers import sampler as sampler_lib
from relive.storage import ragged

_FEWEST = 8
Batch = TypeVar("Batch")


class _Anchors(anchors_lib.Anchors):
    """The anchors in `capacity` slots; `read` returns what is stored of each sequence beside its tokens."""

    def __init__(self, capacity: int, num_changes: int) -> None:
        arrays_of = np.zeros(capacity, np.uint8), np.zeros(num_changes, np.int64), np.zeros(append.PAD + 1, np.int64)
        super().__init__(arrays_of, dict)
        self.rows: ragged.RaggedColumns | None = None

    def restore(
        self,
        slots: arrays_lib.Slots,
        flags: npt.NDArray[np.uint8],
        num: arrays_lib.Ints,
        rows: ragged.RaggedColumns | None,
    ) -> None:
        """Be as before, given what has changed since; the sampler looks at all slots then. It needs no memory."""
        self.flags[slots], self.num[:], self.rows = flags, num, rows
        self.suspect_all()

    def read(self, slots: arrays_lib.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        if self.rows is None:
            raise errors.NotReadyError("read has no sequence yet: add an episode first")
        for name in () if fields is None else fields:
            if name not in self.rows.row_names:
                raise errors.ArgumentError(f"fields must be among {', '.join(self.rows.row_names)}, got {name!r}")
        keys = self.keys(slots)
        return {name: self.rows.row_values(name, keys) for name in (self.rows.row_names if fields is None else fields)}


class TokenDraws:
    """The draws of a sampler from the sequences of a store."""

    def __init__(self, sampler: sampler_lib.Sampler) -> None:
        self.sampler = sampler
        self._attach(_FEWEST)
        claims.on_failure(sampler.detach)

    def _attach(self, capacity: int) -> None:
        self.anchors = _Anchors(capacity, capacity if self.sampler.is_tracking else 0)
        self.sampler.attach(self.anchors)

    def slots(self, keys: arrays_lib.Keys) -> arrays_lib.Slots:
        """Return the slots of the stored sequences with those keys."""
        return keys % self.anchors.capacity

    # What happens in the store.

    @contextlib.contextmanager
    def following(self, store: token_store.TokenStore, gone: arrays_lib.Keys, come: arrays_lib.Keys) -> Iterator[None]:
        """Take in which sequences left the store and which came; if that or the block raises, nothing has changed.

        The sampler is told of both together, before the block. Of what was taken back it is told by the next call.
        """
        has_room = len(store) <= self.anchors.capacity
        slots = self.slots(np.concatenate([gone, come])) if has_room else np.arange(self.anchors.capacity)
        with self._all_or_nothing(slots):
            self._leave(gone)
            with contextlib.nullcontext() if has_room else self._grown(store, _keys(store)[: len(store) - len(come)]):
                self._enter(store, come)
                take_back = self.sampler.tell()
                try:
                    yield
                except BaseException:
                    take_back()
                    raise

    @contextlib.contextmanager
    def _all_or_nothing(self, slots: arrays_lib.Slots) -> Iterator[None]:
        """Put the anchors in `slots`, which may repeat, back if the block raises."""
        anchors = self.anchors
        flags, num, rows = anchors.flags[slots], anchors.num.copy(), anchors.rows
        try:
            yield
        except BaseException:
            anchors.restore(slots, flags, num, rows)
            raise

    def _enter(self, store: token_store.TokenStore, keys: arrays_lib.Keys) -> None:
        self.anchors.rows = store.rows
        self.anchors.num[append.NEXT_KEY] = store.inserted
        self.anchors.num[append.ROWS] += len(keys)
        self.anchors.set(append.READABLE, self.slots(keys[_are_trained(store, keys)]))

    def _leave(self, keys: arrays_lib.Keys) -> None:
        slots = self.slots(keys)
        self.anchors.set(append.READABLE, slots, False)
        self.anchors.flags[slots] = 0
        self.anchors.num[append.ROWS] -= len(keys)

    @contextlib.contextmanager
    def _grown(self, store: token_store.TokenStore, keys: arrays_lib.Keys) -> Iterator[None]:
        """Double the slots, where the sequences with those keys are, unless the block raises."""
        sampler, anchors = self.sampler, self.anchors
        sampler.catch_up()
        state = sampler.state_dict(self.slots(keys))
        if sampler.has_hooks:
            anchors.set(append.BARRED, anchors.slots())
            sampler.catch_up()  # The sampler begins anew.
        before = vars(sampler).copy()
        try:
            sampler.detach()
            self._attach(2 * len(store))
            self._restore(state_lib.StateReader(state, state["arrays"]), store, keys)
            yield
        except BaseException:
            self.anchors = anchors
            vars(sampler).clear()
            vars(sampler).update(before)
            raise

    # Drawing.

    def draw(
        self,
        among: arrays_lib.Keys,
        size: int,
        rng: np.random.Generator,
        beta: float | None,
        read: Callable[..., Batch],
    ) -> Batch:
        """Return what `read` makes of the keys of `size` of those sequences, their probabilities and weights [size]."""
        slots = None
        try:
            with self.only(among):
                self.sampler.tell()  # Of what a call that failed has taken back.
                slots, probabilities, weights = self.sampler.draw(size, rng, beta)
            return read(self.anchors.keys(slots), probabilities, weights)
        except BaseException:
            if slots is not None:
                self.sampler.take_back(slots)
            raise

    def shares(self, keys: arrays_lib.Keys) -> tuple[arrays_lib.Floats, arrays_lib.Floats]:
        """Return the probabilities of stored sequences in a draw now, and their importance weights [B]."""
        sampler, slots = self.sampler, self.slots(keys)
        probabilities = sampler.probabilities(slots)
        return probabilities, sampler.importance_weights(slots, probabilities)

    @contextlib.contextmanager
    def only(self, keys: arrays_lib.Keys) -> Iterator[None]:
        """Let only those of the eligible sequences be drawn in a block."""
        slots = self.anchors.slots()
        others = slots[~np.isin(slots, self.slots(keys))]
        if not len(others):
            yield
            return
        with self._all_or_nothing(others):
            self.anchors.set(append.BARRED, others)
            self.sampler.tell()
            yield
            self.anchors.set(append.BARRED, others, False)
            self.sampler.tell()

    # As a whole.

    def state_dict(self, store: token_store.TokenStore, *, is_base: bool) -> state_lib.State:
        """Return the part of a state of the buffer that is the sampler's; see `token_state`."""
        state = self.sampler.state_dict(self.slots(_keys(store)[:0] if is_base else _keys(store)))
        named = {f"sampler/{name}": array for name, array in state.pop("arrays").items()}
        return {"sampler": {"slots": self.anchors.capacity, **state}, "arrays": named}

    def twin(self) -> "TokenDraws":
        """Return new draws with a sampler of the same settings."""
        return TokenDraws(type(self.sampler)(**registry.settings_of(self.sampler, "sampler cannot be saved: ")))

    def load(self, given: state_lib.StateReader, store: token_store.TokenStore) -> None:
        """Load a state, and follow a store; raise CheckpointError if it is invalid."""
        capacity = given.integer("slots", max(len(store), _FEWEST), max(2 * store.max_tokens, _FEWEST))
        self.sampler.detach()
        self._attach(capacity)
        self._restore(given, store, _keys(store))

    def _restore(self, given: state_lib.StateReader, store: token_store.TokenStore, keys: arrays_lib.Keys) -> None:
        """Load the state of a sampler, attached anew, for the sequences with those keys."""
        slots = self.slots(keys)
        self.anchors.rows = store.rows
        self.anchors.num[[append.NEXT_KEY, append.ROWS]] = store.inserted, len(keys)
        self.anchors.flags[slots] = np.where(_are_trained(store, keys), append.READABLE, 0)
        self.anchors.recount(slots)
        self.sampler.restore(given, slots)

    def check(self, store: token_store.TokenStore) -> None:
        """Raise CorruptionError if the anchors are not the sequences to train on."""
        keys = _keys(store)
        flags = np.zeros(self.anchors.capacity, np.bool_)
        flags[self.slots(keys)] = _are_trained(store, keys)
        is_same = np.array_equal(flags, self.anchors.is_eligible(np.arange(len(flags))))
        if not is_same or self.anchors.num[append.ROWS] != len(store):
            raise errors.CorruptionError("the anchors must be the sequences with a token to train on")
        self.anchors.check()
        self.sampler.check()


def _keys(store: token_store.TokenStore) -> arrays_lib.Keys:
    """Return the keys of all sequences, the oldest first."""
    return np.arange(store.inserted - len(store), store.inserted)


def _are_trained(store: token_store.TokenStore, keys: arrays_lib.Keys) -> arrays_lib.Bools:
    """Return whether each of the sequences has a token to train on."""
    return np.zeros(0, np.bool_) if store.rows is None else store.rows.row_values("trained", keys) > 0
