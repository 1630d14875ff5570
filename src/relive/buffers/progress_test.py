"""Settings under which a buffer would wait for ever, whatever is added: refused by everything that takes them."""

import functools
import pathlib
from typing import Any

import pytest

import relive
from relive.fleet import adapters

Ratio = functools.partial(relive.SampleToInsertRatio, min_size=1, error_buffer=16.0)
SEQUENCES = functools.partial(relive.SequenceReplayBuffer, length=4)
JOINT = functools.partial(relive.JointReplayBuffer, agents=["a"])
JOINT_SEQUENCES = functools.partial(
    relive.JointSequenceReplayBuffer,
    schemas={"a": relive.Schema(relive.Field((), int), relive.Field((), int))},
    agents=["a"],
    length=4,
)
STUCK: list[tuple[Any, dict[str, Any], str]] = [
    *[
        (make, {"limiter": Ratio(2.5), "max_times_sampled": 2}, r"^ratio must be at most max_times_sampled = 2, or ins")
        for make in (relive.RingReplayBuffer, relive.PrioritizedReplayBuffer, SEQUENCES, JOINT, JOINT_SEQUENCES)
    ],
    (
        SEQUENCES,
        {"stride": 3, "limiter": Ratio(1.0), "max_times_sampled": 2},
        r"^ratio must be at most max_times_sampled / 3 = 0.666667, or inserts stop for ever, got SampleTo",
    ),
    (
        SEQUENCES,
        {"stride": 9, "limiter": Ratio(1.0), "max_times_sampled": 2},
        r"^ratio must be at most max_times_sampled / 4 = 0.5, or inserts stop for ever, got SampleTo",
    ),
    (relive.RingReplayBuffer, {"limiter": relive.MinSize(11)}, "^limiter must ask for at most capacity = 10 transit"),
    *[
        (SEQUENCES, {"limiter": relive.MinSize(most + 1), **options}, f"^limiter .* anchors in 10 steps = {most} trans")
        for most, options in ((1, {"length": 10}), (7, {}), (4, {"stride": 2}), (2, {"stride": 9}))
    ],
    (
        JOINT_SEQUENCES,
        {"limiter": Ratio(1.0, min_size=8)},
        "^limiter must ask for at most anchors in 10 steps = 7 transitions, ",
    ),
]
OTHERS: list[tuple[Any, dict[str, Any], str]] = [
    (
        lambda most: relive.EpisodeReplayBuffer[int, int](max_transitions=most),
        {"limiter": relive.MinSize(11)},
        "^limiter must ask for at most max_transitions = 10 transitions, ",
    ),
    (relive.TokenReplayBuffer, {"limiter": relive.MinSize(11)}, "^limiter must ask for at most max_tokens = 10 trans"),
]


def test_settings_under_which_a_buffer_stops_are_refused(subtests: pytest.Subtests) -> None:
    for make, settings, message in STUCK:
        with subtests.test(message), pytest.raises(relive.ArgumentError, match=message):
            make(10, **settings)


def test_limiters_under_which_a_fleet_stops_are_refused(subtests: pytest.Subtests) -> None:
    """By the same rules, for the buffer of each shard; together they hold more."""
    cases: list[tuple[Any, dict[str, Any], str]] = [*STUCK, *OTHERS]
    for make, settings, message in cases:
        with subtests.test(message):
            settings = dict(settings)
            limiter = settings.pop("limiter")
            described = adapters.adapter_of(make(10, **settings)).describe()
            with pytest.raises(relive.ArgumentError, match=message):
                described.check_limiter(limiter, 1)
            if isinstance(limiter, relive.MinSize):
                described.check_limiter(limiter, 2)
                with pytest.raises(relive.ArgumentError, match="^limiter must ask for at most 7 times "):
                    described.check_limiter(relive.MinSize(7 * limiter.min_size), 7)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (relive.RingReplayBuffer, {"limiter": Ratio(2.0), "max_times_sampled": 2}),
        (relive.RingReplayBuffer, {"limiter": relive.MinSize(10), "frame_stack": 20, "n_step": 20}),
        (SEQUENCES, {"stride": 3, "pad": True, "limiter": Ratio(1.0, min_size=10), "max_times_sampled": 1}),
        (SEQUENCES, {"stride": 4, "limiter": Ratio(0.5), "max_times_sampled": 2}),
    ],
)
def test_settings_that_some_steps_satisfy_are_taken(make: Any, settings: dict[str, Any]) -> None:
    assert make(10, **settings).limiter is settings["limiter"]


@pytest.mark.parametrize("options", [{"length": 10}, {}, {"stride": 2}, {"stride": 9}, {"stride": 9, "pad": True}])
def test_as_many_anchors_as_a_limiter_may_ask_for_can_be_stored(options: dict[str, Any]) -> None:
    """By one long episode, or by many of one window or, padded, of one step."""
    found = []
    for length in (1, 4, 10):
        buffer = SEQUENCES(10, **options)
        for _ in range(20):
            buffer.add_episode(range(length + 1), range(length), range(length), truncated=True)
        found.append(buffer.num_eligible)
    assert SEQUENCES(10, limiter=relive.MinSize(max(found)), **options).capacity == 10
    if max(found) < 10:
        with pytest.raises(relive.ArgumentError, match="^limiter must ask for at most "):
            SEQUENCES(10, limiter=relive.MinSize(max(found) + 1), **options)


def test_loading_with_settings_that_stop_a_buffer_is_refused(tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(10, limiter=Ratio(2.0), max_times_sampled=2, seed=0)
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        buffer.add_episode(range(4), range(3), range(3), terminated=True)
    buffer.save(tmp_path / "saved")
    for again in (relive.load, relive.recover):
        path = tmp_path / ("saved" if again is relive.load else "journal")
        with pytest.raises((relive.ArgumentError, relive.CheckpointError), match="ratio must be at most max_times_sam"):
            again(path, max_times_sampled=1)
