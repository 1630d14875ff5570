"""The first hour of mistakes: what somebody who comes from another library types, and the message that they see."""

import asyncio
from collections.abc import Callable
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

HERE = np.zeros(4, np.float32)
SCHEMA = relive.Schema(relive.Field(4, "float32"), relive.Field((), "int64"), reward=relive.Field((), "float32"))


def ring(**settings: Any) -> Any:
    return relive.RingReplayBuffer(1_000, seed=0, **settings)


class Box:
    """Has what a space of Gymnasium has."""

    def sample(self) -> None: ...
    def contains(self, value: object) -> None: ...


class Env:
    """Has what an environment of Gymnasium has."""

    action_space = Box()

    def __repr__(self) -> str:
        return "<CartPole>"


FROM_ENV = "relive.integrations.gymnasium.from_env makes a schema of an environment"
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
    "done": (
        lambda: ring().add(HERE, 0, 1.0, HERE, done=True),
        errors.SchemaError,
        "unknown extra 'done': say terminated or truncated",
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
    "obs": (lambda: ring().add(HERE, 0, 1.0, obs=HERE), errors.SchemaError, "unknown extra 'obs': say observation"),
    "priority": (
        lambda: ring().add(HERE, 0, 1.0, priority=2.0),
        errors.SchemaError,
        "unknown extra 'priority': say it with update_priorities",
    ),
    "an environment for a schema": (
        lambda: ring(schema=Env()),
        errors.ArgumentTypeError,
        f"schema must be an instance of Schema, got <CartPole>: {FROM_ENV}",
    ),
    "spaces for a schema": (lambda: ring(schema=Box()), errors.ArgumentTypeError, FROM_ENV),
    "spaces in a schema": (lambda: relive.Schema(Box(), Box()), errors.ArgumentTypeError, FROM_ENV),  # type: ignore[arg-type]
    "an action of shape (1,)": (
        lambda: ring(schema=SCHEMA).add(HERE, np.array([0]), 1.0),
        errors.SchemaError,
        "action must be of shape (), got (1,)",
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
    "no stream": (
        lambda: ring(streams=4).add(HERE, 0, 1.0),
        errors.ArgumentError,
        "stream must be given where there are several, got none of 4",
    ),
    "a float for a capacity": (
        lambda: relive.RingReplayBuffer(1e6),  # type: ignore[arg-type]
        errors.ArgumentTypeError,
        "capacity must be an integer of at least 1, got 1000000.0",
    ),
    "a draw too early": (
        lambda: ring().sample(32),
        errors.NotReadyError,
        "sample has nothing to draw: no step is stored",
    ),
    "a draw from episodes too early": (
        lambda: relive.EpisodeReplayBuffer[Any, Any]().sample_n_step_nowait(32, 3, 0.99),
        errors.NotReadyError,
        "sample_n_step_nowait found no complete transition: append a step and the observation after it, or await "
        "sample_n_step",
    ),
    "a file to save to": (
        lambda: ring().save("steps.npz"),
        errors.ArgumentError,
        "path must be a directory, got 'steps.npz': a checkpoint is one, so leave .npz out",
    ),
    "or": (
        lambda: ring() or ring(),
        errors.ArgumentTypeError,
        "RingReplayBuffer is neither True nor False: say `len(buffer) > 0` or `buffer is not None`",
    ),
    "if, around a shell": (
        lambda: not relive.AsyncReplayBuffer(ring()),
        errors.ArgumentTypeError,
        "AsyncReplayBuffer is neither True nor False: say `len(buffer) > 0` or `buffer is not None`",
    ),
    "if, of episodes": (
        lambda: bool(relive.EpisodeReplayBuffer[Any, Any]()),
        errors.ArgumentTypeError,
        "EpisodeReplayBuffer is neither True nor False: say `len(buffer) > 0` or `buffer is not None`",
    ),
}


def ring_of_integers() -> Any:
    buffer = ring()
    buffer.add([0, 0], 0, 1.0)
    return buffer


@pytest.mark.parametrize("mistake", CALLS)
def test_one_line_says_what_is_wrong_and_what_to_do(
    mistake: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, kind, message = CALLS[mistake]
    with pytest.raises(kind, match=f"{re.escape(message)}$") as raised:
        call()
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (lambda torch: torch.zeros(4, requires_grad=True) * 2, ".detach()"),
        (lambda torch: torch.zeros(4, device="meta"), ".cpu()"),
        (lambda torch: torch.zeros(4, dtype=torch.bfloat16), ".float()"),
    ],
    ids=["with a gradient", "on a device", "in bfloat16"],
)
def test_a_tensor_that_numpy_cannot_read(make: Callable[[Any], Any], calls: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(
        errors.SchemaError,
        match=f"^observation must be what numpy can read, got a tensor: call {re.escape(calls)} first$",
    ):
        ring().add(make(torch), 0, 1.0)


# What goes in, and shows only later: one warning that names the cause.


def warned(fill: Callable[[], Any]) -> str:
    """Return the one warning of a call, which points at the caller."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fill()
    (warning,) = found
    assert (warning.category, warning.filename) == (errors.MisuseWarning, __file__)
    return str(warning.message)


def test_an_environment_that_reuses_its_array() -> None:
    def fill() -> None:
        buffer, observation = ring(), np.zeros(4)
        for _ in range(300):
            before = observation
            observation += 1
            buffer.add(before, 0, 1.0, observation)

    assert "copy what the environment returns" in warned(fill)


@pytest.mark.parametrize("count", [2, 4, 64])
def test_environments_that_share_a_stream(count: int) -> None:
    def fill() -> None:
        buffer = ring()
        for step in range(-(-300 // count)):
            for number in range(count):
                buffer.add([number, step], 0, 1.0, [number, step + 1])

    assert f"those of {count} environments in turn, so give each a stream of its own (streams={count}," in warned(fill)


def test_observations_that_are_normalised_as_they_come() -> None:
    def fill() -> None:
        buffer = ring()
        for step in range(300):
            buffer.add(np.full(2, step / (step + 1)), 0, 1.0, np.full(2, (step + 1) / (step + 1)))

    assert "normalise or wrap observation and next_observation alike" in warned(fill)


def test_resets_that_are_stored() -> None:
    """Gymnasium's default is NEXT_STEP: the step after an end resets the environment."""

    def fill() -> None:
        buffer = ring(streams=2)
        for number in range(20):
            buffer.extend([[number, 0]] * 2, [0, 0], [1.0, 1.0], [[number, 1]] * 2, terminated=[True, True])
            buffer.extend([[number, 1]] * 2, [0, 0], [0.0, 0.0], [[number + 1, 0]] * 2)

    said = warned(fill)
    assert "the environment resets by a step, which must not be stored (VectorRecorder leaves it out)" in said
    assert "or what was given as the final observation was the first of the next episode" in said


@pytest.mark.parametrize("is_declared", [False, True])
def test_frames_that_are_stacked_already(is_declared: bool) -> None:
    stacked = np.zeros((4, 8, 8), np.uint8)
    schema = relive.Schema(relive.Field((4, 8, 8), "uint8"), relive.Field((), "int64")) if is_declared else None
    said = warned(lambda: [buffer.add(stacked, 0, 1.0, stacked) for buffer in [ring(schema=schema, frame_stack=4)] * 3])
    assert said == (
        "frame_stack=4 stacks observation of shape (4, 8, 8), which looks stacked already: add the newest frame alone, "
        "as Recorder(env, buffer, frame_stack=4) does"
    )


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8), (4, 8), (8, 8, 4)])
def test_frames_that_are_not_stacked_are_not_warned_of(shape: tuple[int, ...]) -> None:
    frame = np.zeros(shape, np.uint8)
    for frame_stack in (1, 3, 4):
        if shape[0] != frame_stack or len(shape) != 3 or frame_stack == 3:
            ring(frame_stack=frame_stack).add(frame, 0, 1.0, frame)


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


def test_a_sampler_whose_class_is_not_imported(tmp_path: pathlib.Path) -> None:
    class NewestOfAll(relive.Sampler):
        def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
            raise NotImplementedError

    ring(sampler=NewestOfAll()).save(tmp_path / "steps")
    script = "import sys, relive; relive.load(sys.argv[1])"
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "steps")], check=False, capture_output=True, text=True
    )
    assert ended.stderr.splitlines()[-1] == (
        "relive.errors.CheckpointError: sampler was a 'NewestOfAll', a class that is not defined here: import its "
        "module, or give sampler= to load"
    )
