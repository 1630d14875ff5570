"""EpisodeFacts: what is known of an episode of a token buffer beside its tokens."""

import dataclasses
from typing import Any

import numpy as np

from relive.agents import tokens
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.episodes import episode as episode_lib
from relive.episodes import metadata as metadata_lib
from relive.windows import returns

NAMES = ("episode_id", "agent_id", "group_id", "status", "encoded_metadata", "mismatches")
"""What is known of an episode that cannot be read from its tokens."""


@copies.shared
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpisodeFacts:
    """What is known of an episode of a TokenReplayBuffer beside its tokens; compared by identity.

    Attributes:
        episode_id: Its id, a UUID.
        agent_id: The agent that acted in it.
        group_id: Its group, such as all responses to one prompt; None for none.
        status: How it ended.
        policy_version: The oldest policy version of its tokens in the loss mask; None if there are none.
        num_tokens: Number of its tokens, in all its sequences.
        first_key: The key of its first sequence.
        rewards: The reward of each step.
        mismatches: Why each of its sequences does not continue the previous one; None for the first.
        key_step: The step from the key of one of its sequences to the next.
        encoded_metadata: Its metadata, as bytes.
    """

    episode_id: str
    agent_id: str
    group_id: str | None
    status: episode_lib.FinalStatus
    policy_version: int | None
    num_tokens: int
    first_key: int
    rewards: tuple[float, ...] = dataclasses.field(repr=False)
    mismatches: tuple[tokens.TokenMismatch | None, ...] = dataclasses.field(repr=False)
    key_step: int = dataclasses.field(default=1, repr=False)
    encoded_metadata: bytes = dataclasses.field(default=b"", repr=False)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that it was added with: a new dict."""
        return metadata_lib.decoded(self.encoded_metadata)

    @property
    def version_changes(self) -> tuple[tuple[int, int], ...]:
        """Empty: the version of each token is stored with it."""
        return ()

    @property
    def names(self) -> dict[str, Any]:
        """The part of it that cannot be read from its tokens."""
        return {name: getattr(self, name) for name in NAMES}

    @property
    def keys(self) -> arrays_lib.Keys:
        """The keys of its sequences: one if it is exact, else more."""
        return self.first_key + np.arange(len(self.mismatches)) * self.key_step

    @property
    def own_keys(self) -> range:
        """The same keys, without an array."""
        return range(self.first_key, self.first_key + len(self.mismatches) * self.key_step, self.key_step)

    @property
    def num_steps(self) -> int:
        """Number of its steps."""
        return len(self.rewards)

    @property
    def total_reward(self) -> float:
        """The sum of its rewards."""
        return returns.total(self.rewards)

    def __len__(self) -> int:
        """Return the number of its steps."""
        return len(self.rewards)
