from collections.abc import Callable
import itertools

import pytest

from relive.cli import memory_task
from relive.cli import tasks

Act = Callable[[tasks.Observation], int]


def always(door: int) -> Act:
    """Return a policy that heads for one door."""
    return lambda observation: door


def lived(task: memory_task.MemoryTask, act: Act, seed: int | None = None) -> tuple[list[list[float]], list[float]]:
    """Return observations [T+1] and rewards [T] of one episode."""
    observations, rewards = [task.reset(seed)], []
    terminated = False
    while not terminated:
        observation, reward, terminated, truncated = task.step(act(observations[-1]))
        assert not truncated
        observations.append(observation)
        rewards.append(reward)
    return [observation.tolist() for observation in observations], rewards


def test_the_sign_is_seen_in_the_first_steps_and_nothing_after() -> None:
    task = memory_task.MemoryTask()
    signs, lengths = set(), set()
    for seed in range(200):
        observations, rewards = lived(task, always(0), seed)
        assert observations[0] == observations[1] == observations[2]
        assert sorted(observations[0]) == [0.0, 0.0, 0.0, 1.0]
        assert all(observation == [0.0, 0.0, 0.0, 0.0] for observation in observations[3:])
        assert sum(rewards) == sum(rewards[-1:]) == observations[0][0]
        signs.add(observations[0].index(1.0))
        lengths.add(len(rewards))
    assert signs == {0, 1, 2, 3}
    assert lengths == {10, 11, 12, 13, 14}


def test_who_remembers_the_sign_is_always_right() -> None:
    task = memory_task.MemoryTask()
    for seed in range(50):
        door = int(task.reset(seed).argmax())
        _, rewards = lived(task, always(door), seed)
        assert sum(rewards) == rewards[-1] == 1.0


def test_no_policy_without_memory_is_better_than_chance() -> None:
    """All that it sees at the door is the dark, whatever it would do in the light."""
    task = memory_task.MemoryTask()
    seed_of = {int(task.reset(seed).argmax()): seed for seed in range(50)}
    in_the_dark = [0.0] * 4
    for doors in itertools.product(range(4), repeat=5):  # one for each sign, and one for the dark

        def act(observation: tasks.Observation, doors: tuple[int, ...] = doors) -> int:
            return doors[4] if observation.tolist() == in_the_dark else doors[int(observation.argmax())]

        assert sum(lived(task, act, seed_of[sign])[1][-1] for sign in range(4)) == 1.0


def test_a_seed_repeats_the_episodes() -> None:
    first, second = (memory_task.MemoryTask() for _ in range(2))
    for seed in (3, None, None):
        assert lived(first, always(1), seed) == lived(second, always(1), seed)


def test_episodes_after_a_seed_differ() -> None:
    task = memory_task.MemoryTask()
    task.reset(0)
    assert len({tuple(map(tuple, lived(task, always(1))[0])) for _ in range(40)}) > 4


@pytest.mark.parametrize("door", range(4))
def test_a_wrong_door_earns_nothing(door: int) -> None:
    task = memory_task.MemoryTask()
    sign = int(task.reset(5).argmax())
    assert sum(lived(task, always(door), 5)[1]) == float(door == sign)
    task.close()
