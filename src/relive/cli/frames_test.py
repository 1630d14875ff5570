"""Frames of observations that are images."""

from typing import Any

import numpy as np
import pytest

import relive
from relive.cli import frames
from relive.cli import saved_examples_test as examples


@pytest.mark.parametrize(
    ("shape", "is_image"),
    [
        ((84, 84), True),
        ((84, 84, 1), True),
        ((84, 84, 3), True),
        ((84, 84, 4), True),
        ((3, 84, 84), True),
        ((1, 84, 84), True),
        ((2, 84, 84), False),
        ((84, 84, 2), False),
        ((7, 84), False),
        ((84,), False),
        ((3, 84, 84, 3), False),
        ((1 << 13, 1 << 13), False),
        ((3, 4, 4), False),
    ],
)
def test_images_are_known_by_their_shape(shape: tuple[int, ...], is_image: bool) -> None:
    assert frames.is_image(np.dtype(np.uint8), shape) == is_image
    assert not frames.is_image(np.dtype(np.float32), shape)


@pytest.mark.parametrize(
    ("shape", "answered"),
    [
        ((20, 10), (20, 10)),
        ((20, 10, 1), (20, 10)),
        ((20, 10, 3), (20, 10, 3)),
        ((3, 20, 10), (20, 10, 3)),
        ((1, 20, 10), (20, 10)),
        ((20, 10, 4), (20, 40)),
        ((4, 20, 10), (20, 40)),
        ((600, 20), (300, 10)),
        ((512, 8), (512, 8)),
    ],
)
def test_four_channels_are_put_side_by_side_and_large_images_shrink(
    shape: tuple[int, ...], answered: tuple[int, ...]
) -> None:
    assert frames.image_of(np.zeros(shape, np.uint8)).shape == answered


def test_planes_keep_their_order() -> None:
    planes = np.arange(4, dtype=np.uint8)[:, None, None] + np.zeros((4, 8, 8), np.uint8)
    image = frames.image_of(planes)
    assert image[0].tolist() == [0] * 8 + [1] * 8 + [2] * 8 + [3] * 8
    assert np.array_equal(image, frames.image_of(np.moveaxis(planes, 0, 2)))


def test_frames_are_rows_of_the_buffer() -> None:
    buffer = examples.prioritized()
    observations = buffer.read(range(60)).observation
    found = frames.of_columns(buffer, 4)
    assert len(found) == 4
    for frame in found:
        row = int(frame.title.removeprefix("observation, row "))
        assert np.array_equal(frame.image, observations[row])
    assert [frame.title for frame in found] == [frame.title for frame in frames.of_columns(buffer, 4)]
    assert len(frames.of_columns(buffer, 1000)) == 60
    assert frames.of_columns(buffer, 0) == []


def test_each_field_of_a_dict_with_images_has_frames() -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    observation = {"left": examples.frame(1), "right": examples.frame(2), "speed": 3.0}
    buffer.add(observation, 0, 0.0, observation)
    assert [frame.title for frame in frames.of_columns(buffer, 3)] == [
        "observation/left, row 0",
        "observation/right, row 0",
    ]


def test_frames_of_objects_are_in_their_order() -> None:
    observations: list[Any] = [{"camera": examples.frame(t), "text": ""} for t in range(5)]
    found = frames.of_objects([*observations, examples.frame(7), {3: examples.frame(8)}, "none"], 100)
    titles = [f"observation {t}, camera" for t in range(5)] + ["observation 5", "observation 6"]
    assert [frame.title for frame in found] == titles
    assert [int(frame.image[0, 0]) for frame in found] == [0, 1, 2, 3, 4, 7, 8]
    assert frames.of_objects(observations, 0) == frames.of_objects([], 3) == []
