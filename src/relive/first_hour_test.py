"""The first hour of mistakes: what users of other libraries type, and the message that they see."""

import asyncio
from collections.abc import Callable
import contextlib
import importlib
import pathlib
import re
import subprocess
import sys
from typing import Any
import warnings

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import words

HERE = np.zeros(4, np.float32)
SCHEMA_OF_DICTS = relive.Schema({"speed": relive.Field((), float)}, relive.Field((), int))
SCHEMA = relive.Schema(relive.Field(4, "float32"), relive.Field((), "int64"), reward=relive.Field((), "float32"))


def ring(**settings: Any) -> Any:
    return relive.RingReplayBuffer(1_000, seed=0, **settings)


ring_class: Any = relive.RingReplayBuffer


class Box:
    """Has what a space of Gymnasium has."""

    def sample(self) -> None: ...
    def contains(self, value: object) -> None: ...


class Env:
    """Has what an environment of Gymnasium has."""

    action_space = Box()

    def __repr__(self) -> str:
        return "<CartPole>"


LOADER = "use sample, and relive.integrations.torch.data_loader for a DataLoader"
FROM_ENV = "relive.integrations.gymnasium.from_env makes a schema of an environment"


def truth_of(make: Callable[[], Any]) -> Callable[[], bool]:
    return lambda: bool(make())


CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "the arguments of Stable-Baselines3": (
        lambda: ring().add(HERE, HERE, np.array([0]), np.array([1.0]), np.array([False]), [{}]),
        TypeError,
        "takes from 4 to 5 positional arguments but 7 were given",
    ),
    "its order": (
        lambda: ring().add(HERE, HERE, 0, 1.0),
        errors.SchemaError,
        "next_observation must be of shape (4,), got (): the order is observation, action, reward, next_observation",
    ),
    "a flag by position": (
        lambda: ring().add(HERE, 0, 1.0, HERE, False),
        TypeError,
        "takes from 4 to 5 positional arguments but 6 were given",
    ),
    "a mistyped flag": (
        lambda: ring().add(HERE, 0, 1.0, HERE, terminate=True),
        errors.SchemaError,
        "unknown extra 'terminate': say terminated",
    ),
    "info": (
        lambda: ring().add(HERE, 0, 1.0, HERE, info={}),
        errors.SchemaError,
        "unknown extra 'info': say the values that you need by their names",
    ),
    "an environment for a schema": (
        lambda: ring(schema=Env()),
        errors.ArgumentTypeError,
        f"schema must be an instance of Schema, got <CartPole>: {FROM_ENV}",
    ),
    "spaces for a schema": (lambda: ring(schema=Box()), errors.ArgumentTypeError, FROM_ENV),
    "spaces in a schema": (lambda: relive.Schema(Box(), Box()), errors.ArgumentTypeError, FROM_ENV),  # type: ignore[arg-type]
    "an id of an environment for a schema": (
        lambda: ring(schema="CartPole-v1"),
        errors.ArgumentTypeError,
        f"schema must be an instance of Schema, got 'CartPole-v1': {FROM_ENV}",
    ),
    "what reset returns": (
        lambda: ring().add((HERE, {}), 0, 1.0),
        errors.SchemaError,
        "observation must be an array of numbers, of text or of dates, got (array([0., 0....dtype=float32), {}): "
        "reset returns (observation, info): pass the first",
    ),
    "what reset returns, for a number": (
        lambda: ring().add((3, {"prob": 1.0}), 0, 1.0),
        errors.SchemaError,
        "observation must be an array of numbers, of text or of dates, got (3, {'prob': 1.0}): "
        "reset returns (observation, info): pass the first",
    ),
    "what reset returns, as the next observation": (
        lambda: ring(schema=SCHEMA).add(HERE, 0, 1.0, (HERE, {})),
        errors.SchemaError,
        "next_observation must be an array of numbers, of text or of dates, got (array([0., 0....dtype=float32), {}): "
        "reset returns (observation, info): pass the first",
    ),
    "what reset returns, for a dict": (
        lambda: ring(schema=SCHEMA_OF_DICTS).add(({"speed": 0.5}, {}), 0, 1.0),
        errors.SchemaError,
        "observation must be a mapping with observation/speed, got ({'speed': 0.5}, {}): "
        "reset returns (observation, info): pass the first",
    ),
    "rows of four environments in one stream": (
        lambda: ring().extend(np.zeros((4, 2)), [0] * 4, [1.0] * 4),
        errors.ArgumentError,
        "extend must have a step of each of 1 streams, got 4 rewards: make the buffer with streams=4, or add "
        "consecutive steps with add_steps",
    ),
    "float64, whatever its values": (
        lambda: ring(schema=SCHEMA).add(np.zeros(4), 0, 1.0),
        errors.SchemaError,
        "observation must be of dtype float32, got float64: cast it with .astype('float32'), or declare the field "
        "float64",
    ),
    "a float after integers": (
        lambda: [ring_of_integers().add([0.5, 0.0], 0, 1.0)],
        errors.SchemaError,
        "observation must fit int64, got 0.5: cast it yourself, or declare the field float64",
    ),
    "a draw from episodes too early": (
        lambda: relive.EpisodeReplayBuffer[Any, Any]().sample_n_step_nowait(32, 3, 0.99),
        errors.NotReadyError,
        "sample_n_step_nowait found no complete transition: append a step and the observation after it, or await "
        "sample_n_step",
    ),
    "a function for beta": (
        lambda: relive.PrioritizedReplayBuffer(9, beta=print),  # type: ignore[arg-type]
        errors.ArgumentTypeError,
        "beta must be a finite real number, got <built-in function print>: the constructor takes a Schedule, such as "
        "LinearSchedule(0.4, 1.0, steps=100_000)",
    ),
    "a schedule for one draw": (
        lambda: prioritized().sample(4, beta=relive.LinearSchedule(0.4, 1.0, 9)),
        errors.ArgumentTypeError,
        "got LinearSchedule(0.4, 1.0, 9): the constructor takes a Schedule, such as "
        "LinearSchedule(0.4, 1.0, steps=100_000)",
    ),
    "as many observations as rewards": (
        lambda: ring().add_episode({"x": np.zeros((3, 2))}, [0] * 3, [0.0] * 3, terminated=True),
        errors.SchemaError,
        "observations/x must be of shape (4, 2), got (3, 2): give the observation after the last step too",
    ),
    "one flag for all agents": (
        lambda: joint().add({"a": 0}, {"a": 0}, {"a": 0.0}, {"a": 1}, terminated=True),
        errors.SchemaError,
        "unknown extra 'terminated': say terminations",
    ),
    "dones by agent": (
        lambda: joint().extend({"a": [0]}, {"a": [0]}, {"a": [0.0]}, {"a": [1]}, dones={"a": [True]}),
        errors.SchemaError,
        "unknown extra 'dones': say terminations or truncations",
    ),
    "infos by agent": (
        lambda: joint().add({"a": 0}, {"a": 0}, {"a": 0.0}, {"a": 1}, infos={"a": {}}),
        errors.SchemaError,
        "unknown extra 'infos': say the values that you need by their names",
    ),
    "the name of an algorithm": (
        lambda: relive.group_advantages([1.0, 0.0], [0, 0], normalize="grpo"),  # type: ignore[call-overload]
        errors.ArgumentError,
        "normalize must be 'mean' or 'mean_std' or 'leave_one_out', got 'grpo': say 'mean_std'",
    ),
    "a buffer for replay_buffer_class": (
        lambda: ring_class(100, Box(), Box(), device="auto", n_envs=1, optimize_memory_usage=False),
        errors.ArgumentTypeError,
        "RingReplayBuffer() got an unexpected keyword argument 'optimize_memory_usage': replay_buffer_class= of "
        "Stable-Baselines3 takes relive.integrations.stable_baselines3.ReplayBuffer",
    ),
    "a plain with": (
        lambda: entered(relive.EpisodeReplayBuffer[Any, Any]().episode("a")),
        errors.ArgumentTypeError,
        "episode needs `async with`: use episode_nowait for a plain `with`",
    ),
    "an async with": (
        lambda: asyncio.run(entered_async(relive.EpisodeReplayBuffer[Any, Any]().episode_nowait("a"))),
        errors.ArgumentTypeError,
        "episode_nowait needs a plain `with`: use episode for `async with`",
    ),
    "a row by its number": (
        lambda: prioritized()[0],
        errors.ArgumentTypeError,
        f"PrioritizedReplayBuffer is not indexed: {LOADER}",
    ),
    "a row of a shell": (
        lambda: relive.ThreadSafeReplayBuffer(ring())[0],
        errors.ArgumentTypeError,
        f"ThreadSafeReplayBuffer is not indexed: {LOADER}",
    ),
    "an episode by its number": (
        lambda: relive.EpisodeReplayBuffer[Any, Any]()[0],
        errors.ArgumentTypeError,
        "EpisodeReplayBuffer is not indexed: use sample_n_step",
    ),
    **{
        f"the truth of a {name}": (
            truth_of(make),
            errors.ArgumentTypeError,
            f"{name} is neither True nor False: use `len(buffer) > 0` or `buffer is not None`",
        )
        for name, make in {
            "RingReplayBuffer": ring,
            "AsyncReplayBuffer": lambda: relive.AsyncReplayBuffer(ring()),
            "EpisodeReplayBuffer": lambda: relive.EpisodeReplayBuffer[Any, Any](),
        }.items()
    },
}


def prioritized() -> Any:
    buffer = relive.PrioritizedReplayBuffer(1_000, seed=0)
    buffer.add(HERE, 0, 1.0, HERE)
    return buffer


def joint() -> Any:
    return relive.JointReplayBuffer(9, agents=["a"])


def entered(block: Any) -> None:
    with block:
        raise AssertionError


async def entered_async(block: Any) -> None:
    async with block:
        raise AssertionError


def ring_of_integers() -> Any:
    buffer = ring()
    buffer.add([0, 0], 0, 1.0)
    return buffer


@pytest.mark.parametrize("mistake", CALLS)
def test_an_error_is_one_line_with_a_remedy(
    mistake: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, kind, message = CALLS[mistake]
    with pytest.raises(kind, match=f"{re.escape(message)}$") as raised:
        call()
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("save", [lambda path: prioritized().save(path), lambda path: asyncio.run(save_async(path))])
def test_a_missing_directory_is_named(save: Callable[[pathlib.Path], None], tmp_path: pathlib.Path) -> None:
    said = f"^{tmp_path}/runs/one cannot be locked: there is no directory {tmp_path}/runs, make it first$"
    with pytest.raises(errors.CheckpointError, match=said):
        save(tmp_path / "runs" / "one")
    assert not list(tmp_path.iterdir())


async def save_async(path: pathlib.Path) -> None:
    await relive.EpisodeReplayBuffer[Any, Any]().save_async(path)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_loader_of_a_buffer_names_ours(num_workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    said = f"RingReplayBuffer is not indexed: {LOADER}"
    buffer = ring()
    buffer.add_steps(np.zeros(9), [0] * 8, [0.0] * 8)
    with pytest.raises(errors.ArgumentTypeError, match=said):
        next(iter(data.DataLoader(buffer, batch_size=4, num_workers=num_workers)))
    with pytest.raises(TypeError, match="'RingReplayBuffer' object is not iterable"):
        iter(buffer)


# Mistakes that a single call cannot show: one warning names the cause.


def warned(fill: Callable[[], Any]) -> str:
    """Return the one warning of a call, which points at the caller."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fill()
    (warning,) = found
    assert (warning.category, warning.filename) == (errors.MisuseWarning, __file__)
    return str(warning.message)


def test_an_environment_that_reuses_its_array_is_noticed() -> None:
    def fill() -> None:
        buffer, observation = ring(), np.zeros(4)
        for _ in range(300):
            before = observation
            observation += 1
            buffer.add(before, 0, 1.0, observation)

    assert "copy what the environment returns" in warned(fill)


@pytest.mark.parametrize("count", [2, 4, 64])
def test_environments_that_share_a_stream_are_noticed(count: int) -> None:
    def fill() -> None:
        buffer = ring()
        for step in range(-(-300 // count)):
            for number in range(count):
                buffer.add([number, step], 0, 1.0, [number, step + 1])

    assert f"those of {count} environments in turn, so give each a stream of its own (streams={count}," in warned(fill)


def test_observations_normalised_on_the_fly_are_noticed() -> None:
    def fill() -> None:
        buffer = ring()
        for step in range(300):
            buffer.add(np.full(2, step / (step + 1)), 0, 1.0, np.full(2, (step + 1) / (step + 1)))

    assert "normalise or wrap observation and next_observation alike" in warned(fill)


def test_stored_resets_are_noticed() -> None:
    """Gymnasium's default is NEXT_STEP: the step after an end resets the environment."""

    def fill() -> None:
        buffer = ring(streams=2)
        for number in range(20):
            buffer.extend([[number, 0]] * 2, [0, 0], [1.0, 1.0], [[number, 1]] * 2, terminated=[True, True])
            buffer.extend([[number, 1]] * 2, [0, 0], [0.0, 0.0], [[number + 1, 0]] * 2)

    said = warned(fill)
    assert "the environment resets by a step, which must not be stored (VectorRecorder leaves it out)" in said
    assert "or what was given as the final observation was the first of the next episode" in said


# Words of other libraries.


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        ("relive", "ReplayBuffer", "use RingReplayBuffer"),
        ("relive", "PrioritizedBuffer", "use PrioritizedReplayBuffer"),
        ("relive", "EpisodeBuffer", "use EpisodeReplayBuffer"),
        ("relive", "HerReplayBuffer", "use relabel"),
        ("relive", "RingReplayBufer", "use RingReplayBuffer"),
        ("relive", "prioritisedreplaybuffer", "use PrioritizedReplayBuffer"),
        *(("relive", name, f"use relive.integrations.{name}") for name in ("torch", "minari", "gymnasium", "jax")),
        ("relive", "sb3", "use relive.integrations.stable_baselines3"),
        ("relive", "as_tensors", "use relive.integrations.torch.as_tensors"),
        ("relive", "Recorder", "use relive.integrations.gymnasium.Recorder"),
        ("relive.integrations", "sb3", "use relive.integrations.stable_baselines3"),
        ("relive.integrations", "pyarrow", "use relive.integrations.arrow"),
        ("relive.integrations", "data_loader", "use relive.integrations.torch.data_loader"),
        ("relive.integrations", "gymnasiun", "use gymnasium"),
    ],
)
def test_a_module_suggests_a_name(module: str, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=f"^module '{module}' has no attribute '{name}': {remedy}$"):
        getattr(importlib.import_module(module), name)
    assert not hasattr(importlib.import_module(module), name)
    with pytest.raises(ImportError, match=f"^cannot import name '{name}' from '{module}': {remedy}$"):
        exec(f"from {module} import {name}")


def test_a_word_for_what_a_module_has_is_one() -> None:
    for words_of in words.NAMES.values():
        for word in words_of:
            place, _, name = f"relive.{word.removeprefix('relive.')}".rpartition(".")
            with contextlib.suppress(errors.MissingExtraError):  # The library may not be installed.
                assert hasattr(importlib.import_module(place), name)


def test_a_module_suggests_nothing_for_other_names() -> None:
    for name in ("Trainer", "_ring", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"^module 'relive' has no attribute '{name}'$"):
            getattr(relive, name)
        with pytest.raises(ImportError, match=f"^cannot import name '{name}' from 'relive' "):
            exec(f"from relive import {name}")


def test_a_part_of_the_library_can_be_imported_by_its_name() -> None:
    program = """
import relive
try:
    relive.fleet
except AttributeError as error:
    print(error)
from relive import fleet
print(relive.fleet is fleet)
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    said = "module 'relive' has no attribute 'fleet': import relive.fleet first"
    assert printed.splitlines() == [said, "True"]


@pytest.mark.parametrize(
    ("make", "call", "said"),
    [
        (ring, "add", "RingReplayBuffer.add() missing 3 required positional arguments"),
        (ring, "sample", "RingReplayBuffer.sample() missing 1 required positional argument: 'batch_size'"),
        (ring, "load", "RingReplayBuffer.load() missing 1 required positional argument: 'path'"),
        (ring, "load_state_dict", "RingReplayBuffer.load_state_dict() missing"),
        (lambda: prioritized(), "sample", "PrioritizedReplayBuffer.sample() missing"),
        (lambda: joint(), "sample", "JointReplayBuffer.sample() missing"),
        (lambda: joint(), "add", "JointReplayBuffer.add() missing"),
        (lambda: relive.SequenceReplayBuffer(9, length=2), "sample", "SequenceReplayBuffer.sample() missing"),
        (lambda: relive.ItemReplayBuffer(9), "save", "ItemReplayBuffer.save() missing"),
        (lambda: relive.TokenReplayBuffer(9), "reject", "TokenReplayBuffer.reject() missing"),
        (lambda: relive.AsyncReplayBuffer(ring()), "read", "AsyncReplayBuffer.read() missing"),
        (lambda: batch_of("sequences"), "to", "SequenceBatch.to() missing"),
        (lambda: type("Mine", (relive.RingReplayBuffer,), {})(9), "sample", "Mine.sample() missing"),
    ],
)
def test_errors_of_python_name_the_class(make: Callable[[], Any], call: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(said)}"):
        getattr(make(), call)()


@pytest.mark.parametrize(
    ("make", "word", "said"),
    [
        (relive.EpisodeReplayBuffer, "capacity", "say max_transitions"),
        (relive.TokenReplayBuffer, "capacity", "say max_tokens"),
        (relive.RolloutBuffer, "capacity", "say max_steps"),
        (ring, "max_transitions", "say capacity"),
        (relive.EpisodeReplayBuffer, "n_step", "leave it out, the call that discounts takes it, as advantages and "),
        (relive.RolloutBuffer, "gamma", "leave it out, the call that discounts takes it, as advantages and "),
        (ring, "discount", "say gamma"),
        (ring, "alpha", "leave it out, PrioritizedReplayBuffer has priorities"),
        (ring, "prioritized", "leave it out, PrioritizedReplayBuffer has priorities"),
        (relive.PrioritizedReplayBuffer, "priority_exponent", "say alpha"),
        (relive.JointReplayBuffer, "num_agents", "say agents"),
        (ring, "buffer_size", "say capacity"),
        (ring, "max_size", "say capacity"),
        (relive.EpisodeReplayBuffer, "buffer_size", "say max_transitions"),
        (relive.TokenReplayBuffer, "max_size", "say max_tokens"),
        (relive.RolloutBuffer, "buffer_size", "say max_steps"),
        (ring, "num_envs", "say streams"),
        (relive.PrioritizedReplayBuffer, "n_envs", "say streams"),
        (relive.RolloutBuffer, "n_envs", "leave it out, any number of environments fits"),
        (ring, "observation_space", "say schema"),
        (relive.SequenceReplayBuffer, "action_space", "say schema"),
        (relive.JointReplayBuffer, "action_space", "say schemas"),
        (relive.EpisodeReplayBuffer, "observation_space", "leave it out, the first step tells"),
        (ring, "device", "leave it out, relive.integrations.torch.as_tensors makes tensors of a batch and "),
    ],
)
def test_a_constructor_suggests_the_name_of_an_argument(make: Callable[..., Any], word: str, said: str) -> None:
    with pytest.raises(TypeError, match=rf"^\w+\(\) got an unexpected keyword argument '{word}': {re.escape(said)}"):
        make(**{word: 4})


def test_an_unknown_argument_is_a_type_error_of_python() -> None:
    with pytest.raises(TypeError, match=r"^RingReplayBuffer.__init__\(\) got an unexpected keyword argument 'colour'"):
        ring(colour=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: relive.EpisodeReplayBuffer[int, int](1_000),  # type: ignore[call-arg]
            "EpisodeReplayBuffer takes max_transitions= and max_episodes= by name: .* takes 1 positional argument but",
        ),
        (
            lambda: relive.RingReplayBuffer(1_000, None, 3),  # type: ignore[call-arg]
            "RingReplayBuffer takes capacity, schema by place, and n_step= and gamma= by name: .* from 2 to 3 posi",
        ),
        (
            lambda: relive.RolloutBuffer(1_000, 4),  # type: ignore[call-arg]
            "RolloutBuffer takes max_steps by place: .* 2 positional arguments but 3 were",
        ),
        (
            lambda: ring().extend(HERE, 0, 1.0, HERE, False, [{}]),
            "extend takes observation, action, reward, next_observation by place, and terminated= and truncated= by ",
        ),
        (
            lambda: relive.RolloutBuffer(9).add(HERE, 0, 1.0, False, 0.5, -0.7),  # type: ignore[arg-type]
            "add takes observation, action, reward, value by place, and terminated= and truncated= by name: ",
        ),
        (
            lambda: relive.JointReplayBuffer(9, agents=["a"]).add({}, {}, {}, {}, {}),  # type: ignore[arg-type]
            "add takes observations, actions, rewards, next_observations by place, and terminations= and truncations= ",
        ),
    ],
)
def test_calls_name_their_keyword_only_arguments(call: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        call()


def test_a_subclass_may_take_any_argument() -> None:
    class Moved(relive.RingReplayBuffer):
        def __init__(self, *values: Any, device: str, **settings: Any) -> None:
            super().__init__(*values, **settings)
            self.device = device

    assert Moved(10, device="cuda", n_step=2).device == "cuda"


BUFFERS: dict[str, Callable[[], Any]] = {
    "columns": ring, "episodes": relive.EpisodeReplayBuffer, "tokens": lambda: relive.TokenReplayBuffer(9),
    "items": lambda: relive.ItemReplayBuffer(9), "a rollout": lambda: relive.RolloutBuffer(9),
    "joint steps": lambda: relive.JointReplayBuffer(9, agents=["a"]),
    "asyncio": lambda: relive.AsyncReplayBuffer(ring()),
    "threads": lambda: relive.ThreadSafeReplayBuffer(ring()),
}  # fmt: skip


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize(
    ("word", "methods"),
    [
        ("push", ["add", "append_observation_action_reward", "add_episode"]),
        ("append", ["add", "append_observation_action_reward", "add_episode"]),
        ("store", ["add", "append_observation_action_reward", "add_episode"]),
        ("put", ["add", "append_observation_action_reward", "add_episode"]),
        ("reset", ["clear"]),
        ("full", ["is_full", "get_stats"]),
        ("sample_batch", ["sample", "sample_n_step", "arrays"]),
        ("update_priority", ["update_priorities"]),
        ("add_trajectory", ["add_episode", "episode", "add"]),
        ("finish_episode", ["end_episode"]),
        ("colour", []),
    ],
)
def test_a_buffer_suggests_the_name_of_a_method(kind: str, word: str, methods: list[str]) -> None:
    buffer = BUFFERS[kind]()
    found = [method for method in methods if hasattr(buffer, method)]
    remedy = f": use {found[0]}" if found else ""
    with pytest.raises(AttributeError, match=rf"^'{type(buffer).__name__}' object has no attribute '{word}'{remedy}$"):
        getattr(buffer, word)
    assert not hasattr(buffer, word)
    assert found or word in ("update_priority", "finish_episode", "colour")


@pytest.mark.parametrize(
    ("word", "method"),
    [
        ("start", "start_episode"), ("begin_episode", "start_episode"), ("end", "end_episode"),
        ("add", "append_observation_action_reward"), ("step", "append_observation_action_reward"),
        ("append_nowait", "append_observation_action_reward_nowait"), ("add_episode", "episode"),
        ("sample", "sample_n_step"), ("get", "sample_n_step"), ("next_episode", "next_episodes"),
        ("writer.add", "append"), ("writer.step", "append"), ("writer.done", "end"),
    ],
)  # fmt: skip
def test_an_episode_buffer_and_its_writer_suggest_their_calls(word: str, method: str) -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any]()
    with buffer.episode_nowait("a") as writer:
        owner: Any = writer if word.startswith("writer.") else buffer
        name = word.removeprefix("writer.")
        said = f"^'{type(owner).__name__}' object has no attribute '{name}': use {method}$"
        with pytest.raises(AttributeError, match=said):
            getattr(owner, name)


@pytest.mark.parametrize("kind", BUFFERS)
def test_the_size_of_a_buffer_is_its_length(kind: str) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'size': use len\(buffer\)$"):
        _ = BUFFERS[kind]().size


def test_an_error_in_a_property_is_not_replaced() -> None:
    class Mine(relive.RingReplayBuffer):
        @property
        def temperature(self) -> float:
            return float(self.heat)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'Mine' object has no attribute 'heat'$"):
        _ = Mine(10).temperature


# Words of other libraries on a batch.


def batch_of(kind: str) -> Any:
    buffer = ring() if kind == "transitions" else relive.SequenceReplayBuffer(1_000, length=2, seed=0)
    for t in range(4):
        buffer.add([float(t)], 0, 1.0, [t + 1.0])
    return buffer.sample(2)


@pytest.mark.parametrize(
    ("kind", "name", "remedy"),
    [
        ("transitions", "obs", ": use observation"),
        ("transitions", "next_obs", ": use next_observation"),
        ("transitions", "rewards", ": use reward"),
        ("transitions", "actions", ": use action"),
        ("transitions", "dones", ": use next_discount or is_terminal"),
        ("transitions", "terminated", ": use next_discount or is_terminal"),
        ("transitions", "truncated", ": use next_discount"), ("transitions", "idxs", ": use keys"),
        ("transitions", "info", ": use extras"), ("transitions", "indices", ": use keys"),
        ("transitions", "infos", ": use extras"), ("transitions", "masks", ""), ("transitions", "colour", ""),
        ("sequences", "dones", ": use terminated or truncated"), ("sequences", "masks", ": use mask"),
        ("sequences", "next_obs", ""),
    ],
)  # fmt: skip
def test_a_batch_suggests_the_name_of_a_field(kind: str, name: str, remedy: str) -> None:
    batch = batch_of(kind)
    with pytest.raises(AttributeError) as raised:
        getattr(batch, name)
    assert str(raised.value) == f"{type(batch).__name__!r} object has no attribute {name!r}{remedy}"
    assert (raised.value.name, raised.value.obj is batch) == (name, True)
    assert not hasattr(batch, name)


@pytest.mark.parametrize("kind", ["transitions", "sequences"])
def test_a_batch_has_its_fields_by_name(kind: str) -> None:
    batch = batch_of(kind)
    assert batch["reward"] is batch.reward
    assert batch["keys"] is batch.keys
    with pytest.raises(KeyError, match="^\\w+ has no field 'obs': use observation$"):
        batch["obs"]
    with pytest.raises(errors.UnknownKeyError, match="^\\w+ has no field 'map': it has observation, action, reward, "):
        batch["map"]


def test_a_slice_of_a_batch_is_a_batch_of_its_rows() -> None:
    buffer = ring()
    for t in range(9):
        buffer.add({"x": [float(t)]}, t, 1.0, {"x": [t + 1.0]}, log_probability=0.5)
    batch = buffer.sample(32)
    first = batch[0:8]
    assert (type(first), len(first)) == (relive.TransitionBatch, 8)
    for name in ("action", "keys", "weights"):
        assert np.array_equal(first[name], batch[name][:8])
    assert np.array_equal(first.observation["x"], batch.observation["x"][:8])
    assert first.extras["log_probability"].shape == (8,)
    assert len(batch[np.int64(30) :]) == 2
    assert np.array_equal(batch[::4].keys, batch.keys[::4])


def test_batches_of_all_buffers_can_be_sliced() -> None:
    joint = relive.JointReplayBuffer(9, agents=["a", "b"], seed=0)
    for t in range(4):
        joint.add({"a": t, "b": t}, {"a": t, "b": t}, {"a": 0.0, "b": 0.0}, {"a": t + 1, "b": t + 1})
    drawn = joint.sample(5)
    assert drawn[1:3].agents["b"].action.tolist() == drawn.agents["b"].action.tolist()[1:3]
    tokens = relive.TokenReplayBuffer(99, seed=0)
    step = relive.TokenStep(prompt=[1, 2], response=[3], logprobs=[-1.0], policy_version=0)
    tokens.add_episode([step], agent_id="agent")
    several = tokens.sample(3)[1:]
    assert (several.agent_ids, several.tokens.tolist()) == (["agent"] * 2, [[1, 2, 3]] * 2)
    assert len(batch_of("sequences")[:1]) == 1


@pytest.mark.parametrize("asked", [3, np.array([0, 1]), None, slice("a", None), slice(0, 1.5), slice(0, 8, 0)])
def test_other_indices_of_a_batch_are_refused(asked: Any) -> None:
    rule = "^a batch is indexed by the name of a field or by a slice of rows, as in batch\\[0:8\\], got "
    with pytest.raises(errors.ArgumentTypeError, match=rule):
        batch_of("transitions")[asked]
    with pytest.raises(TypeError, match="not iterable"):
        list(batch_of("transitions"))


# With Gymnasium.


@pytest.fixture
def recorded() -> Any:
    """Gymnasium, and relive's integration."""
    gymnasium = pytest.importorskip("gymnasium")
    return gymnasium, importlib.import_module("relive.integrations.gymnasium")


def test_a_space_given_for_an_environment_is_refused(recorded: Any) -> None:
    gymnasium, integration = recorded
    with pytest.raises(
        errors.ArgumentTypeError,
        match=r"^env must be an environment of Gymnasium, or an id of one, got Box\(.*\): schema_from_spaces takes ",
    ):
        integration.from_env(gymnasium.make("CartPole-v1").observation_space)


@pytest.mark.parametrize("kind", ["Recorder", "VectorRecorder", "EpisodeRecorder", "Recorder of a shell"])
def test_swapped_arguments_of_a_recorder_are_noticed(recorded: Any, kind: str) -> None:
    gymnasium, integration = recorded
    buffer: Any = relive.EpisodeReplayBuffer() if kind == "EpisodeRecorder" else ring()
    buffer = relive.ThreadSafeReplayBuffer(buffer) if "shell" in kind else buffer
    env = gymnasium.make_vec("CartPole-v1", 2) if kind == "VectorRecorder" else gymnasium.make("CartPole-v1")
    more = {"agent_id": "agent"} if kind == "EpisodeRecorder" else {}
    said = f"^env must be an environment, got {re.escape(repr(buffer))}: the order is env, buffer$"
    with pytest.raises(errors.ArgumentTypeError, match=said):
        getattr(integration, kind.split()[0])(buffer, env, **more)


@pytest.mark.parametrize(
    ("make", "shown", "remedy"),
    [
        (lambda torch: torch.tensor(1), "tensor(1)", "pass action.item()"),
        (lambda torch: 1.0, "1.0", "pass int(action)"),
        (lambda torch: np.float64(1.0), "np.float64(1.0)", "pass int(action)"),
    ],
    ids=["a tensor", "a float", "a float of numpy"],
)
@pytest.mark.parametrize("has_schema", [False, True])
def test_a_discrete_action_that_is_not_an_integer_is_refused(
    recorded: Any, make: Callable[[Any], Any], shown: str, remedy: str, has_schema: bool
) -> None:
    gymnasium, integration = recorded
    action = make(pytest.importorskip("torch"))
    inside = gymnasium.make("CartPole-v1")
    buffer = ring(schema=integration.from_env(inside) if has_schema else None)
    env = integration.Recorder(inside, buffer)
    env.reset(seed=0)
    said = f"action must be an integer, as the environment has Discrete(2), got {shown}: {remedy}"
    with pytest.raises(errors.SchemaError, match=f"^{re.escape(said)}$"):
        env.step(action)
    env.step(1)
    env.step(np.array(1))
    assert len(buffer) == 2


@pytest.mark.parametrize("kind", ["Recorder", "VectorRecorder"])
def test_a_recorder_for_another_environment_is_refused(recorded: Any, kind: str) -> None:
    gymnasium, integration = recorded
    buffer = ring(schema=integration.from_env("CartPole-v1"))
    env = gymnasium.make("Acrobot-v1") if kind == "Recorder" else gymnasium.make_vec("Acrobot-v1", 1)
    said = "observation in the schema of the buffer must be of shape (6,), as in the environment, got (4,): from_env"
    with pytest.raises(errors.ArgumentError, match=f"^{re.escape(said)} makes its schema$"):
        getattr(integration, kind)(env, buffer)


# What works.


def test_asyncio_run_may_be_called_twice() -> None:
    buffer: relive.EpisodeReplayBuffer[int, int] = relive.EpisodeReplayBuffer()

    async def act() -> None:
        async with buffer.episode("agent") as writer:
            await writer.append(0, 0, 1.0)
            await writer.end(1)

    asyncio.run(act())
    asyncio.run(act())
    assert len(buffer) == 2
