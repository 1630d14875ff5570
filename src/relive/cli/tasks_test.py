import numpy as np

from relive.cli import environments
from relive.cli import memory_task
from relive.cli import tasks


def test_each_episode_has_a_policy_of_its_own() -> None:
    begun: list[list[tasks.Observation]] = []

    def begin() -> tasks.Policy:
        seen: list[tasks.Observation] = []
        begun.append(seen)

        def act(observation: tasks.Observation) -> int:
            seen.append(observation)
            return int(seen[0].argmax())  # the door on the sign

        return act

    task = memory_task.MemoryTask()
    task.reset(seed=0)
    assert tasks.play(task, begin, episodes=5).tolist() == [1.0] * 5
    assert len(begun) == 5
    assert all(memory_task.SHORTEST <= len(seen) <= memory_task.LONGEST for seen in begun)


def test_a_return_is_the_sum_of_the_rewards() -> None:
    task = environments.Environment("CartPole-v1")
    task.reset(seed=0)
    lengths: list[int] = []

    def begin() -> tasks.Policy:
        lengths.append(0)

        def act(observation: tasks.Observation) -> int:
            lengths[-1] += 1
            return 0

        return act

    assert tasks.play(task, begin, episodes=3).tolist() == lengths  # one for every step


def test_a_seed_from_the_same_generator_repeats_the_episodes() -> None:
    first, second, other = (memory_task.MemoryTask() for _ in range(3))
    for task, seed in ((first, 3), (second, 3), (other, 4)):
        tasks.seed(task, np.random.default_rng(seed))
    signs = [[task.reset().tolist() for _ in range(20)] for task in (first, second, other)]
    assert signs[0] == signs[1] != signs[2]


def test_whatever_a_demo_learns_is_a_task() -> None:
    found: list[tasks.Task] = [environments.Environment("CartPole-v1"), memory_task.MemoryTask()]
    assert [task.name for task in found] == ["CartPole-v1", "FourDoors"]
    for task in found:
        assert task.reset(seed=0).shape == (task.observation_width,)
        assert task.step(task.num_actions - 1)[0].shape == (task.observation_width,)
        assert task.solved_at is not None
        task.close()
