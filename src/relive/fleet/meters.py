"""Meters: statistics of shards as counters and gauges of a library such as `ray.util.metrics`."""

from collections.abc import Mapping
from typing import Any

from relive.fleet import replies

_COUNTERS = {
    "inserted": "Steps stored by a shard.",
    "sampled": "Samples drawn from a shard.",
    "lost": "Steps lost with a process of a shard, as far as clients have seen them.",
    "refused": "Steps that the buffer of a shard refused.",
    "repeated": "Batches that a shard received again.",
    "expired_leases": "Writers whose lease ran out.",
    "aborted": "Episodes ended because their writer or the process of the shard was gone.",
    "cut": "Episodes truncated because the buffer of a shard has too few streams.",
}
_GAUGES = {
    "size": "Transitions that can be drawn from a shard now.",
    "rows": "Steps that a shard holds now.",
    "writers": "Writers of a shard whose lease has not run out.",
}
_TAGS = ("fleet", "shard")


class Meters:
    """The counters and gauges of a fleet, by the names of ShardStats after `relive_`.

    Args:
        library: Has the classes Counter and Gauge, as `ray.util.metrics` does.
        fleet: The name of the fleet.
    """

    def __init__(self, library: Any, fleet: str) -> None:
        self._fleet, self._known = fleet, dict[int, replies.ShardStats]()
        self._counters = {name: library.Counter(f"relive_{name}", text, _TAGS) for name, text in _COUNTERS.items()}
        self._gauges = {name: library.Gauge(f"relive_{name}", text, _TAGS) for name, text in _GAUGES.items()}

    def record(self, found: Mapping[int, replies.ShardStats]) -> None:
        """Record the statistics of the shards that respond; others have nothing to draw."""
        for shard in self._known.keys() | found.keys():
            tags = dict(zip(_TAGS, (self._fleet, str(shard)), strict=True))
            before, now = self._known.get(shard), found.get(shard)
            for name, gauge in self._gauges.items():
                gauge.set(0 if now is None else int(getattr(now, name)), tags=tags)
            for name, counter in self._counters.items():
                value, last = int(getattr(now, name, 0)), int(getattr(before, name, 0))
                # In a new process of the shard some begin at 0 again.
                more = value if value < last else value - last
                if more:
                    counter.inc(more, tags=tags)
        self._known |= found
