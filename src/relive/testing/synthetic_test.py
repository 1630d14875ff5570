import numpy as np
import pytest

import relive
from relive.testing import synthetic

DISCRETE = relive.Field((), "int64")
KINDS = [relive.Field((4,), "float32"), relive.Field((8, 8), "uint8"), relive.Field((4, 4, 3), "uint8")]


def story(kind: relive.Field, frame_stack: int = 1) -> synthetic.Story:
    return synthetic.Story(kind, DISCRETE, (3, 9), 200, frame_stack)


@pytest.mark.parametrize("kind", KINDS)
def test_an_observation_encodes_its_stream_episode_and_time(kind: relive.Field) -> None:
    told = story(kind)
    for number, episode in enumerate(told.episodes(), start=1):
        episodes, steps, is_known = told.place(episode.frames)
        assert is_known.all()
        assert (episodes == number).all()
        assert steps.tolist() == list(range(told.lengths[number] + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_not_observations_are_recognised(kind: relive.Field) -> None:
    told = story(kind)
    frames = told.frames([1, 1, 1, 1, 10_000], [0, 1, 2, 100, 0])
    frames[1] = 0
    frames[2].flat[-1] += 1
    assert told.place(frames)[2].tolist() == [True, False, False, False, False]


def test_episodes_end_in_both_ways() -> None:
    told = story(KINDS[0])
    assert 0 < told.is_terminated.sum() < len(told.lengths) - 1
    for number, episode in enumerate(told.episodes(), start=1):
        assert episode.terminated == told.is_terminated[number] != episode.truncated
        *before, last = episode.steps()
        assert not any(step.terminated or step.truncated for step in before)
        assert (last.terminated, last.truncated) == (episode.terminated, episode.truncated)
        np.testing.assert_equal(
            vars(episode.rows), {k: np.array([vars(s)[k] for s in (*before, last)]) for k in vars(last)}
        )


@pytest.mark.parametrize("frame_stack", [1, 4])
def test_a_cut_story_goes_on_where_it_was_cut(frame_stack: int) -> None:
    told = story(KINDS[1], frame_stack)
    whole = [step for episode in told.episodes() for step in episode.steps()]
    ends = np.cumsum(told.lengths)
    for cut in (1, 5, int(ends[2]), int(ends[2]) + 1):
        head, rest = told.until(cut)
        parts = [step for episode in head for step in episode.steps()]
        assert len(parts) == cut
        parts += [step for episode in rest for step in episode.steps()]
        for step, other in zip(parts, whole, strict=True):
            np.testing.assert_equal(vars(step), vars(other))


def test_a_stack_holds_the_newest_frame_last() -> None:
    told = story(KINDS[1], 3)
    rows = next(told.episodes()).rows
    assert rows.observation.shape == rows.next_observation.shape == (told.lengths[1], 3, 8, 8)
    assert not rows.observation[0, :2].any()
    np.testing.assert_equal(rows.next_observation[2], told.frames(1, [1, 2, 3]))


def test_actions_have_the_shape_that_was_asked_for() -> None:
    told = synthetic.Story(KINDS[0], relive.Field((6,), "float32"), (3, 9), 20)
    actions = told.actions([1, 2], [3, 4])
    assert actions.shape == (2, 6)
    assert actions.dtype == np.float32
    assert actions[:, 0].tolist() == [14.0, 4.0]
