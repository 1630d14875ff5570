"""Tests of the codec: steps and other values come back, through checkpoints and journals too; forgeries do not."""

import pathlib
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import token_episode_test

step_of = token_episode_test.step_of
NAMES = ("prompt", "response", "logprobs", "policy_version", "loss_mask", "reward")


def assert_equal(one: relive.TokenStep, other: relive.TokenStep) -> None:
    for name in NAMES:
        own, its = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert (own.dtype, own.shape, own.tobytes()) == (its.dtype, its.shape, its.tobytes())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_step_comes_back_bit_for_bit(dtype: Any) -> None:
    logs = np.array([-0.1, -0.0, -7e-5], dtype)
    step = step_of([], [7, 2, 9], logprobs=logs, policy_version=[1, 2, 3], loss_mask=[True, False, True])
    codec = relive.TokenStepCodec()
    content = codec.encode(step)
    assert content == codec.encode(step)
    twin = codec.decode(content)
    assert type(twin) is relive.TokenStep
    assert_equal(twin, step)
    assert not twin.response.flags.writeable


@pytest.mark.parametrize("value", [None, [1, 5], ("TokenStep", 3), b"\0", {"a": (1.5, "x")}])
def test_other_values_are_as_a_plain_codec_writes_them(value: Any) -> None:
    codec, plain = relive.TokenStepCodec(), relive.PlainCodec()
    assert codec.encode(value) == plain.encode(value)
    assert codec.decode(codec.encode(value)) == value


def test_a_step_within_something_else_is_refused() -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"^value\[0\] must be None, bool, .*TokenStep"):
        relive.TokenStepCodec().encode([step_of([1], [2])])


GOOD: tuple[Any, ...] = (
    np.array([1], np.int32),
    np.array([2], np.int32),
    np.array([-0.5]),
    np.array([0]),
    np.array([True]),
    0.0,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (list(GOOD), "a TokenStep must be prompt, response, .*, reward, got .*"),
        (GOOD[:5], "a TokenStep must be prompt, response, .*, reward, got .*"),
        ((np.array([-1]), *GOOD[1:]), "a TokenStep cannot be made: prompt must be integers in .*"),
        ((*GOOD[:2], np.array([np.nan]), *GOOD[3:]), "a TokenStep cannot be made: logprobs must be finite.*"),
        ((*GOOD[:5], "x"), "a TokenStep cannot be made: reward must be a finite real number, got 'x'"),
    ],
)
def test_content_that_is_no_step_is_refused(value: Any, text: str) -> None:
    with pytest.raises(errors.CheckpointError, match=f"^{text}$"):
        relive.TokenStepCodec().decode(b"\0" + relive.PlainCodec().encode(value))


def test_bytes_that_were_damaged_are_refused_or_make_a_step() -> None:
    codec, rng = relive.TokenStepCodec(), random.Random(0)
    content = codec.encode(step_of([1, 5], [7, 2]))
    for _ in range(2000):
        damaged = bytearray(content[: rng.randrange(1, len(content) + 1)])
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            codec.decode(bytes(damaged))
        except errors.CheckpointError:
            continue
    with pytest.raises(errors.CheckpointError):
        codec.decode(b"")
    text: Any = "text"
    with pytest.raises(errors.ArgumentTypeError, match="^content must be bytes, got 'text'$"):
        codec.decode(text)


def test_steps_in_episodes_come_back_from_files(tmp_path: pathlib.Path) -> None:
    """P67: miles PR 1829."""
    buffer, codec = relive.EpisodeReplayBuffer[Any, Any](seed=0), relive.TokenStepCodec()
    logs = np.array([-0.1, -1 / 3], np.float32)
    steps = [step_of([1, 5], [7, 2], logprobs=logs), step_of([1, 5, 7, 2, 9], [8], policy_version=2)]
    with relive.Journal(tmp_path / "journal") as log:
        buffer.attach(log, codec=codec)
        episode_id = buffer.start_episode_nowait("agent")
        for step in steps:
            buffer.append_observation_action_reward_nowait(episode_id, step.prompt, step, 0.5)
        buffer.end_episode_nowait(episode_id, None)
    with pytest.raises(errors.CheckpointError, match=r"TokenStep .*: give codec= an object with encode and decode$"):
        buffer.save(tmp_path / "buffer")
    buffer.save(tmp_path / "buffer", codec=codec)
    loaded: Any
    for loaded in (relive.load(tmp_path / "buffer", codec=codec), relive.recover(tmp_path / "journal", codec=codec)):
        (lived,) = loaded.next_episodes_nowait(1)
        assert relive.TokenBatch.from_episodes([lived]).tokens.tolist() == [[1, 5, 7, 2, 9, 8]]
        for one, other in zip(lived.actions, steps, strict=True):
            assert_equal(one, other)
