"""The kernels in numpy, under the names that `relive.kernels.compiled` has too."""

from relive.kernels import draw
from relive.kernels import windows

name = "numpy"
settle, stratify, find, draw_uniform = draw.settle, draw.stratify, draw.find, draw.draw_uniform
follow, transitions, look_back = windows.follow, windows.transitions, windows.look_back
