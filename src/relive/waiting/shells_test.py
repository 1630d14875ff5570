"""What both shells have of the buffer inside, and what they have not."""

import asyncio
import threading
import time
from typing import Any

import pytest

import relive

MISSING = {
    "attach": "a journal is attached to the buffer inside, before it is shared",
    "can_insert": "the verbs wait instead, and the next change makes the answer wrong",
    "can_sample": "as can_insert",
    "check_priorities": "update_priorities checks; this is for those who send priorities to another process",
    "detach": "as attach",
    "from_state": "as load",
    "history": "the rows themselves, which the next step changes",
    "load": "a class is loaded, and a shell put around it",
    "from_state": "a shell is made around a buffer",
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
    there, inside = public(shell), public(relive.ColumnReplayBuffer)
    assert inside.keys() - there.keys() == MISSING.keys()
    assert there.keys() - inside.keys() == own
    for name in inside.keys() & there.keys():
        assert isinstance(there[name], property) == isinstance(inside[name], property), name


# Other buffers.


def act(shell: Any, agents: int, episodes: int) -> None:
    for number in range(agents * episodes):
        with shell.admit() as ticket:
            episode_id = shell.start_episode(f"{number % agents}", group_id=f"{number // 2}", ticket=ticket)
        for t in range(3):
            shell.append_observation_action_reward(episode_id, (number, t), t, 1.0)
        shell.end_episode(episode_id, (number, 3))


def test_threads_share_a_buffer_of_episodes() -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any](groups=relive.Groups(2), admission=relive.Admission(0, 2), seed=0)
    shell: Any = relive.ThreadSafeReplayBuffer(buffer, timeout=20.0)
    actor = threading.Thread(target=act, args=(shell, 2, 5))
    actor.start()
    for version in range(5):
        shell.set_policy_version(version)
        ((first, second),) = shell.next_groups(1)
        assert [first.agent_id, second.agent_id] == ["0", "1"]
        assert all(sample.reward == 3.0 for sample in shell.sample_n_step(8, 3, 1.0) if not sample.start_step)
    actor.join()
    shell.check()
    assert shell.get_stats().completed == 10


def test_a_call_for_threads_waits_until_its_timeout_and_no_longer_than_the_buffer_is_open() -> None:
    shell = relive.ThreadSafeReplayBuffer(relive.EpisodeReplayBuffer[Any, Any](), timeout=0.15)
    began = time.monotonic()
    with pytest.raises(relive.NotReadyError, match=r"^next_episodes_nowait found 0 of 1 .* \(waited 0.15 s\)$"):
        shell.next_episodes(1)
    assert time.monotonic() - began >= 0.15
    with pytest.raises(relive.ArgumentError, match="^count must be at least 1, got 0$"):
        shell.next_episodes(0)
    patient = relive.ThreadSafeReplayBuffer(relive.EpisodeReplayBuffer[Any, Any]())
    threading.Timer(0.1, patient.close).start()
    with pytest.raises(relive.ClosedError, match="^buffer is closed: only the EpisodeReplayBuffer inside still works$"):
        patient.next_episodes(1)


@pytest.mark.parametrize("name", ["save_async", "attach", "_store", "nothing"])
def test_what_a_shell_has_not(name: str) -> None:
    shell = relive.ThreadSafeReplayBuffer(relive.EpisodeReplayBuffer[Any, Any]())
    with pytest.raises(AttributeError, match=name):
        getattr(shell, name)


async def test_tasks_share_a_buffer_of_items() -> None:
    shell: Any = relive.AsyncReplayBuffer(relive.ItemReplayBuffer(10, "fragments", seed=0))
    learner = asyncio.create_task(shell.sample(2))
    await asyncio.sleep(0)
    assert not learner.done()
    await shell.add({"a": [1, 2]})
    assert (await learner)["a"].tolist() == [1, 2, 1, 2]
    with pytest.raises(relive.ArgumentError, match="^num_items must be at least 1, got 0$"):
        await shell.sample(0)
    shell.close()
    with pytest.raises(relive.ClosedError):
        await shell.add({"a": [1, 2]})


@pytest.mark.parametrize("kind", [relive.EpisodeReplayBuffer, lambda: relive.RolloutBuffer(3)])
def test_what_waits_itself_or_never_needs_no_wrapper_for_tasks(kind: Any) -> None:
    with pytest.raises(relive.ArgumentTypeError, match="^buffer must be a buffer that does not wait itself, such as"):
        relive.AsyncReplayBuffer(kind())
