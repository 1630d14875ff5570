"""ShardedReplay: a replay buffer distributed over Ray actors (`pip install 'relive[ray]'`).

    writers, anywhere  ──batches──►  shard 0   shard 1   ...   shard k-1     each a buffer, in a process of its own
    learners           ◄──parts───
                                     LimiterService                          a rate limiter that holds for all of them

The logic of shards and clients is in `relive.fleet`, which does not depend on Ray. Ray places and starts the processes,
restarts dead ones, and passes arrays through its object store without a copy.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
import contextlib
import os
import re
from typing import Any, Self, TypeVar

import numpy as np

from relive import errors
from relive.common import imports
from relive.common import validation
from relive.fleet import adapter
from relive.fleet import adapters
from relive.fleet import limiter_service
from relive.fleet import replay
from relive.fleet import replies
from relive.fleet import shard as shard_lib
from relive.persistence import codec as codec_lib
from relive.persistence import files
from relive.persistence import journal
from relive.waiting import rate_limiters

with imports.optional_dependency("ray"):
    import ray
    from ray import exceptions

Batch = TypeVar("Batch")

_RETRY = 0.2
"""So many seconds lie between two attempts to reach an actor that is being started again."""

_SHARD = re.compile(r"shard-\d+-of-(\d+)")
"""The name of a shard's directory, with the number of shards."""


class ShardedReplay(replay.Replay[Batch]):
    """A replay buffer distributed over many processes; created with `start`.

    It can be passed to any Ray task or actor: each copy is a separate client of the same shards. A client belongs to
    one event loop at a time.
    """

    @classmethod
    def start(
        cls,
        make_buffer: Callable[[], adapters.Buffer],
        *,
        shards: int = 1,
        limiter: rate_limiters.RateLimiter | None = None,
        directory: str | os.PathLike[str] | None = None,
        fsync: journal.Policy | None = None,
        checkpoint_seconds: float | None = 300.0,
        codec: codec_lib.Codec | None = None,
        lease: float = 30.0,
        timeout: float = 10.0,
        recovery: float = 60.0,
        start_timeout: float = 600.0,
        seed: int | np.random.Generator | None = None,
        actor_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Start the shards, and return a client once all are running.

        Args:
            make_buffer: Returns a new column or episode buffer, without a limiter. Called once in each shard, and again
                when its process is restarted. The seed is mixed with the number of the shard.
            shards: Number of shards.
            limiter: Decides when steps may be inserted and batches drawn, counted over all shards; None to sample as
                soon as anything can be drawn. While no learner has sampled for `lease` seconds, inserts are not held
                back.
            directory: Where each shard keeps a journal and checkpoints, in its own subdirectory; must be shared by all
                machines on which shards may run. An existing fleet with the same number of shards is continued. None
                for no persistence.
            fsync: When steps are synced to disk; see Journal. EverySeconds(1.0) if None.
            checkpoint_seconds: How often each shard saves priorities and draw counts, which are not in the journal;
                None for never.
            codec: Encodes observations and actions of episode buffers; a PlainCodec if None.
            lease: Seconds after which a silent writer or learner counts as gone. Open episodes of a gone writer are
                ABORTED, or truncated in column buffers.
            timeout: Seconds to wait for a call before its shard counts as lost.
            recovery: Seconds to wait for a lost shard before steps in flight to it count as lost.
            start_timeout: Seconds to wait until all shards are running, which includes placement and reading their
                journals.
            seed: Seed for the shares of the shards in a batch, and for the order of rows.
            actor_options: Ray options for each shard, such as num_cpus, resources or scheduling_strategy.

        Raises:
            ArgumentError: An argument is invalid, or make_buffer returns an unsupported buffer.
            CheckpointError: The directory cannot be read back, or has another number of shards.
            ShardLostError: The shards did not start in time.
            Exception: Any exception of make_buffer.
        """
        if not callable(make_buffer):
            raise errors.ArgumentTypeError(f"make_buffer must be callable, got {validation.short_repr(make_buffer)}")
        num_shards = validation.positive_int("shards", shards)
        if limiter is not None:
            validation.require_instance("limiter", limiter, rate_limiters.RateLimiter)
        times = {"lease": lease, "timeout": timeout, "recovery": recovery, "start_timeout": start_timeout}
        if checkpoint_seconds is not None:
            times["checkpoint_seconds"] = checkpoint_seconds
        for name, seconds in times.items():
            if validation.finite_number(name, seconds) <= 0:
                raise errors.ArgumentError(f"{name} must be above 0 seconds, got {seconds}")
        fsync = journal.EverySeconds(1.0) if fsync is None else fsync
        journal.check(fsync)
        rng = validation.generator("seed", seed)
        if directory is not None:
            _check_directory(os.fspath(directory), num_shards)
        actors = _actors(shard_lib.Shard, actor_options or {})
        arguments: list[tuple[Any, ...]] = []
        for number in range(num_shards):
            place = None
            if directory is not None:
                place = os.path.join(os.path.abspath(directory), f"shard-{number}-of-{num_shards}")
            durability = shard_lib.Durability(
                directory=place,
                fsync=fsync,
                checkpoint_seconds=None if place is None else checkpoint_seconds,
                codec=codec,
            )
            arguments.append((make_buffer, number, float(lease), durability, float(recovery)))
        try:
            handles = [actors.remote(*each) for each in arguments]
        except TypeError as error:
            raise errors.ArgumentTypeError(f"make_buffer {_unsent(error)}") from error
        service = None
        try:
            descriptions = _described(handles, arguments, float(start_timeout))
            if limiter is not None:
                service = _actors(_LimiterService, {"num_cpus": 0}).remote(limiter, float(lease), handles)
        except BaseException:
            for handle in handles:
                ray.kill(handle)
            raise
        settings = replay.Settings(
            shards=num_shards,
            timeout=float(timeout),
            recovery=float(recovery),
            lease=float(lease),
            has_limiter=limiter is not None,
        )
        return cls(_Transport(handles, service), settings, descriptions[0], rng)

    @property
    def shards(self) -> tuple[Any, ...]:
        """The actor handles of the shards, in order."""
        return tuple(self._processes.handles)

    @property
    def limiter_service(self) -> Any:
        """The handle of the actor that applies the limiter; None without a limiter."""
        return self._processes.limiter_handle

    async def close(self) -> None:
        """Shut the fleet down for every client: shards close their files, and their processes end."""
        self._shards.close()
        with contextlib.suppress(errors.ClosedError):
            await self._of_each("close")
            self._processes.kill()

    @property
    def _processes(self) -> "_Transport":
        assert isinstance(self._transport, _Transport)
        return self._transport

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._transport, self._settings, self._description)


class _LimiterService(limiter_service.LimiterService):
    """The fleet's LimiterService as an actor, which initializes its counts from the shards."""

    def __init__(self, limiter: rate_limiters.RateLimiter, lease: float, handles: Sequence[Any]) -> None:
        async def count() -> tuple[int, int, int]:
            stats = await asyncio.gather(*[_stats(handle) for handle in handles])
            inserted, sampled = sum(shard.inserted for shard in stats), sum(shard.sampled for shard in stats)
            return inserted, sampled, sum(shard.size for shard in stats)

        super().__init__(limiter, lease, count)


def _actors(kind: type, options: Mapping[str, Any]) -> Any:
    """Return an actor class whose actors Ray restarts when they die; calls in flight then fail."""
    ours = {"max_restarts": -1, "max_task_retries": 0}
    for name in ours.keys() & options.keys():
        raise errors.ArgumentError(f"actor_options must leave {name} to the fleet, got {name}={options[name]!r}")
    try:
        return ray.remote(kind).options(**ours, **options)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentError(
            f"actor_options must be options of Ray, got {validation.short_repr(dict(options))}"
        ) from error


def _check_directory(directory: str, num_shards: int) -> None:
    """Raise CheckpointError if the directory, as seen by this machine, has another number of shards."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    for name in sorted(names):
        shard = _SHARD.fullmatch(name)
        if shard and int(shard[1]) != num_shards:
            raise errors.CheckpointError(
                f"{files.named(directory)} holds a fleet of {shard[1]} shards, got shards={num_shards}: "
                "start as many, or name another directory"
            )


def _described(
    handles: Sequence[Any], arguments: Sequence[tuple[Any, ...]], seconds: float
) -> list[adapter.Description]:
    """Return the description of each shard's buffer, once all are running."""
    references = [handle.describe.remote() for handle in handles]
    _, missing = ray.wait(references, num_returns=len(references), timeout=seconds)
    if missing:
        raise errors.ShardLostError(
            f"{len(missing)} of {len(references)} shards were not there after {seconds:g} seconds: "
            "does the cluster have room for them?"
        )
    descriptions: list[adapter.Description] = []
    for handle, reference, each in zip(handles, references, arguments, strict=True):
        try:
            descriptions.append(ray.get(reference))
        except exceptions.RayError as error:
            ray.kill(handle)
            raise _reason(each, error) from error
    return descriptions


async def _stats(handle: Any) -> replies.ShardStats:
    """Return the statistics of a shard; waits for one that is being restarted."""
    while True:
        try:
            stats: replies.ShardStats = await handle.stats.remote()
        except exceptions.RayActorError:
            await asyncio.sleep(_RETRY)
        else:
            return stats


class _Transport:
    """A transport to shards that are Ray actors."""

    def __init__(self, handles: Sequence[Any], limiter_handle: Any) -> None:
        self.handles = list(handles)
        self.limiter_handle = limiter_handle

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        """Call a method of a shard; see membership.Transport."""
        _check_ray()
        try:
            reference = getattr(self.handles[shard], method).remote(*arguments)
        except TypeError as error:
            raise errors.ArgumentTypeError(f"what is sent to a shard {_unsent(error)}") from error
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(reference.future())
        except exceptions.RayTaskError as error:
            raise _raised(error) from error
        except exceptions.ActorDiedError as error:
            raise errors.ClosedError(f"shard {shard} will not come back: {type(error).__name__}") from error
        except (exceptions.RayError, TimeoutError) as error:
            raise errors.ShardLostError(
                f"shard {shard} does not respond to {method}: {type(error).__name__}"
            ) from error

    async def limiter(self, method: str, *arguments: Any) -> Any:
        """Call a method of the fleet's LimiterService; waits for it to restart if its process has died."""
        while True:
            _check_ray()
            try:
                return await getattr(self.limiter_handle, method).remote(*arguments)
            except exceptions.RayTaskError as error:
                raise _raised(error) from error
            except exceptions.ActorDiedError as error:
                raise errors.ClosedError("the fleet was closed: start a new one") from error
            except exceptions.RayError:
                await asyncio.sleep(_RETRY)

    def kill(self) -> None:
        """End the processes."""
        for handle in [*self.handles, *([] if self.limiter_handle is None else [self.limiter_handle])]:
            ray.kill(handle)


def _reason(arguments: tuple[Any, ...], error: Exception) -> BaseException:
    """Return why a shard could not be created: Ray gives only text for an actor, but the exception for a task."""
    try:
        # A separate process that ends with the task, so that it holds no file.
        ray.get(ray.remote(max_calls=1)(_make).remote(*arguments))
    except exceptions.RayTaskError as again:
        return _raised(again)
    return errors.ShardLostError(f"shards could not be started: {type(error).__name__}")


def _make(*arguments: Any) -> None:
    """Create a shard, and close it."""
    shard_lib.Shard(*arguments)


def _check_ray() -> None:
    """Raise ClosedError if Ray was shut down."""
    if not ray.is_initialized():
        raise errors.ClosedError("Ray was shut down, and the fleet with it")


def _unsent(error: TypeError) -> str:
    """Return Ray's explanation of what cannot be serialized."""
    return f"must be something that can be sent to another process: {error.__cause__ or 'it cannot be pickled'}"


def _raised(error: Exception) -> BaseException:
    """Return the exception raised in the process of an actor."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
