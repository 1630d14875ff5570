"""A replay memory on many machines: its shards are Ray actors (`pip install 'relive[ray]'`).

    writers, anywhere  ──batches──►  shard 0   shard 1   ...   shard k-1     each a buffer, in a process of its own
    learners           ◄──parts───
                                     Turns                                   where a rate limiter holds for all of them

What a shard does, and what a client does with shards, is in `relive.fleet`, which knows nothing of Ray. Ray makes the
processes, carries arrays through its object store without a copy, finds a machine for each, and starts one again that
has died.
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
from relive.fleet import answers
from relive.fleet import port
from relive.fleet import ports
from relive.fleet import replay
from relive.fleet import shard as shard_lib
from relive.fleet import turns as turns_lib
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
    """One replay memory in many processes; `start` makes it.

    It can be given to any task or actor of Ray: each copy is a client of its own, of the same shards. A client belongs
    to one event loop at a time. See `relive.fleet.replay.Replay` for what it does.
    """

    @classmethod
    def start(
        cls,
        make_buffer: Callable[[], ports.Buffer],
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
        """Start the shards, and return a client of them once all are there.

        Args:
            make_buffer: Returns a new buffer, of columns or of episodes, without a limiter. Each shard calls it once,
                and again when its process is made anew. Its seed is mixed with the number of the shard.
            shards: How many.
            limiter: Says when steps may be inserted and batches drawn, counted over all shards; None for as soon as
                there is something to draw. While no learner has asked for `lease` seconds, it holds no writer back.
            directory: Where each shard keeps a journal and checkpoints, in a directory of its own: a disk that every
                machine has where a shard may run. None for nowhere: then what a process has is lost with it. If there
                is a fleet of as many shards in it, that goes on.
            fsync: When steps are on the disk; see Journal. EverySeconds(1.0) if None.
            checkpoint_seconds: How often each shard saves priorities and draws, which the journal does not hold; None
                for never.
            codec: What makes bytes of observations and actions, of buffers of episodes; a PlainCodec if None.
            lease: For how many seconds a writer or a learner that gives no sign of life counts as there. The open
                episodes of a writer that is gone are ABORTED, or truncated in columns.
            timeout: For how many seconds a call is waited for, before its shard counts as lost.
            recovery: For how many seconds a lost shard is waited for, before what was under way to it counts as lost.
            start_timeout: For how many seconds to wait until all shards are there: Ray has to find a place for each,
                and each to read its journal.
            seed: For the shares of the shards in a batch, and the order of its rows.
            actor_options: Options of Ray for each shard, such as num_cpus, resources or scheduling_strategy.

        Raises:
            ArgumentError: An argument breaks its rule, or make_buffer returns what no shard can have.
            CheckpointError: What is in the directory cannot be read back, or is of another number of shards.
            ShardLostError: The shards were not there in time.
            Exception: What make_buffer has raised.
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
        turns = None
        try:
            descriptions = _described(handles, arguments, float(start_timeout))
            if limiter is not None:
                turns = _actors(_Turns, {"num_cpus": 0}).remote(limiter, float(lease), handles)
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
        return cls(_Transport(handles, turns), settings, descriptions[0], rng)

    @property
    def shards(self) -> tuple[Any, ...]:
        """The handles of the actors, in the order of their numbers."""
        return tuple(self._processes.handles)

    @property
    def turns(self) -> Any:
        """The handle of the actor where writers and learners wait for the limiter; None without one."""
        return self._processes.turns_handle

    async def close(self) -> None:
        """End the fleet, for every client: shards let go of their files, and their processes end."""
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


class _Turns(turns_lib.Turns):
    """The fleet's Turns as an actor, which asks the shards what there is when its process begins."""

    def __init__(self, limiter: rate_limiters.RateLimiter, lease: float, handles: Sequence[Any]) -> None:
        async def count() -> tuple[int, int, int]:
            stats = await asyncio.gather(*[_stats(handle) for handle in handles])
            inserted, sampled = sum(shard.inserted for shard in stats), sum(shard.sampled for shard in stats)
            return inserted, sampled, sum(shard.size for shard in stats)

        super().__init__(limiter, lease, count)


def _actors(kind: type, options: Mapping[str, Any]) -> Any:
    """Return what makes actors of a class, which Ray starts again when they die; a call that was under way fails."""
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
    """Raise CheckpointError if what is there, as far as this machine sees, is of another number of shards."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    for name in sorted(names):
        shard = _SHARD.fullmatch(name)
        if shard and int(shard[1]) != num_shards:
            raise errors.CheckpointError(
                f"{files.named(directory)} holds a fleet of {shard[1]} shards, got shards={num_shards}: "
                "start as many, or name another directory"
            )


def _described(handles: Sequence[Any], arguments: Sequence[tuple[Any, ...]], seconds: float) -> list[port.Description]:
    """Return what kind of buffer each shard has, once all are there."""
    references = [handle.describe.remote() for handle in handles]
    _, missing = ray.wait(references, num_returns=len(references), timeout=seconds)
    if missing:
        raise errors.ShardLostError(
            f"{len(missing)} of {len(references)} shards were not there after {seconds:g} seconds: "
            "does the cluster have room for them?"
        )
    descriptions: list[port.Description] = []
    for handle, reference, each in zip(handles, references, arguments, strict=True):
        try:
            descriptions.append(ray.get(reference))
        except exceptions.RayError as error:
            ray.kill(handle)
            raise _reason(each, error) from error
    return descriptions


async def _stats(handle: Any) -> answers.ShardStats:
    """Return what a shard says of itself; waits for one that is being started again."""
    while True:
        try:
            stats: answers.ShardStats = await handle.stats.remote()
        except exceptions.RayActorError:
            await asyncio.sleep(_RETRY)
        else:
            return stats


class _Transport:
    """Reaches shards that are actors of Ray."""

    def __init__(self, handles: Sequence[Any], turns: Any) -> None:
        self.handles = list(handles)
        self.turns_handle = turns

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        """Return what a method of a shard returns; see membership.Transport."""
        _check_ray()
        try:
            reference = getattr(self.handles[shard], method).remote(*arguments)
        except TypeError as error:
            raise errors.ArgumentTypeError(f"what is sent to a shard {_unsent(error)}") from error
        try:
            return await asyncio.wait_for(reference, seconds)
        except exceptions.RayTaskError as error:
            raise _raised(error) from error
        except exceptions.ActorDiedError as error:
            raise errors.ClosedError(f"shard {shard} will not come back: {type(error).__name__}") from error
        except (exceptions.RayError, TimeoutError) as error:
            raise errors.ShardLostError(f"shard {shard} does not answer {method}: {type(error).__name__}") from error

    async def turns(self, method: str, *arguments: Any) -> Any:
        """Return what a method of the fleet's Turns returns; waits for it to come back where its process has died."""
        while True:
            _check_ray()
            try:
                return await getattr(self.turns_handle, method).remote(*arguments)
            except exceptions.RayTaskError as error:
                raise _raised(error) from error
            except exceptions.ActorDiedError as error:
                raise errors.ClosedError("the fleet was closed: start a new one") from error
            except exceptions.RayError:
                await asyncio.sleep(_RETRY)

    def kill(self) -> None:
        """End the processes."""
        for handle in [*self.handles, *([] if self.turns_handle is None else [self.turns_handle])]:
            ray.kill(handle)


def _reason(arguments: tuple[Any, ...], error: Exception) -> BaseException:
    """Return why a shard could not be made: of an actor Ray tells the text alone, of a task the exception itself."""
    try:
        # A process of its own, which ends with the task: it holds no file then.
        ray.get(ray.remote(max_calls=1)(_make).remote(*arguments))
    except exceptions.RayTaskError as again:
        return _raised(again)
    return errors.ShardLostError(f"shards could not be started: {type(error).__name__}")


def _make(*arguments: Any) -> None:
    """Make a shard, and let go of it."""
    shard_lib.Shard(*arguments)


def _check_ray() -> None:
    """Raise ClosedError if Ray was shut down."""
    if not ray.is_initialized():
        raise errors.ClosedError("Ray was shut down, and the fleet with it")


def _unsent(error: TypeError) -> str:
    """Return what Ray says, in many lines, of what cannot be sent."""
    return f"must be something that can be sent to another process: {error.__cause__ or 'it cannot be pickled'}"


def _raised(error: Exception) -> BaseException:
    """Return what was raised in the process of an actor."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
