"""A few frames of a buffer whose observations are images."""

from collections.abc import Iterator
import dataclasses
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.persistence import codec as codec_lib
from relive.persistence import state as state_lib

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


def of(state: state_lib.State, count: int) -> list[Frame]:
    """Return at most `count` frames of each field that holds images, of rows drawn at random, the same at each call.

    Raises:
        CheckpointError: A value cannot be decoded.
    """
    arrays = state["arrays"]
    if "row_episode" not in arrays:
        return list(_encoded(state, count))
    frames = []
    rng = np.random.default_rng(0)
    paths = [path for path in arrays if path == "rows/observation" or path.startswith("rows/observation/")]
    images = [path for path in paths if is_image(arrays[path].dtype, arrays[path].shape[1:])]
    for path in images[:_MOST_FIELDS]:
        column, field = arrays[path], path.removeprefix("rows/")
        for row in _some(rng, column.shape[0], count):
            (value,) = state_lib.StateReader({}, arrays).column(path, column.dtype, column.shape).read(row, row + 1)
            frames.append(Frame(f"{field}, row {row:,}", image_of(value)))
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


def _encoded(state: state_lib.State, count: int) -> Iterator[Frame]:
    """Yield frames of a buffer of episodes: of observations that are images, or mappings with images in them."""
    given = state_lib.StateReader(state, state["arrays"])
    codec = codec_lib.PlainCodec()
    if not given.has_array("observation_end") or state.get("codec") != codec.name:
        return
    ends = given.array("observation_end", np.int64, (None,))
    content = given.column("observations", np.uint8, (int(ends[-1]) if len(ends) else 0,))
    for place in _some(np.random.default_rng(0), len(ends), count):
        start, stop = int(ends[place - 1]) if place else 0, int(ends[place])
        if not 0 <= start < stop <= content.shape[0]:
            raise errors.CheckpointError("array observation_end must rise")
        if stop - start > _MOST_BYTES:
            continue
        observation = codec.decode(content.read(start, stop).tobytes())
        label = f"observation {place:,}"
        fields = observation if isinstance(observation, dict) else {None: observation}
        for name, value in list(fields.items())[:_MOST_FIELDS]:
            if isinstance(value, np.ndarray) and is_image(value.dtype, value.shape):
                yield Frame(f"{label}, {name}" if isinstance(name, str) else label, image_of(value))
