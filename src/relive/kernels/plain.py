"""The kernels in numpy, under the names that `relive.kernels.compiled` has too."""

from relive.kernels import draw
from relive.kernels import windows

name = "numpy"
levels, settle, stratify, find = draw.levels, draw.settle, draw.stratify, draw.find
draw_uniform = draw.draw_uniform
follow, transitions, look_back = windows.follow, windows.transitions, windows.look_back
