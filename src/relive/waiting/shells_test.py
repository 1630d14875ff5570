"""What both shells have of the buffer inside, and what they have not."""

from typing import Any

import pytest

import relive
from relive.buffers import column

MISSING = {
    "attach": "a journal is attached to the buffer inside, before it is shared",
    "can_insert": "the verbs wait instead, and the next change makes the answer wrong",
    "can_sample": "as can_insert",
    "check_priorities": "update_priorities checks; this is for those who send priorities to another process",
    "detach": "as attach",
    "history": "the rows themselves, which the next step changes",
    "load": "a class is loaded, and a shell put around it",
    "readable_slots": "the next step may give a slot to another row",
    "rng": "each draw changes it",
}
"""The public names of a buffer that shells do not have, and why; `buffer` or `locked` gives the buffer inside."""


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("shell", "own"),
    [(relive.AsyncReplayBuffer, {"buffer", "close"}), (relive.ThreadSafeReplayBuffer, {"close", "locked"})],
)
def test_a_shell_has_the_public_names_of_the_buffer_but_for_those_listed(shell: type, own: set[str]) -> None:
    there, inside = public(shell), public(column.ColumnReplayBuffer)
    assert inside.keys() - there.keys() == MISSING.keys()
    assert there.keys() - inside.keys() == own
    for name in inside.keys() & there.keys():
        assert isinstance(there[name], property) == isinstance(inside[name], property), name
