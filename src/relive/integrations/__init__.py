"""Integrations with other libraries; each is imported when it is first used, and may need an extra."""

import importlib
import typing

from relive.common import words

if typing.TYPE_CHECKING:
    from relive.integrations import arrow as arrow
    from relive.integrations import gymnasium as gymnasium
    from relive.integrations import jax as jax
    from relive.integrations import minari as minari
    from relive.integrations import pettingzoo as pettingzoo
    from relive.integrations import ray as ray
    from relive.integrations import stable_baselines3 as stable_baselines3
    from relive.integrations import stored_episodes as stored_episodes
    from relive.integrations import torch as torch
else:  # Hidden from type checkers, which would otherwise accept any name.

    def __getattr__(name: str) -> object:
        """Import and return an integration (PEP 562)."""
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        raise words.missing_name(__name__, name, _MODULES)


_MODULES = (
    "arrow",
    "gymnasium",
    "jax",
    "minari",
    "pettingzoo",
    "ray",
    "stable_baselines3",
    "stored_episodes",
    "torch",
)


def __dir__() -> list[str]:
    """Return the integrations, imported or not, and what every module has."""
    return sorted([*_MODULES, *(name for name in globals() if name.startswith("__"))])
