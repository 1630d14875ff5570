"""Checkpoints and journals for the tests of the commands, and functions that damage them."""

import pathlib
from typing import Any

import numpy as np

import relive
from relive.persistence import archive_test
from relive.persistence import manifest


def frame(number: int, *shape: int) -> Any:
    """Return an observation that looks like an image."""
    return np.full(shape or (12, 12), number % 256, np.uint8)


def prioritized(steps: int = 60) -> relive.PrioritizedReplayBuffer:
    """Return a buffer with images, draws and priorities; episodes have ten steps."""
    buffer = relive.PrioritizedReplayBuffer(100, seed=0, max_times_sampled=5)
    for t in range(steps):
        is_last = t % 10 == 9
        buffer.add(frame(t), t % 4, t / 7, frame(t + 1), terminated=is_last and t < 50, truncated=is_last and t >= 50)
    batch = buffer.sample(32)
    buffer.update_priorities(batch.keys, np.arange(1.0, 33.0))
    return buffer


def episodes() -> relive.EpisodeReplayBuffer[Any, Any]:
    """Return a buffer with two episodes of objects, of which one is open."""
    buffer = relive.EpisodeReplayBuffer[Any, Any](seed=0)
    for length in (5, 3):
        episode_id = buffer.start_episode_nowait("agent")
        for t in range(length):
            observation = {"camera": frame(t, 12, 12, 3), "text": f"<script>{t}</script>"}
            buffer.append_observation_action_reward_nowait(episode_id, observation, t, 1.0)
        if length == 5:
            buffer.end_episode_nowait(episode_id, {"camera": frame(9, 12, 12, 3), "text": ""})
    return buffer


def journal(path: pathlib.Path, steps: int = 30, segment_bytes: int = 1000) -> relive.RingReplayBuffer:
    """Return a buffer whose journal is at a path, closed, in several segments."""
    buffer = relive.RingReplayBuffer(100, seed=0)
    with relive.Journal(path, fsync="never", segment_bytes=segment_bytes) as journal:
        buffer.attach(journal)
        for t in range(steps):
            buffer.add(float(t), 0, 1.0, t + 1.0, terminated=t % 5 == 4)
        buffer.detach()
    return buffer


def queued() -> relive.EpisodeReplayBuffer[Any, Any]:
    """Return a buffer that has handed an episode to its learner, and keeps another for it."""
    buffer = relive.EpisodeReplayBuffer[Any, Any](seed=0)
    for number in range(2):
        episode_id = buffer.start_episode_nowait("agent")
        buffer.append_observation_action_reward_nowait(episode_id, number, 0, 1.0)
        buffer.end_episode_nowait(episode_id, number)
    buffer.next_episodes_nowait(1)
    return buffer


def segments(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the segments of a journal, the oldest first."""
    return sorted(path.glob("segment-*.relive"))


def change_byte(path: pathlib.Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def forge(path: pathlib.Path, **members: Any) -> None:
    """Change members of the manifest of a checkpoint, and write it anew."""
    found = archive_test.contents_of(path)
    values, arrays = manifest.decoded(found["manifest.json"], "m")
    archive_test.written(path, {**found, "manifest.json": manifest.encoded(values | members, arrays)})
