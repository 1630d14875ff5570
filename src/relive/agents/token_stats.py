"""What a token buffer says of itself."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenBufferStats:
    """What a token buffer holds, and what has happened to it: appended = sequences + evicted + cleared.

    Attributes:
        sequences: Sequences held now.
        tokens: Their tokens.
        trained_tokens: Those of them that are to be trained on.
        episodes: Episodes added, ever.
        inexact_episodes: Those of them in which a prompt did not begin with what was there before it.
        appended: Sequences added, ever; each beyond the first of its episode stands for a mismatch.
        evicted: Sequences that made room for others, ever.
        cleared: Sequences that `clear` forgot, ever.
        sampled: Sequences drawn, ever; one drawn twice counts twice.
    """

    sequences: int
    tokens: int
    trained_tokens: int
    episodes: int
    inexact_episodes: int
    appended: int
    evicted: int
    cleared: int
    sampled: int
