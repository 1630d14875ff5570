"""Settings, steps and draws that column buffers refuse: each says why in one line, and nothing has changed."""

from collections.abc import Callable
import functools
from typing import Any

import numpy as np
import pytest

import relive
from relive.kernels import append
from relive.testing import zoo

NUMBER, INT = relive.Field((), float), relive.Field((), int)
SCHEMA = relive.Schema(NUMBER, INT)
SMALL = relive.Schema(
    relive.Field(2, np.float32),
    relive.Field((), np.uint8),
    extras={"count": relive.Field((), np.int64), "vector": relive.Field(3, float)},
)

# Settings.


class Refusing(relive.UniformSampler):
    """Cannot be attached."""

    def _attached(self, capacity: int) -> None:
        raise relive.ArgumentError("this one is not taken")


STORAGE = relive.ColumnStorage(SCHEMA, 8)
ring = relive.RingReplayBuffer
prioritized = relive.PrioritizedReplayBuffer
sequences = functools.partial(relive.SequenceReplayBuffer, length=2)
SETTINGS: list[tuple[Any, dict[str, Any], str]] = [
    (ring, {"capacity": 0}, "^capacity must be at least 1, got 0$"),
    (ring, {"capacity": 1.5}, "^capacity must be an integer of at least 1, got 1.5$"),
    (ring, {"capacity": 10**15}, r"^capacity must fit in memory, got 10{15} steps of \d+ bytes each, [\d,.]+ GiB in a"),
    (
        ring,
        {"capacity": 10**15, "schema": relive.Schema(relive.Field((84, 84), "uint8"), INT)},
        r"^capacity must fit in memory, got 10{15} steps of \d+ bytes each, [\d,.]+ GiB in all$",
    ),
    (ring, {"n_step": 0}, "^n_step must be at least 1, got 0$"),
    (ring, {"n_step": 10**30}, r"^n_step must be at most 2\*\*62, got 1000000"),
    (ring, {"frame_stack": 0}, "^frame_stack must be at least 1, got 0$"),
    (ring, {"stack_padding": "last"}, "^stack_padding must be 'zeros' or 'first', got 'last'$"),
    (ring, {"gamma": 1.5}, r"^gamma must be in \(0, 1\], got 1.5$"),
    (ring, {"streams": 0}, "^streams must be at least 1, got 0$"),
    (ring, {"streams": 9}, "^streams must be at most capacity = 8, got 9$"),
    (ring, {"capacity": 2**20, "streams": 2**20}, "^streams must be at most 524288, got 1048576$"),
    (ring, {"schema": {"observation": 3}}, "^schema must be an instance of Schema, got "),
    (ring, {"sampler": "uniform"}, "^sampler must be an instance of Sampler, got 'uniform'$"),
    (ring, {"limiter": 3}, "^limiter must be a RateLimiter, got 3$"),
    (ring, {"limiter": relive.MinSize(9)}, r"^limiter must ask for at most capacity = 8 transitions, got MinSize\(9\)"),
    (ring, {"seed": -1}, "^seed must be at least 0, got -1$"),
    *((ring, {"max_times_sampled": most}, "^max_times_sampled must be a") for most in (0, -1, 1.5, True)),
    (ring, {"storage": np.zeros(3)}, "^storage must have capacity, schema, read and write, got "),
    (ring, {"storage": relive.ColumnStorage}, "^storage must have capacity, schema, read and write, got "),
    (ring, {"capacity": 9, "storage": STORAGE}, "^storage must be of capacity 9, got 8$"),
    (
        ring,
        {"schema": relive.Schema(INT, INT), "storage": STORAGE},
        r"^storage must be of the schema Schema\(.*\), got Schema\(",
    ),
    (sequences, {"length": 0}, "^length must be at least 1, got 0$"),
    (sequences, {"length": 9}, "^length must be at most capacity = 8, got 9$"),
    (sequences, {"length": 2.0}, "^length must be an integer"),
    (sequences, {"length": True}, "^length must be an integer"),
    (sequences, {"stride": 0}, "^stride must be at least 1, got 0$"),
    (sequences, {"pad": 1}, "^pad must be True or False, got 1$"),
    (sequences, {"burn_in": -1}, "^burn_in must be at least 0, got -1$"),
    (sequences, {"burn_in": 1.5}, "^burn_in must be"),
    (sequences, {"burn_in": 2}, "^burn_in must be below length = 2, got 2$"),
    (
        sequences,
        {"prioritized": True, "sampler": relive.UniformSampler()},
        "^sampler must be left out with prioritized=True, got <",
    ),
    (sequences, {"alpha": -1}, "^alpha must be at least 0, got -1$"),
    (sequences, {"prioritized": 1}, "^prioritized must be True or False, got 1$"),
    (prioritized, {"alpha": -0.1}, "^alpha must be at least 0, got -0.1$"),
    (prioritized, {"alpha": float("nan")}, "^alpha must be a finite real number, got nan$"),
    (prioritized, {"alpha": "big"}, "^alpha must be a finite real number, got 'big'$"),
    (prioritized, {"alpha": True}, "^alpha must be a finite real number, got True$"),
    (prioritized, {"beta": -1}, "^beta must be at least 0, got -1$"),
    (prioritized, {"beta": float("inf")}, "^beta must be a finite real number, got inf$"),
    (prioritized, {"beta": "linear"}, "^beta must be a finite real number, got 'linear'$"),
    (prioritized, {"epsilon": -1e-9}, "^epsilon must be at least 0, got -1e-09$"),
    (prioritized, {"epsilon": float("nan")}, "^epsilon must be a finite real number, got nan$"),
    (prioritized, {"alpha": 10.0, "epsilon": 1e100}, r"^epsilon must be smaller with alpha = 10, got 1e\+100$"),
    (
        prioritized,
        {"weight_normalization": "max"},
        "^weight_normalization must be 'batch' or 'buffer' or 'none', got 'max'$",
    ),
    (prioritized, {"stratified": 1}, "^stratified must be True or False, got 1$"),
]


def test_wrong_settings_of_column_buffers_are_refused(subtests: pytest.Subtests) -> None:
    for kind, settings, message in SETTINGS:
        with subtests.test(message), pytest.raises(relive.ArgumentError, match=message):
            kind(**{"capacity": 8, **settings})


def test_a_capacity_that_links_cannot_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "MOST_ROWS", 5)
    assert relive.RingReplayBuffer(5).capacity == 5
    with pytest.raises(relive.ArgumentError, match="^capacity must be at most 5, got 6$"):
        relive.RingReplayBuffer(6)


TAKEN: dict[str, dict[str, Any]] = {
    "limiter": {"limiter": relive.MinSize(9)},
    "no limiter": {"limiter": 3},
    "max_times_sampled": {"max_times_sampled": 0},
    "seed": {"seed": -1},
    "streams": {"streams": 9},
    "storage": {"storage": relive.ColumnStorage(SCHEMA, 9)},
    "schema": {"schema": 3},
    "no room": {"schema": relive.Schema(relive.Field(2**59, "float32"), INT)},
}
MAKERS: list[Any] = [ring, sequences, functools.partial(relive.ColumnReplayBuffer, window=relive.SequenceWindow(3))]


@pytest.mark.parametrize("refused", TAKEN.values(), ids=TAKEN.keys())
@pytest.mark.parametrize("make", MAKERS)
def test_a_constructor_that_refuses_leaves_the_sampler_free(make: Any, refused: dict[str, Any]) -> None:
    """P90."""
    sampler, rng = relive.PrioritizedSampler(), np.random.default_rng(0)
    state = rng.bit_generator.state
    with pytest.raises((relive.ArgumentError, MemoryError)):
        make(8, **{"sampler": sampler, "seed": rng, **refused})
    assert not sampler.is_attached
    assert rng.bit_generator.state == state
    assert make(8, sampler=sampler, seed=rng).sampler is sampler


@pytest.mark.parametrize("make", MAKERS)
def test_a_sampler_that_refuses_leaves_storage_and_generator(make: Any) -> None:
    """P90."""
    storage, rng = relive.ColumnStorage(SCHEMA, 8), np.random.default_rng(0)
    state = rng.bit_generator.state
    with pytest.raises(relive.ArgumentError, match="^this one is not taken$"):
        make(8, sampler=Refusing(), storage=storage, seed=rng)
    assert rng.bit_generator.state == state
    buffer = filled(make(8, storage=storage, seed=rng))
    assert len(buffer) == 6
    buffer.check()


# Steps.


def with_steps(**settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer of capacity 8 with ten complete steps in stream 0."""
    buffer = relive.RingReplayBuffer(8, **{"seed": 0, **settings})
    for t in range(10):
        buffer.add(float(t), t, 0.0, next_observation=t + 1.0, stream=0)
    return buffer


def state_of(buffer: relive.RingReplayBuffer) -> Any:
    """Return everything that a refused call must not change."""
    return zoo.state_of(buffer), buffer.schema


def assert_refused(buffer: Any, call: str, arguments: dict[str, Any], message: str, error: Any) -> None:
    """Assert that a call is refused, and changes nothing."""
    before = state_of(buffer)
    with pytest.raises(error, match=message):
        getattr(buffer, call)(**arguments)
    assert state_of(buffer) == before
    buffer.check()


FLAG = "must be True, False, 0 or 1, got"
NO_END = "^terminated or truncated must be True, and not both, got terminated=.* and truncated="
STREAM = "^stream must be given where there are several, got none of 2$"
ONE_MORE = ": give the observation after the last step too$"
FINITE = "^reward must be finite, got (nan|-?inf)"
EARLY = "terminated and truncated must be False before the last row of an episode"
UNKNOWN = "unknown_end must be 'drop' or 'keep' where no observation follows an episode that did not terminate"
ADD: dict[str, Any] = {"observation": 10.0, "action": 1, "reward": 0.0, "stream": 0}
EXTEND: dict[str, Any] = {"observation": [1.0, 2.0], "action": [1, 1], "reward": [0.0, 0.0]}
EPISODE: dict[str, Any] = {
    "observations": [0.0, 1.0, 2.0],
    "actions": [0, 1],
    "rewards": [0.0, 0.0],
    "terminated": True,
    "stream": 0,
}
STEPS: dict[str, Any] = {"observations": [0.0, 1.0, 2.0], "actions": [0, 0], "rewards": [0.0, 0.0], "stream": 0}
FLAT: dict[str, Any] = {**STEPS, "actions": [0] * 3, "rewards": [0.0] * 3, "terminated": [0, 0, 1]}
WRONG_FLAGS: list[Any] = ["1", None, [], {}, 0.5, np.nan, -1, np.array([True, True]), np.array([]), 1j]
CALLS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("add", ADD, {"truncated": True}, "^next_observation must be given with a truncated step, got None$"),
    ("add", ADD, {"terminated": 2}, f"^terminated {FLAG} 2$"),
    ("add", ADD, {"truncated": "no"}, f"^truncated {FLAG} 'no'$"),
    *(
        ("add", ADD, {"terminated": wrong}, "^terminated must be (True, False, 0 or 1|one flag), got ")
        for wrong in WRONG_FLAGS
    ),
    ("add", ADD, {"stream": 2}, "^stream must be below streams = 2, got 2$"),
    ("add", ADD, {"stream": -1}, "^stream must be at least 0, got -1$"),
    ("add", ADD, {"stream": None}, STREAM),
    ("add", ADD, {"observation": [1.0, 2.0]}, r"^observation must be of shape \(\), got \(2,\)$"),
    ("add", ADD, {"next_observation": [1.0, 2.0]}, r"^next_observation must be of shape \(\), got \(2,\)$"),
    ("add", ADD, {"action": 0.5}, "^action must fit int64, got 0.5: cast it yourself, or declare the field float64$"),
    ("add", ADD, {"logp": 0.5}, "^unknown extra 'logp'"),
    ("add", ADD, {"done": True}, "^unknown extra 'done': say terminated or truncated$"),
    *(
        ("add", ADD, {"reward": reward}, f"{FINITE}$")
        for reward in (np.nan, np.inf, -np.inf, np.float32("nan"), np.array(np.inf), np.float64("nan"))
    ),
    *(
        ("add", ADD, {"reward": reward}, r"^reward must be of shape \(\), got \(1,.*\): give the .item\(\) of one")
        for reward in (np.array([1.0]), [1.0], np.ones((1, 1)))
    ),
    ("extend", EXTEND, {"truncated": [True, False]}, "^next_observation must be given with a truncated step, got None"),
    ("extend", EXTEND, {"terminated": [True]}, r"^terminated must be of shape \(2,\), got \(1,\)$"),
    ("extend", EXTEND, {"terminated": True}, r"^terminated must be of shape \(2,\), got \(\)$"),
    ("extend", EXTEND, {"terminated": [[0, 1]]}, r"^terminated must be of shape \(2,\), got \(1, 2\)$"),
    ("extend", EXTEND, {"terminated": ["0", "1"]}, "^terminated must be "),
    ("extend", EXTEND, {"terminated": [0.0, np.nan]}, "^terminated must be "),
    ("extend", EXTEND, {"truncated": [2, 0]}, rf"^truncated {FLAG} \[2, 0\]$"),
    ("extend", EXTEND, {"streams": [0, 0]}, r"^streams must be distinct, got \[0, 0\]$"),
    ("extend", EXTEND, {"streams": [0, 2]}, "^streams must be 0 to 1, got 2$"),
    ("extend", EXTEND, {"streams": [0.0, 1.0]}, r"^streams must be integers, got \[0.0, 1.0\]$"),
    ("extend", EXTEND, {"stream": 1}, "^extend takes streams, got stream=1$"),
    ("extend", EXTEND, {"streams": [1]}, "^extend must have a step of each of 1 streams, got 2 rewards$"),
    ("extend", EXTEND, {"reward": [0.0]}, "^extend must have a step of each of 2 streams, got 1 rewards$"),
    ("extend", EXTEND, {"reward": 0.0}, "^reward must be a sequence, got 0.0$"),
    ("extend", EXTEND, {"reward": [0.0, np.nan]}, rf"{FINITE} at \[1\]$"),
    ("extend", EXTEND, {"reward": np.array([np.inf, 0.0])}, rf"{FINITE} at \[0\]$"),
    ("extend", EXTEND, {"observation": [0.0]}, r"^observation must be of shape \(2,\), got \(1,\)$"),
    ("add_episode", EPISODE, {"rewards": []}, "^an episode must have 1 to capacity = 8 steps, got 0$"),
    ("add_episode", EPISODE, {"rewards": np.zeros(9)}, "^an episode must have 1 to capacity = 8 steps, got 9$"),
    ("add_episode", EPISODE, {"rewards": 3.0}, "^rewards must be a sequence, got 3.0$"),
    ("add_episode", EPISODE, {"rewards": [0.0, np.nan]}, rf"{FINITE} at \[1\]$"),
    ("add_episode", EPISODE, {"rewards": [0.0] * 3}, rf"^observations must be of shape \(4,\), got \(3,\){ONE_MORE}"),
    (
        "add_episode",
        EPISODE,
        {"observations": [0.0, 1.0]},
        rf"^observations must be of shape \(3,\), got \(2,\){ONE_MORE}",
    ),
    ("add_episode", EPISODE, {"observations": [0.0]}, r"^observations must be of shape \(3,\), got \(1,\)$"),
    ("add_episode", EPISODE, {"actions": [0]}, r"^action must be of shape \(2,\), got \(1,\)$"),
    *(
        ("add_episode", EPISODE, flags, NO_END)
        for flags in (
            {"terminated": None},
            {"truncated": True},
            {"terminated": False, "truncated": False},
            {"terminated": None, "truncated": False},
        )
    ),
    ("add_episode", EPISODE, {"terminated": 2}, f"^terminated {FLAG} 2$"),
    ("add_episode", EPISODE, {"terminated": None, "truncated": "yes"}, f"^truncated {FLAG} 'yes'$"),
    ("add_episode", EPISODE, {"stream": 2}, "^stream must be below streams = 2, got 2$"),
    ("add_episode", EPISODE, {"stream": None}, STREAM),
    ("add_episode", EPISODE, {"terminated": None, "done": True}, "^unknown extra 'done': say terminated or truncated$"),
    ("add_steps", STEPS, {"observations": [0.0, 1.0]}, "^observations must be of shape"),
    ("add_steps", STEPS, {"rewards": []}, "^add_steps must have 1 to capacity = 8 steps, got 0$"),
    ("add_steps", STEPS, {"rewards": [0.0] * 9}, "^add_steps must have 1 to capacity = 8 steps, got 9$"),
    ("add_steps", STEPS, {"actions": [0, 0.5]}, "^action must fit int64"),
    ("add_steps", STEPS, {"rewards": [0.0, np.nan]}, rf"{FINITE} at \[1\]$"),
    ("add_steps", STEPS, {"stream": None}, STREAM),
    ("add_episodes", FLAT, {"terminated": None}, "^terminated, truncated or episodes must be given, got none of them$"),
    ("add_episodes", FLAT, {"terminated": None, "dones": [0, 0, 1]}, "^unknown extra 'dones': say terminated or trunc"),
    *(
        ("add_episodes", FLAT, {word: [0] * 3}, f"^unknown extra '{word}': say {meant}$")
        for word, meant in (
            ("next_obs", "next_observations"),
            ("next_observation", "next_observations"),
            ("streams", "stream"),
            ("dones", "terminated or truncated"),
        )
    ),
    ("add_episodes", FLAT, {"logp": [0.5] * 3}, "^unknown extra 'logp': the schema has no extras$"),
    ("add_episodes", FLAT, {"terminated": [0, 2, 1]}, f"^terminated {FLAG} 2 at row 1$"),
    ("add_episodes", FLAT, {"truncated": [np.nan, 0, 1]}, f"^truncated {FLAG} nan at row 0$"),
    ("add_episodes", FLAT, {"truncated": "no"}, f"^truncated {FLAG} 'no'$"),
    ("add_episodes", FLAT, {"truncated": [0, 0]}, r"^truncated must be of shape \(3,\), got \(2,\)$"),
    ("add_episodes", FLAT, {"terminated": True}, r"^terminated must be of shape \(3,\), got \(\)$"),
    ("add_episodes", FLAT, {"episodes": [0, 0]}, r"^episodes must be of shape \(3,\), got \(2,\)$"),
    ("add_episodes", FLAT, {"episodes": [[0], [0, 1]]}, r"^episodes must be of shape \(3,\), got \[\[0\], \[0, 1\]\]$"),
    ("add_episodes", FLAT, {"episodes": [0, 0, np.nan]}, "^episodes must be numbers or names .*, got nan at row 2$"),
    ("add_episodes", FLAT, {"episodes": [0, 0, 0], "truncated": [1, 0, 0]}, f"^{EARLY}, got True at row 0$"),
    (
        "add_episodes",
        FLAT,
        {"episodes": [0, 0, 0], "truncated": [0, 1, 0], "last_row": "final_observation"},
        "^terminated or truncated must be True at the row of a final observation or at .*, got both at row 2$",
    ),
    (
        "add_episodes",
        FLAT,
        {"episodes": [0] * 3, "truncated": [1, 0, 0], "last_row": "final_observation"},
        f"^{EARLY}, got True at row 0$",
    ),
    ("add_episodes", FLAT, {"terminated": [0, 1, 0], "truncated": [1, 0, 0]}, f"^{UNKNOWN}, got 2 of them, .* row 0$"),
    ("add_episodes", FLAT, {"terminated": [0, 1, 0]}, f"^{UNKNOWN}, got 1 of them, the first up to row 2$"),
    ("add_episodes", FLAT, {"last_row": "reset"}, "^last_row must be 'step' or 'final_observation', got 'reset'$"),
    ("add_episodes", FLAT, {"unknown_end": "cut"}, "^unknown_end must be 'error' or 'drop' or 'keep', got 'cut'$"),
    *(
        (
            "add_episodes",
            FLAT | {"next_observations": [0.0] * 3},
            {name: value},
            f"^{name} must be left out where next_observations are given, got '{value}'$",
        )
        for name, value in {"last_row": "final_observation", "unknown_end": "keep"}.items()
    ),
    ("add_episodes", FLAT, {"next_observations": [0.0]}, r"^next_observation must be of shape \(3,\), got \(1,\)$"),
    ("add_episodes", FLAT, {"observations": [0.0]}, r"^observation must be of shape \(3,\), got \(1,\)$"),
    ("add_episodes", FLAT, {"actions": 0}, r"^action must be of shape \(3,\), got \(\)$"),
    ("add_episodes", FLAT, {"actions": [0, 0.5, 0.25]}, "^action must fit int64, got 0.5.* at row 1$"),
    ("add_episodes", FLAT, {"rewards": [0.0, np.nan, 0.0]}, rf"{FINITE} at \[1\]$"),
    ("add_episodes", FLAT, {"rewards": 0.0}, "^rewards must be a sequence, got 0.0$"),
    (
        "add_episodes",
        dict.fromkeys(("observations", "actions", "rewards", "terminated"), [1] * 9) | {"stream": 0},
        {},
        "^add_episodes must have at most capacity = 8 steps, got 9$",
    ),
    ("add_episodes", FLAT, {"stream": None}, STREAM),
    ("end_episode", {"stream": 2}, {}, "^stream must be below streams = 2, got 2$"),
    ("end_episode", {"stream": -1}, {}, "^stream must be at least 0, got -1$"),
    ("end_episode", {}, {}, STREAM),
    ("set_eligible", {"keys": [0], "eligible": "yes"}, {}, "^eligible must be True or False, got 'yes'$"),
    ("read", {"keys": [5], "n_step": 0}, {}, "^n_step must be at least 1, got 0$"),
    *(("sample", {"batch_size": 1}, {"gamma": gamma}, "^gamma must be") for gamma in (0, 1.5, float("nan"))),
    *(("read", {"keys": [5, key]}, {}, f"^key {key} not found: its step was evicted, or never") for key in (0, 11, -1)),
]


def test_a_wrong_call_is_refused_and_changes_nothing(subtests: pytest.Subtests) -> None:
    """A first step that is refused leaves the buffer without a schema."""
    for call, arguments, change, message in CALLS:
        with subtests.test(message):
            wrong = arguments | change
            assert_refused(with_steps(streams=2), call, wrong, message, relive.ReplayError)
            needs_schema = change.keys() & {"observation", "action", "logp", "gamma", "actions"}
            if not needs_schema and call not in ("read", "sample"):
                assert_refused(ring(8, streams=2), call, wrong, message, relive.ReplayError)


GOOD: dict[str, Any] = {
    "observation": [1.0, 2.0],
    "action": 3,
    "reward": 1.0,
    "next_observation": [1.0, 2.0],
    "count": 1,
    "vector": np.zeros(3),
}
WRONG: list[tuple[str, Any]] = [
    ("action", 0.9),
    ("action", 300),
    ("action", -1),
    ("count", float("nan")),
    ("count", 2**70),
    ("count", None),
    ("observation", [0.0, 1.0, 2.0]),
    ("observation", [1e300, 0.0]),
    ("next_observation", [[0.0, 1.0]]),
    ("next_observation", ["a", "b"]),
    ("vector", 0.0),
    ("vector", ...),
    ("reward", [1.0]),
    ("reward", "one"),
    ("reward", 1j),
    ("unheard", 1),
]


def test_a_value_that_does_not_fit_names_its_field(subtests: pytest.Subtests) -> None:
    for name, value in WRONG:
        with subtests.test(name):
            buffer = relive.RingReplayBuffer(4, SMALL)
            buffer.add(**GOOD)
            step = {key: part for key, part in {**GOOD, name: value}.items() if part is not ...}
            assert_refused(buffer, "add", step, name, relive.SchemaError)
            assert_refused(buffer, "extend", {key: [part] for key, part in step.items()}, name, relive.SchemaError)
            assert buffer.add(**GOOD) == 1
            assert buffer.get_stats().spliced_episodes == 0


def test_arrays_of_float64_are_refused_where_a_field_is_float32(subtests: pytest.Subtests) -> None:
    narrow, rule = relive.Field((), "float32"), "must be of dtype float32, got float64: cast it with .astype"
    buffer = relive.RingReplayBuffer(9, relive.Schema(relive.Field(2, "float32"), narrow, reward=narrow))
    step: dict[str, Any] = {"observation": [0.0, 0.0], "action": 0.0, "reward": 0.0, "next_observation": [0.0, 0.0]}
    for name in ("observation", "action", "next_observation"):
        with subtests.test(name):
            wrong, of_stream = np.asarray(step[name], np.float64)[()], {key: [part] for key, part in step.items()}
            message = f"^{name} {rule}.*, or declare the field float64$"
            assert_refused(buffer, "add", step | {name: wrong}, message, relive.SchemaError)
            assert_refused(buffer, "extend", of_stream | {name: wrong[np.newaxis]}, message, relive.SchemaError)
    buffer.add([np.float64(0.1), 0.2], 0.1, np.float64(0.1), [0.1, np.float64(0.2)])
    buffer.extend([[0.1, 0.2]], [0.1], np.array([0.1]), [[0.1, 0.2]])
    assert buffer.read([0, 1]).action.tolist() == [np.float32(0.1)] * 2


WORDS = {
    "say terminated": "done dones terminal terminals terminateds episode_end is_state_terminal",
    "say truncated": "truncateds timeouts",
    "say observation": "obs",
    "say next_observation": "next_obs new_obs",
    "say it with update_priorities": "priority priorities",
}


def test_words_of_other_libraries_are_refused_with_ours(subtests: pytest.Subtests) -> None:
    for remedy, word in [(say, word) for say, words in WORDS.items() for word in words.split()]:
        with subtests.test(word):
            step: dict[str, Any] = {"observation": 0.0, "action": 0, "reward": 0.0, "next_observation": 1.0, word: True}
            for schema in (None, SCHEMA):
                message = f"^unknown extra '{word}': {remedy}"
                assert_refused(relive.RingReplayBuffer(9, schema), "add", step, message, relive.SchemaError)
            own = relive.RingReplayBuffer(9, relive.Schema(NUMBER, INT, extras={word: relive.Field((), bool)}))
            assert own.add(**step) == 0


def test_flags_are_given_by_name_alone(subtests: pytest.Subtests) -> None:
    for call in ["add", "extend", "add_episode", "add_episodes", "add_steps"]:
        with subtests.test(call), pytest.raises(TypeError, match="positional argument"):
            getattr(relive.RingReplayBuffer(9), call)(0.0, 0, 0.0, 1.0, True)


def test_a_limiter_holds_every_call_back() -> None:
    limiter = relive.SampleToInsertRatio(ratio=1.0, min_size=2, error_buffer=2.0)
    buffer = relive.RingReplayBuffer(8, limiter=limiter, seed=0)
    assert buffer.limiter is limiter
    one = {"batch_size": 1}
    for t in range(2):
        assert_refused(buffer, "sample", one, "^sample", relive.NotReadyError)
        buffer.add(float(t), 0, 0.0, next_observation=t + 1.0)
    buffer.sample(2)
    rule = r"^sample held back by SampleToInsertRatio\(.*\): add steps first$"
    assert_refused(buffer, "sample", one, rule, relive.NotReadyError)
    rule = "^batch_size must be at most 3 with SampleToInsertRatio"
    assert_refused(buffer, "sample", {"batch_size": 4}, rule, relive.ArgumentError)
    for t in range(2, 6):
        buffer.add(float(t), 0, 0.0, next_observation=t + 1.0)
    calls = {"add": ADD, "extend": EXTEND, "add_episode": EPISODE, "add_episodes": FLAT, "add_steps": STEPS}
    for call, arguments in calls.items():
        rule = rf"^{call} held back by SampleToInsertRatio\(.*\): draw samples first$"
        if call == "extend":
            arguments = {name: column[:1] for name, column in EXTEND.items()}
        assert_refused(buffer, call, arguments, rule, relive.NotReadyError)


def test_keys_that_are_not_readable_are_refused() -> None:
    buffer = with_steps()
    buffer.add(10.0, 0, 0.0)
    message = "^keys must be of steps that a window can start from, got 10$"
    assert_refused(buffer, "read", {"keys": [5, 10]}, message, relive.ArgumentError)
    with pytest.raises(relive.UnknownKeyError):
        relive.PrioritizedReplayBuffer(4).get_priorities([0])
    with pytest.raises(relive.NotReadyError, match="^read has no schema yet: add a step first$"):
        relive.RingReplayBuffer(4).read([])
    runs = relive.SequenceReplayBuffer(4, length=2)
    runs.add(0, 0, 0.0)
    assert len(runs.read([])) == 0
    assert buffer.read([]).reward.shape == (0,)


def test_a_buffer_without_priorities_says_so(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        (
            "update_priorities",
            {"keys": [0], "priorities": [1.0]},
            "^update_priorities needs a PrioritizedSampler, got U",
        ),
        ("get_priorities", {"keys": [0]}, "^get_priorities needs a PrioritizedSampler, got UniformSampler$"),
        ("sample", {"batch_size": 1, "beta": 0.4}, "^beta must be left out without priorities, got 0.4$"),
        ("read", {"keys": [2], "beta": 0.4}, "^beta must be left out without priorities, got 0.4$"),
    ]
    for call, arguments, message in cases:
        with subtests.test(message):
            for buffer in (with_steps(), filled(relive.SequenceReplayBuffer(8, length=2))):
                assert not buffer.has_priorities
                assert_refused(buffer, call, arguments, message, relive.ArgumentError)
            assert relive.PrioritizedReplayBuffer(4).has_priorities


# Draws, and the schedules that they ask.


class Scripted(relive.Schedule):
    """Returns given values, one for each call, whatever the tick."""

    def __init__(self, *script: float | Exception) -> None:
        self.script = list(script)
        self.asked: list[int] = []

    def value(self, tick: int) -> float:
        self.asked.append(tick)
        value = self.script[(len(self.asked) - 1) % len(self.script)]
        if isinstance(value, Exception):
            raise value
        return value

    def settings(self) -> dict[str, Any]:
        return {}


def filled(buffer: Any, steps: int = 6) -> Any:
    """Return the buffer with one episode of that many steps; priorities 1, 2, 3 and so on."""
    keys = buffer.add_episode(np.arange(steps + 1.0), np.arange(steps), np.ones(steps), terminated=True)
    if buffer.has_priorities:
        buffer.update_priorities(keys, np.arange(1.0, steps + 1))
    return buffer


def scheduled(beta: relive.Schedule, **settings: Any) -> Any:
    return filled(relive.PrioritizedReplayBuffer(8, alpha=1.0, epsilon=0.0, beta=beta, seed=3, **settings))


def observed(buffer: Any) -> Any:
    """Return the visible state of a buffer, without the generator."""
    return (
        zoo.plain(buffer.get_stats()),
        buffer.eligible_keys().tolist(),
        [origin.times_sampled for origin in map(buffer.explain, range(len(buffer)))],
        getattr(buffer.sampler, "_ticks", None),
    )


DRAWS: dict[str, Callable[[Any], object]] = {
    "sample": lambda buffer: buffer.sample(4),
    "sample_keys": lambda buffer: buffer.sample_keys(4),
    "batches": lambda buffer: next(buffer.batches(4, prefetch=0)),
    "mixture": lambda buffer: relive.MixtureSampler([buffer], [1]).sample(4),
}


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_schedule_is_asked_once_a_draw(draw: Callable[[Any], object], limit: int | None) -> None:
    """P91: and what it said is the value that weighs."""
    beta = Scripted(0.0, 1.0)
    buffer = scheduled(beta, max_times_sampled=limit, weight_normalization="none")
    for tick in range(3):
        batch: Any = draw(buffer)
        assert beta.asked == list(range(tick + 1))
        if limit is None and hasattr(batch, "probabilities"):
            np.testing.assert_allclose(batch.weights, (6 * batch.probabilities) ** -float(tick % 2))


def test_a_schedule_is_asked_once_a_read() -> None:
    """P91."""
    beta = Scripted(0.0, 1.0)
    buffer = scheduled(beta)
    assert buffer.read([0, 1]).weights.tolist() == [1.0, 1.0]
    assert buffer.read([0, 1]).weights.tolist() == [1.0, 0.5]
    assert beta.asked == [0, 0]


def test_a_schedule_is_asked_once_for_each_batch_drawn_ahead() -> None:
    """P91."""
    beta = Scripted(0.5)
    batches = scheduled(beta).batches(4, prefetch=2)
    assert beta.asked == []
    next(batches)
    assert beta.asked == [0, 1, 2]
    next(batches)
    assert beta.asked == [0, 1, 2, 3]
    batches.close()


def test_a_beta_that_is_given_asks_no_schedule() -> None:
    beta = Scripted(0.5)
    buffer = scheduled(beta)
    buffer.sample(4, beta=1.0)
    relive.MixtureSampler([buffer], [1]).sample(4, beta=1.0)
    next(buffer.batches(4, prefetch=1, beta=1.0))
    buffer.read([0], beta=0.5)
    for wrong in (-1.0, float("nan"), float("inf")):
        assert_refused(buffer, "sample", {"batch_size": 1, "beta": wrong}, "^beta must be", relive.ArgumentError)
    assert beta.asked == []


def test_a_schedule_is_not_asked_for_a_draw_that_cannot_be() -> None:
    beta = Scripted(0.5)
    zero = scheduled(beta)
    zero.update_priorities(range(6), np.zeros(6))
    for buffer, rule in (
        (relive.PrioritizedReplayBuffer(8, beta=beta, seed=0), "no step is stored$"),
        (scheduled(beta, limiter=relive.MinSize(7)), "^sample held back by "),
        (scheduled(beta, max_times_sampled=1), "^sample has 6 draws left"),
        (zero, "^every eligible priority weighs 0"),
    ):
        for call in ("sample", "sample_keys"):
            assert_refused(buffer, call, {"batch_size": 7}, rule, relive.NotReadyError)
    assert beta.asked == []


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
@pytest.mark.parametrize("value", [-1.0, float("nan"), "x", RuntimeError("out of order")])
def test_a_bad_value_of_a_schedule_changes_nothing(
    draw: Callable[[Any], object], limit: int | None, value: Any
) -> None:
    buffer = scheduled(Scripted(value), max_times_sampled=limit)
    before, state = observed(buffer), buffer.rng.bit_generator.state
    with pytest.raises((relive.ArgumentError, RuntimeError)):
        draw(buffer)
    assert observed(buffer) == before
    assert buffer.rng.bit_generator.state == state
