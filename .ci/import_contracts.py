"""Contracts of import-linter that look at the code alone: the tests beside it may import what they like."""

from typing import Any

import grimp
from importlinter.contracts import forbidden
from importlinter.contracts import layers


def drop_tests(graph: grimp.ImportGraph) -> None:
    """Remove the tests, and the zoo that they share, from a graph of imports."""
    for module in list(graph.modules):
        name = module.rsplit(".", 1)[-1]
        if name.endswith("_test") or name in ("conftest", "zoo", "allocations", "walks"):
            graph.remove_module(module)


class CodeLayers(layers.LayersContract):
    """The layers of the code."""

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> Any:
        """Return whether the contract is kept."""
        drop_tests(graph)
        return super().check(graph, verbose)


class CodeForbids(forbidden.ForbiddenContract):
    """What the code must not import."""

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> Any:
        """Return whether the contract is kept."""
        drop_tests(graph)
        return super().check(graph, verbose)
