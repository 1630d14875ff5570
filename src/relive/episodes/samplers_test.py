"""Samplers of episodes: their arguments, what is checked, and how they are saved and loaded."""

from collections.abc import Callable, Sequence
import copy
import gc
import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import testing
from relive.episodes import helpers_test
from relive.episodes import samplers

Draws = list[tuple[relive.Episode[str, int], int]]


class NewestFew(relive.EpisodeSampler[str, int]):
    """Draws from the newest episodes."""

    def __init__(self, most: int = 2) -> None:
        self.most = most

    def _draw(self, episodes: Sequence[relive.Episode[str, int]], size: int, rng: np.random.Generator) -> Draws:
        newest = episodes[-self.most :]
        drawn = [newest[place] for place in rng.integers(len(newest), size=size)]
        return [(episode, int(rng.integers(len(episode)))) for episode in drawn]


class Told(relive.EpisodeSampler[str, int]):
    """Draws what the test sets, and keeps its arguments."""

    def __init__(self, draws: Any = None) -> None:
        self.draws, self.given = draws, []  # type: ignore[var-annotated]

    def _draw(self, episodes: Sequence[relive.Episode[str, int]], size: int, rng: np.random.Generator) -> Draws:
        self.given = [episodes, size]
        rng.random()
        if isinstance(self.draws, Exception):
            raise self.draws
        draws: Draws = [(episodes[0], 0)] * size if self.draws is None else self.draws
        return draws


class TestNewestFew(testing.EpisodeSamplerTests):
    def make(self) -> NewestFew:
        return NewestFew()


def filled(lengths: Sequence[int], sampler: Any = None, num_open: int = 0) -> relive.EpisodeReplayBuffer[str, int]:
    """Return a buffer of episodes with those numbers of transitions, the last `num_open` of them open."""
    buffer = relive.EpisodeReplayBuffer[str, int](sampler=sampler, seed=0)
    for number, length in enumerate(lengths):
        is_open = number >= len(lengths) - num_open
        episode_id = buffer.start_episode_nowait(f"agent-{number}")
        for step in range(length + is_open):
            buffer.append_observation_action_reward_nowait(episode_id, f"{number} {step}", step, 0.0)
        if not is_open:
            buffer.end_episode_nowait(episode_id, f"{number} {length}")
    return buffer


@pytest.mark.parametrize("lengths", [[1, 2, 3], [0, 1, 0, 2, 0], [2, 0, 1, 3]])
@pytest.mark.parametrize("num_open", [0, 1, 2])
def test_a_sampler_gets_the_episodes_with_a_transition_in_order(lengths: list[int], num_open: int) -> None:
    sampler = Told()
    buffer = filled(lengths, sampler, num_open)
    buffer.sample_n_step_nowait(3, 1, 0.9)
    episodes, size = sampler.given
    assert size == 3
    assert [len(episode) for episode in episodes] == [length for length in lengths if length]
    assert len(episodes) == len(list(episodes))
    assert [episodes[place] for place in range(-len(episodes), len(episodes))] == [*episodes, *episodes]
    assert episodes[1:] == list(episodes)[1:]
    assert episodes[::-1] == list(episodes)[::-1]
    for index in (len(episodes), -len(episodes) - 1):
        with pytest.raises(IndexError, match=rf"^index must be in \[-{len(episodes)}, {len(episodes)}\), got {index}$"):
            episodes[index]


def test_evicted_episodes_without_a_transition_are_forgotten() -> None:
    buffer = relive.EpisodeReplayBuffer[str, int](max_episodes=2, sampler=NewestFew(), seed=0)
    for number in range(6):
        episode_id = buffer.start_episode_nowait("a")
        if number % 2:
            buffer.append_observation_action_reward_nowait(episode_id, f"{number}", number, 0.0)
        buffer.end_episode_nowait(episode_id, "end")
        assert len(samplers.StoredEpisodes(buffer._store)) == sum(len(each) > 0 for each in buffer._store.finished)
    assert {sample.observation for sample in buffer.sample_n_step_nowait(9, 1, 0.9)} == {"5"}


def test_draws_that_break_a_rule_change_nothing() -> None:
    (other,) = helpers_test.stored(filled([2]))
    sampler = Told()
    buffer = filled([2, 1], sampler)
    stored = helpers_test.stored(buffer)[0]
    for draws, message in (
        ([(stored, 0)], "_draw must return batch_size = 2 draws, got 1"),
        ([(stored, 0), (other, 0)], "_draw must return stored episodes, got "),
        ([(stored, 0), (stored, 2)], r"_draw must return start steps in \[0, 2\) of episode "),
        ([(stored, 0), 3], "_draw must return pairs of an episode and an integer start: "),
    ):
        sampler.draws = draws
        state = copy.deepcopy(buffer.rng.bit_generator.state)
        with pytest.raises(relive.SamplerError, match=f"^{message}"):
            buffer.sample_n_step_nowait(2, 1, 0.9)
        assert buffer.rng.bit_generator.state == state
        assert buffer.get_stats().sampled == 0
    sampler.draws = KeyError("mine")
    with pytest.raises(KeyError, match="mine"):
        buffer.sample_n_step_nowait(2, 1, 0.9)
    assert buffer.rng.bit_generator.state == state


def test_samplers_of_other_classes_are_refused() -> None:
    with pytest.raises(relive.ArgumentTypeError, match="^sampler must be an instance of EpisodeSampler, got 3$"):
        relive.EpisodeReplayBuffer(sampler=3)  # type: ignore[arg-type]


def test_a_sampler_is_saved_loaded_and_recovered_by_its_settings(tmp_path: pathlib.Path) -> None:
    buffer = filled([1, 2, 3], NewestFew(most=1))
    buffer.save(tmp_path / "saved")
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        buffer.detach()
    expected = [sample.observation for sample in buffer.sample_n_step_nowait(20, 1, 0.9)]
    for loaded in (relive.load(tmp_path / "saved"), relive.recover(tmp_path / "journal")):
        assert loaded.sampler.most == 1
        assert [sample.observation for sample in loaded.sample_n_step_nowait(20, 1, 0.9)] == expected
    instead = relive.EpisodeReplayBuffer[str, int].load(tmp_path / "saved", sampler=NewestFew(3))
    assert isinstance(instead.sampler, NewestFew)
    assert instead.sampler.most == 3


def test_a_sampler_without_settings_cannot_be_saved(tmp_path: pathlib.Path) -> None:
    class Silent(NewestFew):
        def __init__(self, temperature: Callable[[], float]) -> None:
            super().__init__()
            self._temperature = temperature

    message = (
        r"sampler cannot be saved: settings\(\) of Silent must return what its constructor takes, got no temperature"
    )
    with pytest.raises(relive.CheckpointError, match=message):
        filled([1], Silent(lambda: 2.0)).save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_sampler_of_an_unknown_class_is_named(tmp_path: pathlib.Path) -> None:
    def save() -> None:
        class Gone(NewestFew):
            pass

        filled([1], Gone()).save(tmp_path / "saved")

    save()
    gc.collect()
    message = "sampler was a 'Gone', a class that is not defined here: import its module, or give sampler= to load"
    with pytest.raises(relive.CheckpointError, match=message):
        relive.load(tmp_path / "saved")
    assert len(relive.load(tmp_path / "saved", sampler=NewestFew())) == 1
