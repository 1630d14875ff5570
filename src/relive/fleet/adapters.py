"""The adapter of each kind of buffer."""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import functools
import math
from typing import Any, TypeAlias, TypeVar

import numpy as np

from relive import errors
from relive.agents import token_buffer
from relive.buffers import column
from relive.common import arrays as arrays_lib
from relive.common import trees
from relive.common import validation
from relive.episodes import buffer as buffer_lib
from relive.episodes import versions
from relive.fleet import adapter
from relive.fleet import chunks
from relive.joint import buffer as joint_buffer
from relive.limits import rate_limiters
from relive.samplers import prioritized
from relive.samplers import sampler as sampler_lib
from relive.samplers import uniform

T = TypeVar("T")
Buffer: TypeAlias = (
    column.ColumnReplayBuffer[Any] | buffer_lib.EpisodeReplayBuffer[Any, Any] | token_buffer.TokenReplayBuffer
)


def adapter_of(buffer: Any) -> adapter.Adapter:
    """Return the adapter of a buffer; raise ArgumentError if it has a limiter or an admission of its own."""
    limiter, admission = getattr(buffer, "limiter", None), getattr(buffer, "admission", None)
    if type(limiter) is rate_limiters.MinSize and limiter.min_size <= 1:
        limiter = None
    for name, rule in (("a limiter", limiter), ("admission", admission)):
        if rule is not None:
            raise errors.ArgumentError(
                f"make_buffer must return a buffer without {name}, which ShardedReplay.start takes, got {rule!r}"
            )
    if isinstance(buffer, column.ColumnReplayBuffer):
        return ColumnAdapter(buffer)
    if isinstance(buffer, buffer_lib.EpisodeReplayBuffer):
        return EpisodeAdapter(buffer)
    if isinstance(buffer, token_buffer.TokenReplayBuffer):
        return TokenAdapter(buffer)
    raise errors.ArgumentTypeError(
        f"make_buffer must return a buffer of columns, episodes or tokens, got {type(buffer).__name__}"
    )


class ColumnAdapter(adapter.Adapter):
    """The adapter of a column buffer: stream 0 has whole episodes, the others one each that comes in several chunks.

    If more episodes are open than there are streams, the one that has waited longest for its next steps is truncated.
    """

    buffer: column.ColumnReplayBuffer[Any]
    _aborted = "TRUNCATED"

    def describe(self) -> adapter.Description:
        """Describe the column buffer."""
        limits = self.buffer._limited.limits
        return adapter.Description(
            kind=type(self.buffer).__name__,
            writer="joint_writer" if isinstance(self.buffer, joint_buffer.JointColumnBuffer) else "writer",
            limits=limits,
            has_columns=True,
            **_described(self.buffer.sampler, limits.max_times_sampled is not None),
        )

    def set_policy_version(self, version: int) -> None:
        """Raise ArgumentError: column buffers do not draw by policy version."""
        raise errors.ArgumentError(f"set_policy_version needs buffers of episodes, got {self.describe().kind}")

    def revocable(self, rows: Any) -> contextlib.AbstractContextManager[None]:
        """Return a block that takes the last draw, which was of those rows, back if it raises."""
        return self.buffer._revocable(rows.keys)

    def are_stored(self, keys: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether the step of each key is stored [k]."""
        are_stored: arrays_lib.Bools = np.zeros(len(keys), np.bool_)
        are_stored[self.buffer._store.lookup(keys)[1]] = True
        return are_stored

    @property
    def size(self) -> int:
        """Number of eligible anchors."""
        return self.buffer.num_eligible

    def _weight(self, options: Mapping[str, Any]) -> adapter.SamplingWeight:
        self.buffer.sampler.check_beta(options.get("beta"))
        return _weight_of(self.buffer.sampler, self.size)

    def _begin(self, chunk: Any) -> int:
        """Return the buffer's stream for an episode, in which none is open."""
        if not chunk.first and chunk.end != "OPEN":
            self._finish(0)  # A full disk may have kept one open.
            return 0
        if self.buffer.streams == 1:
            raise errors.ArgumentError(
                "make_buffer must return a buffer of at least 2 streams, got 1: one for whole episodes, and one for "
                "each that comes in several chunks"
            )
        free = {*self._handles()} - {0, *[stream for stream, _ in self._open.values()]}
        if not free:
            longest_idle = next(iter(self._open))
            free.add(self._open[longest_idle][0])
            self._end(longest_idle)
            self.cut += 1
        return min(free)

    def _write(self, stream: int, chunk: chunks.ColumnChunk | chunks.JointChunk) -> None:
        if isinstance(chunk, chunks.JointChunk):
            _make(chunk, [functools.partial(self.buffer.add, **step, stream=stream) for step in chunk.steps])
            return
        try:
            self._add(stream, chunk)
        except errors.MisuseWarning:
            raise
        except Exception:  # One by one, those before the first wrong one are stored, or all if they were too many.
            _make(chunk, [functools.partial(self._add, stream, _step(chunk, t)) for t in range(chunk.rows)])

    def _add(self, stream: int, chunk: chunks.ColumnChunk) -> None:
        self.buffer.add_steps(
            chunk.observations,
            chunk.actions,
            chunk.rewards,
            terminated=chunk.end == "TERMINATED",
            truncated=chunk.end == "TRUNCATED",
            stream=stream,
            **chunk.extras,
        )

    def _finish(self, stream: int) -> bool:
        return self.buffer.end_episode(stream=stream)

    def _handles(self) -> Iterable[int]:
        return range(self.buffer.streams)


def _make(chunk: chunks.ColumnChunk | chunks.JointChunk, calls: Iterable[Callable[[], object]]) -> None:
    """Make the calls for the steps of a chunk in order; an argument that is refused is said to be of which.

    The first MisuseWarning that was made an error is raised at the end: its call is done all the same.
    """
    warned: errors.MisuseWarning | None = None
    for step, call in enumerate(calls, chunk.first):
        try:
            call()
        except errors.MisuseWarning as warning:
            warned = warned or warning
        except errors.ArgumentError as error:
            raise type(error)(f"step {step} of episode {chunk.episode} of the writer: {error}") from None
    if warned is not None:
        raise warned


def _step(chunk: chunks.ColumnChunk, t: int) -> chunks.ColumnChunk:
    """Return a chunk of one of its steps."""
    step = slice(t, t + 1)
    return chunk._replace(
        observations=trees.rows(chunk.observations, slice(t, t + 2)),
        actions=trees.rows(chunk.actions, step),
        rewards=chunk.rewards[step],
        extras={name: trees.rows(column, step) for name, column in chunk.extras.items()},
        end=chunk.end if t == chunk.rows - 1 else "OPEN",
    )


class EpisodeAdapter(adapter.Adapter):
    """The adapter of an episode buffer."""

    buffer: buffer_lib.EpisodeReplayBuffer[Any, Any]
    _method = "sample_n_step_nowait"

    def describe(self) -> adapter.Description:
        """Describe the episode buffer."""
        kind, has_groups = type(self.buffer).__name__, self.buffer.groups is not None
        limits = self.buffer._limited.limits
        return adapter.Description(kind=kind, writer="episodes_writer", limits=limits, has_groups=has_groups)

    def _weight(self, options: Mapping[str, Any]) -> adapter.SamplingWeight:
        validation.positive_int("n", options["n"])
        validation.discount("gamma", options["gamma"])
        lags = versions.asked(options.get("max_lag"), options.get("lag_decay", 1.0))
        size, learner = self.size, self.buffer.policy_version
        if lags is None:
            return adapter.SamplingWeight(weight=float(size), size=size)
        if learner is None:
            return adapter.SamplingWeight(weight=0.0, size=size)
        counts = [(max(learner - version, 0), n) for version, n in self.buffer.transitions_by_version().items()]
        counts = [(lag, count) for lag, count in counts if lags.max_lag is None or lag <= lags.max_lag]
        # Relative to the least lag, as in the buffer, so that the weights cannot all round to 0.
        least = min([lag for lag, _ in counts], default=0)
        weight = float(sum([count * lags.decay ** (lag - least) for lag, count in counts]))
        log_scale = least * math.log(lags.decay)
        return adapter.SamplingWeight(weight=weight, size=size, log_scale=log_scale)

    def _begin(self, chunk: chunks.EpisodeChunk) -> str:
        known: dict[str, Any] = {"policy_version": chunk.policy_version, "metadata": chunk.metadata}
        start = functools.partial(self.buffer.start_episode_nowait, chunk.agent_id, **known)
        return _in_group(start, chunk.group_id, chunk.is_failed)

    def _write(self, episode_id: str, chunk: chunks.EpisodeChunk) -> None:
        append = self.buffer.append_observation_action_reward_nowait
        for observation, action, reward, version in chunk.steps:
            append(episode_id, observation, action, reward, policy_version=version)
        if not isinstance(chunk.end, str):
            self.buffer.end_episode_nowait(episode_id, *chunk.end)

    def _finish(self, episode_id: str) -> bool:
        return self.buffer.abort_episode_nowait(episode_id)

    def _handles(self) -> Iterable[str]:
        return list(self.buffer.get_stats().open_ages)


class TokenAdapter(adapter.Adapter):
    """The adapter of a token buffer: it counts whole episodes where others count steps, and draws their sequences."""

    buffer: token_buffer.TokenReplayBuffer
    unit = "sequence"

    def describe(self) -> adapter.Description:
        """Describe the token buffer."""
        return adapter.Description(
            kind=type(self.buffer).__name__,
            writer="tokens_writer",
            limits=self.buffer._limited.limits,
            has_groups=self.buffer.groups is not None,
            padding=self.buffer._padding,
            **_described(self.buffer.sampler, is_used_up=False),
        )

    @property
    def size(self) -> int:
        """Number of sequences that may be drawn, regardless of options."""
        return len(self.buffer.eligible_keys())

    @property
    def rows(self) -> int:
        """Number of stored episodes."""
        return len(self.buffer._store.finished)

    @property
    def inserted(self) -> int:
        """Number of episodes ever stored."""
        return self.buffer._store.episodes

    def _write(self, handle: None, chunk: chunks.TokenChunk) -> None:
        add = functools.partial(self.buffer._add_joined, chunk.joined, **chunk.options)
        _in_group(add, chunk.options["group_id"], is_failed=chunk.options["status"] == "ABORTED")

    def _weight(self, options: Mapping[str, Any]) -> adapter.SamplingWeight:
        size, learner = self.size, self.buffer.policy_version
        max_lag, draws = options.get("max_lag"), self.buffer._draws
        (self.buffer.sampler or uniform.UniformSampler()).check_beta(options.get("beta"))
        if max_lag is not None:
            max_lag = validation.non_negative_int("max_lag", max_lag)
            if getattr(self.buffer.sampler, "weight_normalization", "batch") == "none":
                rule = 'max_lag needs weight_normalization "batch" or "buffer" in a fleet'
                raise errors.ArgumentError(f'{rule}, got "none"')
            if learner is None:
                return adapter.SamplingWeight(weight=0.0, size=size)
        keys = self.buffer.eligible_keys(max_lag=max_lag)
        if draws is None:
            return adapter.SamplingWeight(weight=float(len(keys)), size=size)
        with draws.only(keys):
            return _weight_of(draws.sampler, len(keys))._replace(size=size)


def _described(sampler: Any, is_used_up: bool) -> dict[str, Any]:
    """Return the part of a description that depends on the sampler; None draws uniformly."""
    of_sampler: dict[str, Any] = {"is_stratified": False}
    if isinstance(sampler, prioritized.PrioritizedSampler):
        of_sampler = {"beta": sampler.schedule, "weight_normalization": sampler.weight_normalization}
        of_sampler["is_stratified"] = sampler.settings()["stratified"]
    is_ours = type(sampler) in (type(None), uniform.UniformSampler, prioritized.PrioritizedSampler)
    return {**of_sampler, "is_independent": is_ours and not of_sampler["is_stratified"] and not is_used_up}


def _weight_of(sampler: sampler_lib.Sampler, size: int) -> adapter.SamplingWeight:
    """Return the sampling weight of `size` anchors."""
    if not isinstance(sampler, prioritized.PrioritizedSampler):
        return adapter.SamplingWeight(weight=float(size), size=size)
    # To find it takes a look at every weight.
    least = sampler._least_weight if sampler.weight_normalization == "buffer" else 1.0
    return adapter.SamplingWeight(weight=sampler._total_weight, size=size, least=least, ticks=sampler._ticks)


def _in_group(begin: Callable[..., T], group_id: str | None, is_failed: bool) -> T:
    """Return what `begin` returns for an episode of that group; a failed one that a whole group refuses is of none."""
    try:
        return begin(group_id=group_id)
    except errors.ArgumentError:
        if not is_failed:
            raise
        return begin(group_id=None)
