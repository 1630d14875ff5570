"""Timing: how long the parts of a fleet wait, in seconds, where its settings do not say."""

RETRY = 0.2
"""Between two attempts to reach a process that is being restarted."""
PAUSE = 0.02
"""Between two questions of one client to the same process, and between two pieces of news: what is told in between
comes as one."""
LOOK_AGAIN = 0.05
"""Between two looks for a shard while none is there, and, at most, before asking for what another client took first."""
PATIENCE = 1.0
"""Most for one call that waits for news, a turn or a ticket: the caller may have died, or the news with its client."""
PAUSE_IF_FULL = 1.0
"""Between two attempts to write to a full disk."""
TRIAL = 0.1
"""The part of the time, no seconds, in which writers try a shard that they avoid."""
PAUSE_OF_DRAINING = 1.0
"""Between two looks at shards that are being drained."""
