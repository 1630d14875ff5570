"""Draws: draws a batch from many shards.

    masses of all shards ──► a multinomial draw ──► parts, side by side ──► one batch, shuffled

If a shard is lost or emptied in between, the missing part is drawn from the others. Shards share the draw count of the
whole fleet, for schedules, and the policy version, for lags: a client passes on the newest of both with each call.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import validation
from relive.episodes import versions as versions_lib
from relive.fleet import membership
from relive.fleet import port
from relive.fleet import shares
from relive.samplers import schedules

Masses: TypeAlias = dict[int, port.Mass]
"""How much there is to draw from in each shard that is there."""

_PAUSE = 0.02
"""So many seconds lie between two looks for something to draw."""


class Draws:
    """The draws of one client.

    Args:
        shards: Reaches them.
        description: The description of their buffers.
        recovery: Seconds to wait for a shard if all are lost.
        rng: Random generator for the shares of the shards and the order of rows.
    """

    def __init__(
        self,
        shards: membership.Membership,
        description: port.Description,
        recovery: float,
        rng: np.random.Generator,
    ) -> None:
        self._shards, self._description, self._recovery, self._rng = shards, description, recovery, rng
        self._ticks = 0
        self.policy_version: int | None = None
        """Which version the learner's policy is of, as far as this client has heard."""

    async def masses(self, options: Mapping[str, Any]) -> Masses:
        """Return the masses of all shards; waits until at least one is available.

        Args:
            options: Further arguments of the buffers' `sample`.

        Raises:
            TypeError: There are no such options.
            ArgumentError: One of them is invalid.
            ShardLostError: No shard was available for `recovery` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._recovery
        while True:
            live = self._shards.live()
            asked = [self._shards.ask_or_none(shard, "mass", options, self.policy_version) for shard in live]
            answered = zip(live, await asyncio.gather(*asked), strict=True)
            masses: Masses = {shard: mass for shard, mass in answered if mass is not None}
            if not masses:
                if loop.time() > deadline:
                    raise errors.ShardLostError(f"sample found no shard for {self._recovery:g} seconds")
                await asyncio.sleep(_PAUSE)
            elif self._have_one_version(masses, options):
                return masses

    async def batch(self, size: int, options: Mapping[str, Any], masses: Masses) -> Any:
        """Return a batch, or a list, of that many samples; waits until anything can be drawn.

        Args:
            size: Number of samples.
            options: As in `masses`.
            masses: The result of `masses` just now.

        Raises:
            ShardLostError: As in `masses`.
        """
        parts: list[shares.Part] = []
        missing, tick = size, -1
        while True:
            if any(mass.weight > 0 for mass in masses.values()):
                if tick < 0:
                    # One tick per batch, including concurrent ones.
                    tick = max([self._ticks, *[mass.ticks for mass in masses.values()]])
                    self._ticks = tick + 1
                parts += await self._drawn(missing, masses, options, tick)
                missing = size - sum([len(part.rows) for part in parts])
                if not missing:
                    break
            await asyncio.sleep(_PAUSE)
            masses = await self.masses(options)
        importance = self._importance(masses, options.get("beta"), tick)
        return shares.joined(parts, self._shards.num_shards, importance, self._rng)

    def _have_one_version(self, masses: Masses, options: Mapping[str, Any]) -> bool:
        """Return whether all shards have the same policy version; if not, the newest is sent with the next call."""
        versions = {mass.policy_version for mass in masses.values()}
        known = [version for version in [*versions, self.policy_version] if version is not None]
        self.policy_version = max(known, default=None)
        if not known and not self._description.has_columns:
            lags = versions_lib.asked(options.get("max_lag"), options.get("lag_decay", 1.0))
            if lags is not None:
                raise errors.ArgumentError(
                    "max_lag and lag_decay ask for the learner's policy version: call set_policy_version first"
                )
        return versions == {self.policy_version}

    async def _drawn(self, size: int, masses: Masses, options: Mapping[str, Any], tick: int) -> list[shares.Part]:
        """Return the parts of one draw; fewer if a shard was lost or emptied meanwhile."""
        share = shares.of(list(masses.values()))
        counts = self._rng.multinomial(size, share)
        asked = [place for place in zip(masses, share.tolist(), counts.tolist(), strict=True) if place[2]]
        calls = [self._shards.ask_or_none(shard, "draw", count, options, tick) for shard, _, count in asked]
        answered = zip(asked, await asyncio.gather(*calls), strict=True)
        return [shares.Part(shard, of_all, rows) for (shard, of_all, _), rows in answered if rows is not None]

    def _importance(self, masses: Masses, beta: float | None, tick: int) -> shares.Importance | None:
        """Return how to compute importance weights; None without priorities."""
        exponent = self._description.beta if beta is None else beta
        if self._description.beta is None or exponent is None:
            return None
        if isinstance(exponent, schedules.Schedule):
            exponent = validation.non_negative_float("beta", exponent.value(tick))
        return shares.importance(list(masses.values()), exponent, self._description.weight_normalization)
