"""Checkpointable: saving and loading of buffers, as a file or as a state dict."""

import abc
from collections.abc import Callable
import contextlib
import dataclasses
import math
import os
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self, TypeVar

import numpy as np

from relive import errors
from relive.common import claims
from relive.common import duplicates
from relive.common import imports
from relive.common import notebook
from relive.common import randomness
from relive.common import validation
from relive.common import words
from relive.persistence import registry
from relive.persistence import state as state_lib

if TYPE_CHECKING:
    from relive.persistence import checkpoint
    from relive.persistence import codec as codec_lib
    from relive.persistence import generators
    from relive.persistence import journal as journal_lib
    from relive.persistence import settings as settings_lib
else:
    checkpoint = imports.lazy_module("relive.persistence.checkpoint")
    codec_lib = imports.lazy_module("relive.persistence.codec")
    generators = imports.lazy_module("relive.persistence.generators")
    journal_lib = imports.lazy_module("relive.persistence.journal")
    settings_lib = imports.lazy_module("relive.persistence.settings")


T = TypeVar("T")
_MADE_BY_DEFAULT = ("MinSize(1)", "<UniformSampler>")
"""The limiter and the sampler that a buffer makes if none is given."""


class Replay(Protocol):
    """Replays the records of a journal."""

    def base(self, number: int) -> None:
        """Begin a segment whose first record has that number."""

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record, or raise CheckpointError."""

    def end(self) -> None:
        """Finish: there are no more records."""


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a buffer in a journal: the records of it that the buffer has applied, and what replayed them."""

    journal_id: str
    """16 random bytes, in hexadecimal."""
    num_records: int
    replay: Replay | None
    written: tuple[int, ...]
    """The result of the buffer's `_written` at that time."""
    abandoned: tuple[list[str], ...] = ()
    """The groups given up by each call of `abort_open_episodes` since, to be journaled by `attach`."""


class Checkpointable(registry.Remembering, duplicates.CopiedWhole, abc.ABC):
    """A buffer that can be saved and loaded.

    A loaded buffer gives the same batches as the saved one would have, bit for bit: data, keys, priorities, the random
    generator, the limiter's counts and open episodes are all restored.
    """

    _NOT_KEPT: ClassVar[frozenset[str]] = frozenset({"seed", "storage", "allocate"})
    _DRAWS: ClassVar[bool] = True
    """Whether there is a generator."""
    _HAS_OBJECTS: ClassVar[bool] = False
    """Whether it holds objects, which a codec makes bytes of."""
    _rng: np.random.Generator

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Register the class by name."""
        super().__init_subclass__(**keywords)
        BUFFERS.add(cls)

    if not TYPE_CHECKING:  # A type checker would take any attribute for one that exists.

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError that says relive's word, if `name` is another library's."""
            if name not in words.METHODS:
                return self.__getattribute__(name)  # It raises the error, also that of a property.
            raise words.missing_attribute(self, name, dir(type(self)), words.METHODS, 1)

    def __bool__(self) -> bool:
        """Raise ArgumentTypeError: an empty buffer would be False, so `buffer or other` would drop it."""
        raise validation.ambiguous_truth(self)

    def __getitem__(self, place: Any) -> NoReturn:
        """Raise ArgumentTypeError that names what returns steps: rows go by keys, and go away."""
        raise words.no_rows(self)

    __iter__: ClassVar[None] = None
    """Not iterable: Python would otherwise ask for the rows 0, 1 and so on."""

    def _repr_html_(self) -> str:
        return notebook.table(repr(self), self._described_fields())

    def _described_fields(self) -> list[notebook.Row]:
        """Return a table row for each stored field, if known."""
        return []

    def _others_set(self, *but: str) -> str:
        """Return the settings that are not the constructor's defaults, for a `repr`, apart from some."""
        shown = {name: value for name, value in self.settings().items() if repr(value) not in _MADE_BY_DEFAULT}
        return registry.changed(type(self), {name: value for name, value in shown.items() if name not in but})

    @abc.abstractmethod
    def _state_dict(self, **options: Any) -> state_lib.State:
        """Return the state apart from settings and generator; `save` and `load` pass on options, such as a codec."""

    @abc.abstractmethod
    def _load_state_dict(self, given: state_lib.StateReader, **options: Any) -> None:
        """Restore a state apart from the generator, possibly forged, in a new buffer or one of `_twin`."""

    def _twin(self) -> Self:
        """Return a buffer to restore a state in, with parts of its own where `_load_state_dict` changes them."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def _swap(self, twin: Any) -> None:
        """Go on from the parts of a buffer in which a state was restored, which may be this one."""
        vars(self).update(vars(twin))

    def save(self, path: str | os.PathLike[str], *, keep: int = 1, progress: state_lib.Progress | None = None) -> None:
        """Save the buffer as a checkpoint, one file, replacing an older checkpoint at the same path.

        The file is a zip archive, of which `np.load` shows the arrays. It is written beside `path`, synced to disk and
        renamed, so a reader finds either the old one or the new one, complete, even after a crash. Memory use is
        one chunk of a column, 16 MiB.

        Args:
            path: The file: must be missing, empty, or a checkpoint. No suffix is added.
            keep: Number of checkpoints to keep: this one at `path`, earlier ones at `path.1`, `path.2` and so on.
            progress: Called periodically with the number of bytes written so far and the total.

        Raises:
            ArgumentError: `keep` is not an integer of at least 1, or `path` is not a path.
            CheckpointError: `path` is something other than a checkpoint, another writer holds it, it could not be
                written, or something cannot be saved.
        """
        checkpoint.save(self._full_state(), path, keep=keep, progress=progress)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        codec: "codec_lib.Codec | None" = None,
        progress: state_lib.Progress | None = None,
        **overrides: Any,
    ) -> Self:
        """Load the buffer that was saved at `path`.

        Args:
            path: The file.
            codec: The codec it was saved with, for a buffer of objects; a PlainCodec if None.
            progress: Called periodically with the number of bytes read so far and the total.
            overrides: Constructor arguments that override the saved ones, and those that are not saved, such as a
                storage. Objects of custom classes are restored if the class is defined.

        Raises:
            ArgumentError: A codec is given for a buffer without objects.
            CheckpointError: There is no checkpoint, or it is damaged, of another class or codec, or of a newer version.
        """
        coded(cls, codec)
        with checkpoint.opened(path, progress=progress) as state:
            return cls.from_state(state, codec=codec, **overrides)

    @classmethod
    def from_state(cls, state: state_lib.State, *, codec: "codec_lib.Codec | None" = None, **overrides: Any) -> Self:
        """Return a new buffer with a state from `state_dict`, which is copied.

        Args:
            state: The state.
            codec: As in `load`.
            overrides: As in `load`.

        Raises:
            ArgumentError: As in `load`.
            CheckpointError: The state is invalid, or of another class or codec.
        """
        with claims.kept_on_success():
            return cls._loaded(state, overrides, **coded(cls, codec))._restarted()

    def state_dict(self, *, codec: "codec_lib.Codec | None" = None) -> state_lib.State:
        """Return the state of the buffer as a dict of JSON values, with arrays by name under "arrays".

        Nothing in it is shared with the buffer. Of objects, a codec makes bytes, as in `save`.

        Raises:
            ArgumentError: A codec is given for a buffer without objects.
            CheckpointError: Something cannot be saved.
        """
        return state_lib.whole(self._full_state(**coded(type(self), codec)))

    def load_state_dict(self, state: state_lib.State, *, codec: "codec_lib.Codec | None" = None) -> None:
        """Restore the buffer to a state from `state_dict`, which is copied, and the codec of that call, if any.

        The settings must match those of the state; but a buffer without a schema takes that of the state. Writers of
        episodes that are not in it raise UnknownEpisodeError.

        Raises:
            ArgumentError: A codec is given for a buffer without objects.
            CheckpointError: The state is invalid for this buffer. Nothing has changed.
        """
        self._load_state(state, **coded(type(self), codec))

    def _encoded_settings(self) -> dict[str, Any]:
        """Return the settings as JSON values; raise CheckpointError if some are missing."""
        kind, found = type(self), registry.settings_of(self)
        taken = registry.parameters(kind)
        for name in (*found, *(["seed"] if self._DRAWS else [])):
            if name not in taken:
                raise errors.CheckpointError(f"the constructor of {kind.__name__} must take {name} to be loaded")
        return {name: settings_lib.encoded(value, name) for name, value in found.items()}

    def _full_state(self, **options: Any) -> state_lib.State:
        return self._described(self._state_dict, **options)

    def _described(self, state: Callable[..., state_lib.State], **options: Any) -> state_lib.State:
        return {
            "class": type(self).__name__,
            "settings": self._encoded_settings(),
            "generator": generators.state_of(self._rng) if self._DRAWS else None,
            **state(**options),
        }

    def _load_state(self, state: state_lib.State, **options: Any) -> None:
        given = self._given(state)
        saved = given.part("settings")
        for name, own in self._encoded_settings().items():
            other = saved.value(name)
            # A buffer without a schema takes that of the state.
            if not settings_lib.are_same(own, other) and not (name == "schema" and own is None):
                raise errors.CheckpointError(
                    f"settings/{name} must be {own!r}, as in this object, got {validation.short_repr(other)}"
                )
        for name, array in state["arrays"].items():
            if not isinstance(array, np.ndarray):  # A column could turn out to be damaged when half of it is read.
                raise errors.CheckpointError(f"array {name} must be an array, got {validation.short_repr(array)}")
        rng = self._generator(given)
        if rng is not None:
            generators.check_kind(self._rng, rng)
        twin = self._twin()
        try:
            twin._load_state_dict(given, **options)
        except state_lib.MissingArrayError as error:
            rule = "state must be all that state_dict returned"
            remedy = "what fills a state in place needs a buffer with the schema, or the bytes of a file"
            raise errors.CheckpointError(f"{rule}, but {error}: {remedy}") from error
        with randomness.Unmoved(self._rng) if self._DRAWS else contextlib.nullcontext():
            if rng is not None:
                self._rng.bit_generator.state = rng.bit_generator.state
            self._swap(twin)
        self._restarted()

    def _restarted(self) -> Self:
        """Do what a restart requires once the state is restored, and return the buffer."""
        return self

    @classmethod
    def _given(cls, state: Any) -> state_lib.StateReader:
        given = state_lib.StateReader(state, state.get("arrays") if isinstance(state, dict) else None)
        name = given.text("class")
        if name != cls.__name__:
            name = name if name.isidentifier() and len(name) < 100 else validation.short_repr(name)
            raise errors.CheckpointError(f"the state is of a {name}, and not of a {cls.__name__}: use {name}")
        return given

    @classmethod
    def _generator(cls, given: state_lib.StateReader) -> np.random.Generator | None:
        if cls._DRAWS:
            return generators.load(given.part("generator"))
        if given.value("generator") is not None:
            raise given.refused("generator", "null", given.value("generator"))
        return None

    @classmethod
    def _loaded(cls, state: state_lib.State, overrides: dict[str, Any], **options: Any) -> Self:
        given = cls._given(state)
        saved = given.part("settings")
        names = registry.parameters(cls).keys() - cls._NOT_KEPT - overrides.keys()
        arguments = {name: settings_lib.load(saved, name) for name in sorted(names)}
        rng = cls._generator(given)
        arguments = {**({} if rng is None else {"seed": rng}), **overrides, **arguments}
        try:
            buffer = cls(**arguments)
        except (errors.ArgumentError, MemoryError, OverflowError, TypeError, ValueError) as error:
            raise errors.CheckpointError(f"a {cls.__name__} cannot be made of its settings: {error}") from error
        try:
            buffer._load_state_dict(given, **options)
            buffer._swap(buffer)
        except MemoryError as error:
            raise errors.CheckpointError(f"a {cls.__name__} of that state does not fit in memory: {error}") from error
        return buffer


BUFFERS: registry.Registry[Checkpointable] = registry.Registry()
"""The classes of buffers."""


def become(own: T, other: T) -> T:
    """Return an object that a user may hold, once it is what another one was."""
    if own is not other:
        vars(own).clear()
        vars(own).update(vars(other))
    return own


def class_of(state: state_lib.State, remedy: str) -> type[Checkpointable]:
    """Return the class of the buffer of a state, which may lack its arrays; errors end with the remedy."""
    name = state_lib.StateReader(state, {}).text("class")
    kind = BUFFERS.find(name)
    if kind is None:
        raise errors.CheckpointError(
            f"it is of a {validation.short_repr(name)}, a class that is not defined here: {remedy}"
        )
    return kind


def coded(kind: type[Checkpointable], codec: "codec_lib.Codec | None") -> dict[str, Any]:
    """Return the options of a class of buffers, given a codec: none for one without objects, which needs no codec."""
    if kind._HAS_OBJECTS:
        return {"codec": codec_lib.checked(codec)}
    if codec is not None:
        raise errors.ArgumentError(f"codec must be left out for a {kind.__name__}, which holds no objects")
    return {}


class Journalable(Checkpointable):
    """A buffer that can also write its changes to a journal."""

    _RULES: ClassVar[frozenset[str]] = frozenset()
    """The settings that say what the records of a journal mean."""
    _journal: Any = None
    """The writer of the journal, if one is attached."""
    _position: Position | None = None
    """Where in a journal the buffer was recovered to."""

    @abc.abstractmethod
    def _base_state(self, **options: Any) -> state_lib.State:
        """Return the state as if everything stored had just been evicted."""

    @abc.abstractmethod
    def _written(self) -> tuple[int, ...]:
        """Return counters that change with every write."""

    @abc.abstractmethod
    def _journaled(self, journal: "journal_lib.Journal", replay: Any, **options: Any) -> "journal_lib.Bound":
        """Return a writer to a journal, continuing after what `replay` has replayed, if not None."""

    @abc.abstractmethod
    def _replay(self, **options: Any) -> Replay:
        """Return an object that replays a journal into the buffer."""

    def _since_recovery(self, position: Position) -> list[tuple[int, bytes]]:
        """Return the records, by kind and payload, of what a recovery has changed beside those that it replayed."""
        return []

    def _recovered(self, journal_id: str, num_records: int, replay: Replay) -> None:
        """Go on as after a restart, from so many records of a journal, which `replay` has replayed; "" for none."""
        self._restarted()
        if journal_id:
            self._position = Position(journal_id, num_records, replay, self._written())

    def detach(self) -> None:
        """Stop writing to the journal, which stays open; does nothing if there is none."""
        self._journal = self._position = None

    def _attach(self, journal: "journal_lib.Journal", **options: Any) -> None:
        validation.require_instance("journal", journal, journal_lib.Journal)
        if self._journal is not None:
            raise errors.ArgumentError("a journal is attached already: detach it first")
        position = self._position or Position(os.urandom(16).hex(), 0, None, self._written())
        if position.written != self._written():
            raise errors.ArgumentError(
                "the buffer was written to since it was recovered, and the journal has no record of that: "
                "recover it again, or detach it and attach a new journal"
            )
        if journal.num_records != position.num_records:
            raise errors.ArgumentError(
                f"journal must hold what the buffer does, got one of {journal.num_records} records: "
                "relive.recover(path) returns its buffer"
            )
        bound = self._journaled(journal, position.replay, **options)

        def encoded(state: state_lib.State, *, has_checkpoint: bool = False) -> bytes:
            head = {"journal_id": position.journal_id, "has_checkpoint": has_checkpoint}
            return codec_lib.PlainCodec().encode({**head, **state_lib.whole(state)})

        def base() -> bytes:
            return encoded(self._described(self._base_state, **options))

        def first_base() -> bytes:
            state = self._described(self._state_dict, **options)
            nbytes = sum(math.prod(array.shape) * array.dtype.itemsize for array in state["arrays"].values())
            if nbytes <= state_lib.CHUNK:
                return encoded(state)
            bound.save_base({**state, "journal": {"id": position.journal_id, "num_records": 1}})
            return encoded(self._described(self._base_state, **options), has_checkpoint=True)

        if self._position is None:
            bound.begin(position.journal_id, base, first_base)
        else:
            bound.begin(position.journal_id, base, base, self._since_recovery(position))
        self._journal, self._position = bound, None

    def _place(self) -> state_lib.State:
        """Return the buffer's position in its journal, as part of a state."""
        return {"journal": None if self._journal is None else self._journal.place()}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles: everything but the position in a journal."""
        if self._journal is not None:
            raise errors.ArgumentError("a buffer that writes to a journal cannot be copied or pickled: detach it first")
        return {**vars(self), "_position": None}

    def _full_state(self, **options: Any) -> state_lib.State:
        if self._journal is not None:
            self._journal.sync()
        return {**self._place(), **super()._full_state(**options)}

    def _load_state(self, state: state_lib.State, **options: Any) -> None:
        if self._journal is not None:
            raise errors.ArgumentError("load_state_dict cannot be recorded in the journal: detach it first")
        super()._load_state(state, **options)
        self._position = None
