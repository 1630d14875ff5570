"""FinalObservations: the observation after the newest row of each episode, which no row holds.

rows       o0  o1  o2  | o0  o1  o2  o3 |  o0  o1         one observation a step
finals               o3                o4          o2     one per episode, by its number
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive.common import arrays as arrays_lib
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory


class FinalObservations(arrays_lib.Derived):
    """The final observations of episodes, by number.

    Attributes:
        room: For how many episodes there is room.
        columns: The fields of the observation by path [episodes, ...].
        records: For each field that has bytes its number, and its column as records, which numpy moves as a whole.
        contents: For each of them its number, the bytes of its column, which are compared faster, and those of one.
    """

    _DERIVED = "records", "contents"

    def __init__(self, fields: Mapping[str, schema_lib.Field], room: int) -> None:
        """Make room for `room` episodes."""
        self._fields, self.room = dict(fields), room
        self.columns = {path: np.zeros((room, *field.shape), field.dtype) for path, field in fields.items()}
        self._derive()

    def _derive(self) -> None:
        # Pickle converts other byte orders to the native one.
        dtypes = {path: field.dtype for path, field in self._fields.items()}
        self.columns = {path: column.astype(dtypes[path], copy=False) for path, column in self.columns.items()}
        columns = [(field, column) for field, column in enumerate(self.columns.values()) if column.size]
        self.records = [(field, memory.records_of(column)) for field, column in columns]
        self.contents = [(field, memory.bytes_of(column), column[:1].nbytes) for field, column in columns]

    @property
    def nbytes(self) -> int:
        """Number of bytes of one of them."""
        return sum(field.nbytes for field in self._fields.values())

    def grow(self, room: int) -> None:
        """Make room for `room` episodes, if there is less."""
        if self.room < room:
            grown = self.with_fields(self._fields, room)
            self.columns, self.room = grown.columns, room
            self._derive()

    def with_fields(self, fields: Mapping[str, schema_lib.Field], room: int) -> "FinalObservations":
        """Return a copy with those fields, and room for `room` episodes; what is new is zero."""
        made = FinalObservations(fields, room)
        for path in made.columns.keys() & self.columns.keys():
            made.columns[path][: self.room] = self.columns[path]
        return made

    def take(self, episodes: arrays_lib.Ints) -> dict[str, arrays_lib.Array]:
        """Return those of the episodes [k] by path [k, ...]."""
        return {path: column.take(episodes, axis=0) for path, column in self.columns.items()}

    def put(self, columns: Mapping[str, arrays_lib.Array], where: Any, episodes: arrays_lib.Ints) -> None:
        """Write those of the episodes [k] into columns of some of the fields, at `where`."""
        for path, column in columns.items():
            column[where] = self.columns[path].take(episodes, axis=0)

    def blank(self, episode: int) -> None:
        """Set that of an episode to zeros."""
        for _, records in self.records:
            records[episode] = bytes(records.itemsize)

    def is_same(self, episode: int, rows: encoding.Row, place: int = 0) -> bool:
        """Return whether the row at a place among some begins with that of an episode, byte for byte."""
        for field, content, size in self.contents:
            final = content[episode * size : episode * size + size].tobytes()
            if final != rows[field][place * size : place * size + size]:
                return False
        return True
