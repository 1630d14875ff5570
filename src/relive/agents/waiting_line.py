"""What waits for the learner, in order: each under a key, with the oldest version of the policy that is in it.

    first                               last
    e3 (version 7)   e5 (8)   e4 (7)   e9 (8)        keys, and versions; None where nobody has said

    versions   {7: 2, 8: 2}                          how many there are of each

From the counts follows how many are fresh enough, without a look at each.
"""

import collections
from collections.abc import Iterator
from typing import Generic, TypeVar

from relive import errors

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """Items in order of arrival. Each call but `find` costs O(1), or O(different versions)."""

    def __init__(self) -> None:
        self._items: collections.OrderedDict[str, tuple[T, int | None]] = collections.OrderedDict()
        self._versions: dict[int | None, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[T]:
        """Gives the items, the first to come first."""
        return (item for item, _ in self._items.values())

    def keys(self) -> Iterator[str]:
        """Gives their keys in that order."""
        return iter(self._items)

    def append(self, key: str, item: T, version: int | None) -> None:
        """Puts an item last, under a key that no other has."""
        assert key not in self._items
        self._items[key] = item, version
        self._versions[version] = self._versions.get(version, 0) + 1

    def pop(self, key: str) -> T:
        """Takes the item of that key out, wherever it is, and answers it."""
        item, version = self._items.pop(key)
        self._versions[version] -= 1
        if not self._versions[version]:
            del self._versions[version]
        return item

    def num_fresh(self, least: int | None) -> int:
        """Answers how many items are fresh: of version `least` or a later one, and not without any; all for None."""
        if least is None:
            return len(self._items)
        return sum(count for version, count in self._versions.items() if version is not None and version >= least)

    def find(self, count: int, least: int | None) -> tuple[list[str], list[str]]:
        """Answers the keys of the first `count` fresh items, and those of the items before them that are not.

        So many must be there. O(items that are found).
        """
        fresh: list[str] = []
        stale: list[str] = []
        for key, (_, version) in self._items.items():
            if len(fresh) == count:
                break
            is_fresh = least is None or (version is not None and version >= least)
            (fresh if is_fresh else stale).append(key)
        return fresh, stale

    def __getitem__(self, key: str) -> T:
        return self._items[key][0]

    def check(self) -> None:
        """Recounts the versions.

        Raises:
            CorruptionError: They are not those of the items.
        """
        versions = collections.Counter(version for _, version in self._items.values())
        if versions != self._versions:
            raise errors.CorruptionError(f"versions that wait must be {dict(versions)}, found {self._versions}")
