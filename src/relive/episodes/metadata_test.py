"""Metadata of episodes, in both families; the suites of the zoo have its journals, checkpoints and forged states."""

from collections.abc import Callable
import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.episodes import metadata

IMAGES = [np.arange(6, dtype=np.uint8).reshape(1, 2, 3), np.zeros((0, 2))]
KNOWN = {"answer": "4", "images": IMAGES, "source": {"row": 7, "tags": ("a", b"b")}, "weight": 0.5}
STEP = relive.TokenStep(prompt=[1, 5], response=[7], logprobs=[-0.5], policy_version=0)


def _episode(buffer: relive.EpisodeReplayBuffer[int, int], known: Any) -> Any:
    episode_id = buffer.start_episode_nowait("a", metadata=known)
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
    buffer.end_episode_nowait(episode_id, 1)


def _tokens(buffer: relive.TokenReplayBuffer, known: Any) -> Any:
    buffer.add_episode([STEP], agent_id="a", metadata=known)


FAMILIES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "episodes": (
        lambda: relive.EpisodeReplayBuffer[int, int](seed=0),
        _episode,
        lambda buffer: buffer.sample_n_step_nowait(1, n=1, gamma=0.9)[0].metadata,
    ),
    "tokens": (lambda: relive.TokenReplayBuffer(100, seed=0), _tokens, lambda buffer: buffer.sample(1).metadata[0]),
}
FAMILY = pytest.mark.parametrize(("make", "add", "draw"), FAMILIES.values(), ids=FAMILIES)


def as_bytes(known: Any) -> bytes:
    return metadata.encoded(known)


@FAMILY
def test_metadata_comes_back_with_episodes_and_draws(make: Any, add: Any, draw: Any, tmp_path: pathlib.Path) -> None:
    buffer = make()
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        add(buffer, KNOWN)
        buffer.save(tmp_path / "checkpoint")
        assert as_bytes(draw(buffer)) == as_bytes(KNOWN)
    for each in (relive.load(tmp_path / "checkpoint"), relive.recover(tmp_path / "journal")):
        assert as_bytes(draw(each)) == as_bytes(KNOWN)
        assert as_bytes(each.next_episodes_nowait(1)[0].metadata) == as_bytes(KNOWN)
        each.check()


@FAMILY
@pytest.mark.parametrize("known", [None, {}])
def test_without_metadata_there_is_an_empty_mapping(make: Any, add: Any, draw: Any, known: Any) -> None:
    buffer = make()
    add(buffer, known)
    assert draw(buffer) == buffer.next_episodes_nowait(1)[0].metadata == {}


@FAMILY
def test_metadata_is_copied_in_and_out(make: Any, add: Any, draw: Any) -> None:
    buffer = make()
    given: dict[str, Any] = {"image": np.ones(2), "list": [1]}
    expected = as_bytes(given)
    add(buffer, given)
    given["image"][:], given["list"][0] = 0, 0
    for _ in range(2):
        drawn = draw(buffer)
        assert as_bytes(drawn) == expected
        drawn["image"][:], drawn["list"][0] = 0, 0


def test_rows_of_a_batch_have_the_metadata_of_their_episodes() -> None:
    buffer = relive.TokenReplayBuffer(100, seed=0)
    broken = [STEP, relive.TokenStep(prompt=[9], response=[7], logprobs=[-0.5], policy_version=0)]
    for number, steps in enumerate([[STEP], broken, [STEP]]):
        buffer.add_episode(steps, agent_id="a", metadata={"number": number})
    batch = buffer.read([3, 2, 1, 0])
    assert batch.metadata == ({"number": 2}, {"number": 1}, {"number": 1}, {"number": 0})
    (parts,) = batch.micro_batches(max_tokens=5)
    assert [[each["number"] for each in part.metadata] for part in parts] == [
        [{"a": 0, "b": 1, "c": 2}["abbc"[key] if key < 4 else "a"] for key in part.keys.tolist()] for part in parts
    ]
    episodes = [relive.Episode[Any, Any](episode_id="e", agent_id="a", actions=[STEP], rewards=[0.0], metadata=KNOWN)]
    assert as_bytes(relive.TokenBatch.from_episodes(episodes).metadata[0]) == as_bytes(KNOWN)


@FAMILY
@pytest.mark.parametrize(
    ("known", "text"),
    [
        (1, "metadata must be a mapping from strings to values, got 1"),
        ([("a", 1)], "metadata must be a mapping from strings to values, got \\[\\('a', 1\\)\\]"),
        ({"a": 0, 1: 2}, "metadata must be a mapping from strings to values, got {'a': 0, 1: 2}"),
        ({"a": {"b": set}}, "metadata\\['a'\\]\\['b'\\] must be None, .* a number of numpy, got type <class 'set'>"),
    ],
)
def test_what_is_no_metadata_is_refused(make: Any, add: Any, draw: Any, known: Any, text: str) -> None:
    buffer = make()
    with pytest.raises(errors.ArgumentTypeError, match=f"^{text}$"):
        add(buffer, known)
    assert len(buffer) == 0
    buffer.check()


def test_metadata_that_contains_itself_is_refused() -> None:
    known: dict[str, Any] = {}
    known["self"] = known
    with pytest.raises(errors.ArgumentError, match=r"^metadata.* must not contain itself"):
        metadata.encoded(known)


@pytest.mark.parametrize("content", [b"n", b"i\x01\x0f", b"d\x01i\x01\x0fi\x01\x0f", b"?"])
def test_bytes_of_something_else_are_refused(content: bytes) -> None:
    with pytest.raises(errors.CheckpointError):
        metadata.decoded(content)
