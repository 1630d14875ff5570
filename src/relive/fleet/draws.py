"""Draws: draws batches from many shards, in one round trip.

    remembered weights ──► rows of each shard, asked for ──► parts, and the weights at the draw ──► rows taken ──► batch

How many rows to ask for is guessed from remembered weights. With the true ones and the same random numbers it is
counted anew, so probabilities are exact however old the guess was: a few rows were drawn in vain, or are asked for in a
second trip. To spare that trip, some more rows are asked for while weights change.

If a shard is lost or emptied in between, its rows are drawn from the others. A client passes on the newest draw count
and policy version of the fleet with each call.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
import itertools
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.episodes import versions as versions_lib
from relive.fleet import adapter
from relive.fleet import membership
from relive.fleet import replies
from relive.fleet import shares
from relive.fleet import timing
from relive.samplers import schedules

Weights: TypeAlias = dict[int, adapter.SamplingWeight]
"""How much there is to draw from, by shard."""
Probabilities: TypeAlias = dict[int, float]
"""The probability of each shard."""
Counts: TypeAlias = dict[int, list[int]]
"""The number of rows of each batch, by shard."""
Drawn: TypeAlias = dict[int, tuple[adapter.SamplingWeight, list[tuple[Any, int, int]]]]
"""By shard: how much there was to draw from; and for each batch rows, where its own begin, and how many they are."""

_MOST_SPARE = 0.5
"""The part of the rows that is asked for in addition, at most."""
_UNKNOWN = adapter.SamplingWeight(weight=0.0, size=0)


class Draws:
    """The draws of one client."""

    def __init__(
        self, shards: membership.Membership, description: adapter.Description, rng: np.random.Generator
    ) -> None:
        self._shards, self._description, self._rng = shards, description, rng
        self.weights: Weights = {}
        """The newest weights of the shards that this client knows."""
        self._spare = 0.0
        self._ticks = 0
        self.policy = replies.Policy()
        """The policy of the learner, as far as this client knows."""

    @property
    def size(self) -> int | None:
        """Number of transitions in all shards, as far as this client knows; None if it does not."""
        return sum([weight.size for weight in self.weights.values()]) if self.weights else None

    def learn(self, policies: Iterable[replies.Policy]) -> None:
        """Learn of the newest of some policies."""
        self.policy = replies.newest([self.policy, *policies])

    async def refresh(self, options: Mapping[str, Any]) -> None:
        """Ask all shards for their weights; raise as `batches` does."""
        await self._ask_all([], options, 0, 0, keys_only=False)

    async def batches(self, size: int, number: int, options: Mapping[str, Any], keys_only: bool = False) -> list[Any]:
        """Return `number` batches, or lists, of `size` samples, or their keys; waits until anything can be drawn.

        Raises TypeError or ArgumentError for wrong options, and ShardLostError after `recovery` seconds without shards.
        """
        # One tick per batch, including concurrent ones.
        tick, begun = self._ticks, number
        self._ticks += number
        parts: list[list[shares.Part]] = [[] for _ in range(number)]
        missing = [size] * number
        weights: Weights = {}
        while any(missing):
            points = [self._points(count) for count in missing]
            guessed, drawn = await self._ask_all(points, options, tick, begun, keys_only)
            weights = {shard: weight for shard, (weight, _) in drawn.items()}
            if begun:
                tick, begun = max([tick, *[weight.ticks for weight in weights.values()]]), 0
                self._ticks = max(self._ticks, tick + number)
            probabilities = _probabilities(weights)
            if not any(probabilities.values()):
                await asyncio.sleep(timing.PAUSE)
                continue
            # Twice the largest relative error of the guess.
            wrong = [abs(p / guessed[shard] - 1) for shard, p in probabilities.items() if guessed[shard]]
            self._spare = min(2 * max(wrong, default=0.0), _MOST_SPARE)
            # Rows that may be drawn only so often are not drawn in vain.
            wanted = _counts(guessed if self._description.is_used_up else probabilities, points)
            left = _take(parts, wanted, drawn, probabilities)
            if left:
                _take(parts, left, await self._ask(left, options, tick, 0, keys_only), probabilities)
            missing = [size - sum([part.count for part in of_batch]) for of_batch in parts]
        batches = [shares.joined(of_batch, self._rng, self._description.padding) for of_batch in parts]
        beta, normalization = self._description.beta, self._description.weight_normalization
        if beta is not None:
            beta = beta if options.get("beta") is None else options["beta"]
            for i, batch in enumerate(batches):
                exponent = beta
                if isinstance(exponent, schedules.Schedule):
                    exponent = validation.non_negative_float("beta", exponent.value(tick + i))
                batch.weights = shares.importance_weights(
                    list(weights.values()), exponent, normalization, batch.probabilities
                )
        return batches

    def _points(self, count: int) -> arrays_lib.Floats:
        """Return `count` random numbers from 0 to 1, each of which falls into the share of a shard."""
        if not self._description.is_stratified:
            return self._rng.random(count)
        return (np.arange(count) + self._rng.random()) / max(count, 1)

    async def _ask_all(
        self, points: Sequence[arrays_lib.Floats], options: Mapping[str, Any], tick: int, begun: int, keys_only: bool
    ) -> tuple[Probabilities, Drawn]:
        """Ask all shards for rows; return the probabilities from which their numbers were guessed, and the replies."""
        loop = asyncio.get_running_loop()
        recovery = self._shards.settings.recovery
        deadline = loop.time() + recovery
        while True:
            guessed = _probabilities({shard: self.weights.get(shard, _UNKNOWN) for shard in self._shards.live()})
            spare = 0.0 if self._description.is_used_up else self._spare
            drawn = await self._ask(_counts(guessed, points, spare), options, tick, begun, keys_only)
            if not drawn:
                if loop.time() > deadline:
                    raise errors.ShardLostError(f"sample found no shard for {recovery:g} seconds")
                await asyncio.sleep(timing.PAUSE)
            elif self._have_one_version([weight for weight, _ in drawn.values()], options):
                return guessed, drawn

    async def _ask(self, counts: Counts, options: Mapping[str, Any], tick: int, begun: int, keys_only: bool) -> Drawn:
        """Ask shards for rows, and return the replies of those that are there."""
        request = adapter.Request(
            counts=[],
            options=dict(options),
            ticks=tick,
            begun=begun,
            policy=None if self.policy.version is None else self.policy,
            keys_only=keys_only,
        )
        calls = [
            self._shards.ask_or_none(shard, "draw", {**request, "counts": of_batches})
            for shard, of_batches in counts.items()
        ]
        replies = await asyncio.gather(*calls)
        drawn: Drawn = {}
        for (shard, of_batches), reply in zip(counts.items(), replies, strict=True):
            self.weights.pop(shard, None)
            if reply is not None:
                self.weights[shard], parts, version = reply
                self._shards.note_version(version)
                starts = [0] * len(of_batches)
                if self._description.is_independent:  # One draw for all batches.
                    parts, starts = parts * len(of_batches), [0, *itertools.accumulate(of_batches)][:-1]
                lengths = [0 if rows is None else count for rows, count in zip(parts, of_batches, strict=True)]
                drawn[shard] = self.weights[shard], list(zip(parts, starts, lengths, strict=True))
        return drawn

    def _have_one_version(self, weights: Iterable[adapter.SamplingWeight], options: Mapping[str, Any]) -> bool:
        """Return whether all shards have the same policy version; if not, the newest is sent with the next call."""
        policies = [weight.policy for weight in weights]
        self.learn(policies)
        if self.policy.version is None and not self._description.has_columns:
            versions_lib.require_learner(
                versions_lib.asked(options.get("max_lag"), options.get("lag_decay", 1.0)), None
            )
        return all(policy.rank == self.policy.rank for policy in policies)


def _probabilities(weights: Weights) -> Probabilities:
    return dict(zip(weights, shares.probabilities(list(weights.values())), strict=True))


def _counts(probabilities: Probabilities, points: Sequence[arrays_lib.Floats], spare: float = 0.0) -> Counts:
    """Return how many of the points of each batch fall into the interval of each shard, and some to spare."""
    if not points or not any(probabilities.values()):
        return {shard: [0] * len(points) for shard in probabilities}
    counts = [shares.counts(list(probabilities.values()), of_batch) for of_batch in points]
    if spare:
        counts = [np.ceil(each * (1 + spare)).astype(np.int64) for each in counts]
    return dict(zip(probabilities, np.stack(counts, axis=1).tolist(), strict=True))


def _take(parts: list[list[shares.Part]], wanted: Counts, drawn: Drawn, probabilities: Probabilities) -> Counts:
    """Take the wanted rows of what was drawn, and return how many are missing, if any."""
    missing: Counts = {}
    for shard, (_, of_batches) in drawn.items():
        left = []
        for of_batch, (rows, start, length), count in zip(parts, of_batches, wanted[shard], strict=True):
            taken = min(length, count)
            if taken:
                of_batch.append(shares.Part(shard, probabilities[shard], rows, start, length, taken))
            left.append(count - taken)
        if any(left):
            missing[shard] = left
    return missing
