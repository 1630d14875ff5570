"""A few frames of a buffer whose observations are images."""

from collections.abc import Sequence
import dataclasses
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.buffers import column

Image: TypeAlias = npt.NDArray[np.uint8]

_LEAST_SIDE = 8
_MOST_SIDE = 512
_MOST_BYTES = 1 << 24
_MOST_FIELDS = 4


@dataclasses.dataclass(frozen=True)
class Frame:
    """An observation as an image.

    Attributes:
        title: Which observation it is.
        image: Its pixels: [height, width] in grey, or [height, width, 3] in colours.
    """

    title: str
    image: Image


def of_columns(buffer: "column.ColumnReplayBuffer[Any]", count: int) -> list[Frame]:
    """Return at most `count` frames of each field that holds images, of rows drawn at random, the same at each call."""
    schema, slots = buffer.history.schema, buffer.history.alive_slots()
    images = [
        path for path in schema.observation_paths if is_image(schema.fields[path].dtype, schema.fields[path].shape)
    ]
    frames = []
    rng = np.random.default_rng(0)
    for path in images[:_MOST_FIELDS]:
        rows = _some(rng, len(slots), count)
        values = buffer.history.storage.read(slots[rows], [path])[path]
        frames += [Frame(f"{path}, row {row:,}", image_of(value)) for row, value in zip(rows, values, strict=True)]
    return frames


def of_objects(observations: Sequence[Any], count: int) -> list[Frame]:
    """Return frames of at most `count` observations that are images, or mappings with images in them."""
    frames = []
    for place in _some(np.random.default_rng(0), len(observations), count):
        observation = observations[place]
        fields = observation if isinstance(observation, dict) else {None: observation}
        for name, value in list(fields.items())[:_MOST_FIELDS]:
            if isinstance(value, np.ndarray) and is_image(value.dtype, value.shape):
                title = f"observation {place:,}, {name}" if isinstance(name, str) else f"observation {place:,}"
                frames.append(Frame(title, image_of(value)))
    return frames


def is_image(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether such an array looks like an image: [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels."""
    if dtype != np.uint8 or not 2 <= len(shape) <= 3 or np.prod(shape, dtype=np.float64) > _MOST_BYTES:
        return False
    sides = shape if len(shape) == 2 else shape[:2] if shape[2] in (1, 3, 4) else shape[1:]
    return min(sides) >= _LEAST_SIDE and (len(shape) == 2 or shape[2] in (1, 3, 4) or shape[0] in (1, 3, 4))


def image_of(value: npt.NDArray[Any]) -> Image:
    """Return the image of an array that looks like one: three channels are colours, four are put side by side.

    Four are more often the newest frames of a game than red, green, blue and opacity. A large image loses rows and
    columns.
    """
    if value.ndim == 3 and value.shape[2] not in (1, 3, 4):
        value = np.moveaxis(value, 0, 2)
    if value.ndim == 3 and value.shape[2] != 3:
        value = np.concatenate(list(np.moveaxis(value, 2, 0)), axis=1)
    step = -(-max(value.shape[:2]) // _MOST_SIDE)
    image: Image = np.ascontiguousarray(value[::step, ::step])
    return image


def _some(rng: np.random.Generator, rows: int, count: int) -> list[int]:
    """Return the numbers of at most `count` rows, in order."""
    return sorted(rng.choice(rows, min(rows, count), replace=False, shuffle=False).tolist()) if rows else []
