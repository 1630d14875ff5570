"""The notebook runs from top to bottom, and what it shows is what is saved in it."""

import ast
import json
import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

NOTEBOOK = json.loads(pathlib.Path(__file__).with_name("corridor.ipynb").read_text("utf-8"))


def test_the_notebook_runs_to_its_curve_and_shows_what_it_saved() -> None:
    names: dict[str, Any] = {}
    value: Any
    shown, saved = [], []
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last, value = tree.body[-1], None
            if isinstance(last, ast.Expr):
                tree.body.pop()
            exec(compile(tree, "a cell", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "a cell", "eval"), names)
            if hasattr(value, "_repr_html_"):
                shown.append(value._repr_html_())
            saved += ["".join(out["data"]["text/html"]) for out in cell["outputs"] if "text/html" in out["data"]]
    assert shown == saved
    assert len(shown) == 2
    (axes,) = plt.gcf().axes
    three_step, one_step = (np.asarray(line.get_ydata()) for line in axes.lines[:2])
    plt.close("all")
    assert three_step[-10:].mean() < 14
    assert three_step[:20].mean() < one_step[:20].mean()
    assert any("image/png" in output["data"] for output in NOTEBOOK["cells"][-2]["outputs"])
