"""The kernels in numpy, under the names that `relive.kernels.compiled` has too."""

from relive.kernels import append as append_lib
from relive.kernels import draw
from relive.kernels import windows

name = "numpy"
few = 8
"""For fewer rows, the loop of CPython in `kernels.append` is faster than `append`."""
append = append_lib.append_many
settle, stratify, find, draw_uniform = draw.settle, draw.stratify, draw.find, draw.draw_uniform
follow, transitions, look_back = windows.follow, windows.transitions, windows.look_back
cannot_fail = False
"""Whether `append` makes no arrays, for which memory could run out."""
