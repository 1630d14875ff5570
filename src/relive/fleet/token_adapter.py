"""TokenAdapter: the adapter of a token buffer, which counts its writers' episodes and draws their sequences."""

from collections.abc import Mapping
import functools
from typing import Any

from relive.agents import token_buffer
from relive.common import validation
from relive.fleet import adapter
from relive.fleet import chunks


class TokenAdapter(adapter.Adapter):
    """The adapter between a shard and its token buffer. Episodes come as a whole."""

    def __init__(self, buffer: token_buffer.TokenReplayBuffer) -> None:
        super().__init__(buffer, buffer.sample)
        self._buffer = buffer

    def describe(self) -> adapter.Description:
        """Describe the token buffer."""
        return adapter.Description(
            kind=type(self._buffer).__name__,
            writer="tokens_writer",
            is_independent=True,
            has_groups=self._buffer.groups is not None,
            padding=self._buffer._padding,
        )

    @property
    def size(self) -> int:
        """Number of sequences that may be drawn, regardless of options."""
        return len(self._buffer.eligible_keys())

    @property
    def rows(self) -> int:
        """Number of stored episodes."""
        return len(self._buffer._store.finished)

    @property
    def inserted(self) -> int:
        """Number of episodes ever stored."""
        return self._buffer._store.episodes

    def _write(self, handle: None, chunk: chunks.TokenChunk) -> None:
        add = functools.partial(self._buffer._add_joined, chunk.joined, **chunk.options)
        adapter.in_group(add, chunk.options["group_id"], is_failed=chunk.options["status"] == "ABORTED")

    def _weight(self, options: Mapping[str, Any]) -> adapter.SamplingWeight:
        size, learner = self.size, self._buffer.policy_version
        weight = size
        if options.get("max_lag") is not None:
            max_lag = validation.non_negative_int("max_lag", options["max_lag"])
            weight = 0 if learner is None else len(self._buffer.eligible_keys(max_lag=max_lag))
        return adapter.SamplingWeight(weight=float(weight), size=size, policy_version=learner)
