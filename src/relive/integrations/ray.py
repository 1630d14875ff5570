"""ShardedReplay: a replay buffer distributed over Ray actors (the extra "ray").

    writers, anywhere  ──batches──►  shard 0   shard 1   ...   shard k-1     each a buffer, in a process of its own
    learners           ◄──parts───
                                     Coordinator        which shards there are; a rate limiter that holds for all

Shards are actors with names, by which clients find those that were added, and a new process of the coordinator all.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import ctypes
import dataclasses
import os
import re
import time
from typing import Any, Self, TypeVar

import numpy as np

from relive import errors
from relive.agents import admission as admission_lib
from relive.common import imports
from relive.common import validation
from relive.fleet import adapter
from relive.fleet import adapters
from relive.fleet import coordinator
from relive.fleet import episode_writers
from relive.fleet import membership
from relive.fleet import plain_calls
from relive.fleet import replay
from relive.fleet import replies
from relive.fleet import shard as shard_lib
from relive.fleet import shares
from relive.fleet import step_writers
from relive.fleet import timing
from relive.limits import rate_limiters
from relive.persistence import codec as codec_lib
from relive.persistence import files
from relive.persistence import journal

with imports.optional_dependency("ray"):
    import ray
    from ray import exceptions

ColumnWriter = step_writers.ColumnWriter
EpisodesWriter = episode_writers.EpisodesWriter
OpenEpisode = episode_writers.OpenEpisode
SyncReplay = plain_calls.SyncReplay
FleetStats = replay.FleetStats
ShardStats = replies.ShardStats
Batch = TypeVar("Batch")

_OURS = {
    "name": "it finds its actors by their names",
    "namespace": "give namespace to start",
    "get_if_exists": "give get_if_exists to start",
    "lifetime": "a fleet with a name is detached",
    "max_restarts": "Ray restarts its processes for ever",
    "max_task_retries": "it repeats calls itself, so that nothing is stored twice",
    "max_concurrency": "calls run one at a time",
    "concurrency_groups": "calls run one at a time",
    "allow_out_of_order_execution": "calls run in the order in which they are made",
    "max_pending_calls": "calls beyond it fail before they are tried",
}
"""Options of Ray that a fleet sets itself, or with which it could not keep its promises, and why."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Names of the settings of malloc in the C library of Linux."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """How to start the actors of a fleet: a coordinator of that name, and shards whose names begin with `fleet`.

    The directory is that of all shards.
    """

    make_buffer: Callable[[], adapters.Buffer]
    durability: shard_lib.Durability
    settings: membership.Settings
    start_timeout: float
    options: Mapping[str, Any]
    name: str
    fleet: str
    namespace: str
    is_detached: bool

    def start(self, shards: Iterable[int]) -> tuple[dict[int, Any], adapter.Description]:
        """Start shards, and return their handles and the description of their buffers; raise as ShardedReplay.start."""
        handles: dict[int, Any] = {}
        descriptions: list[adapter.Description] = []
        with _killing_on_error(handles):
            for shard in shards:
                actor = self.actor(ray.remote(_Shard), f"{self.fleet}-{shard}", "actor_options", self.options)
                with _sending("make_buffer"):
                    handles[shard] = actor.remote(*self._arguments(shard))
            references = [handle.describe.remote() for handle in handles.values()]
            _, missing = ray.wait(references, num_returns=len(references), timeout=self.start_timeout)
            if missing:
                raise errors.ShardLostError(
                    f"{len(missing)} of {len(references)} shards were not there after {self.start_timeout:g} seconds: "
                    "does the cluster have room for them?"
                )
            for shard, reference in zip(handles, references, strict=True):
                try:
                    descriptions.append(ray.get(reference))
                except exceptions.RayError as error:
                    ray.kill(handles[shard])
                    raise _reason(self._arguments(shard), error) from error
        return handles, descriptions[0]

    def actor(self, kind: Any, name: str, setting: str, options: Mapping[str, Any]) -> Any:
        """Return an actor class whose actors Ray restarts when they die; calls in flight then fail."""
        ours = {"max_restarts": -1, "max_task_retries": 0, "name": name, "namespace": self.namespace}
        ours["lifetime"] = "detached" if self.is_detached else None
        try:
            return kind.options(**ours, **options)
        except (TypeError, ValueError) as error:
            shown = validation.short_repr(dict(options))
            raise errors.ArgumentError(f"{setting} must be options of Ray, got {shown}") from error

    def _arguments(self, shard: int) -> tuple[Any, ...]:
        durability = self.durability
        if durability.directory is not None:
            place = os.path.join(durability.directory, f"shard-{shard}")
            durability = dataclasses.replace(durability, directory=place)
        return self.make_buffer, shard, self.settings.lease, durability, self.settings.recovery


class ShardedReplay(replay.Replay[Batch]):
    """A replay buffer distributed over many processes; created with `start`.

    It can be passed to any Ray task or actor: each copy is a separate client of the same shards. A client belongs to
    one event loop at a time.
    """

    _transport: "_Transport"

    @classmethod
    def start(
        cls,
        make_buffer: Callable[[], adapters.Buffer],
        *,
        shards: int = 1,
        limiter: rate_limiters.RateLimiter | None = None,
        admission: admission_lib.Admission | None = None,
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
        coordinator_options: Mapping[str, Any] | None = None,
        name: str | None = None,
        namespace: str | None = None,
        get_if_exists: bool = False,
    ) -> Self:
        """Start the shards, and return a client once all are running.

        Args:
            make_buffer: Returns a new buffer, without a limiter and an admission. Called in each shard whenever its
                process starts. The seed is mixed with the number of the shard.
            shards: Number of shards.
            limiter: Decides when steps may be inserted and batches drawn, counted over all shards. While no learner has
                sampled for `lease` seconds, inserts are not held back.
            admission: Decides when episodes may start, counted over all shards; each then needs a ticket from `admit`.
            directory: Where each shard keeps a journal and checkpoints; must be shared by all machines on which shards
                may run. An existing fleet of at most so many shards is continued. None for no persistence.
            fsync: When steps are synced to disk; see Journal. EverySeconds(1.0) if None.
            checkpoint_seconds: How often each shard saves priorities and draw counts; None for never.
            codec: Encodes observations and actions of episode buffers; a PlainCodec if None.
            lease: Seconds after which a silent writer or learner counts as gone. Open episodes of a gone writer are
                ABORTED, or truncated in column buffers.
            timeout: Seconds to wait for a call before its shard counts as lost.
            recovery: Seconds to wait for a lost shard before steps in flight to it count as lost.
            start_timeout: Seconds to wait until all shards are placed and have read their journals.
            seed: Seed for the shares of the shards in a batch, and for the order of rows.
            actor_options: Ray options for each shard, such as num_cpus or resources, but for names, restarts,
                concurrency and max_pending_calls: a shard runs one call after the other, and refuses none.
            coordinator_options: Ray options for the coordinator, such as resources or a scheduling strategy, with the
                same exceptions; it takes no CPU unless `num_cpus` says otherwise.
            name: A name for `attach`, with which the names of its actors begin. The fleet then outlives this process,
                until `close`. None for a fleet that ends with this process.
            namespace: The namespace of Ray for the name; that of this process if None.
            get_if_exists: Whether to `attach` to the fleet of that name if there is one, whatever its settings are.
                Several processes that call this at the same time get one fleet.

        Raises:
            ArgumentError: An argument is invalid, make_buffer returns an unsupported buffer or one under which the
                limiter would stop the fleet for ever, get_if_exists has no name, or there is a fleet of that name
                without it.
            CheckpointError: The directory cannot be read back, or has more shards.
            ShardLostError: The shards did not start in time.
            Exception: Any exception of make_buffer.
        """
        if not callable(make_buffer):
            raise errors.ArgumentTypeError(f"make_buffer must be callable, got {validation.short_repr(make_buffer)}")
        directory = None if directory is None else os.path.abspath(directory)
        shards = validation.positive_int("shards", shards)
        options = _checked_options("actor_options", actor_options)
        of_coordinator = _checked_options("coordinator_options", coordinator_options)
        if limiter is not None:
            validation.require_instance("limiter", limiter, rate_limiters.RateLimiter)
            validation.positive_int("limiter.min_size", limiter.min_size)
        if admission is not None:
            validation.require_instance("admission", admission, admission_lib.Admission)
        times = {"lease": lease, "timeout": timeout, "recovery": recovery, "start_timeout": start_timeout}
        times["checkpoint_seconds"] = 1.0 if checkpoint_seconds is None else checkpoint_seconds
        for setting, seconds in times.items():
            if validation.finite_number(setting, seconds) <= 0:
                raise errors.ArgumentError(f"{setting} must be above 0 seconds, got {seconds}")
        fsync = journal.EverySeconds(1.0) if fsync is None else fsync
        journal.check(fsync)
        rng = validation.generator("seed", seed)
        checkpoint_seconds = None if directory is None else checkpoint_seconds
        get_if_exists = validation.boolean("get_if_exists", get_if_exists)
        if name is not None:
            validation.non_empty_string("name", name)
        elif get_if_exists:
            raise errors.ArgumentError("name must be given with get_if_exists=True, got None")
        fleet = f"{'relive' if name is None else name}-{os.urandom(8).hex()}"
        plan = _Plan(
            make_buffer=make_buffer,
            durability=shard_lib.Durability(
                directory=directory, fsync=fsync, checkpoint_seconds=checkpoint_seconds, codec=codec
            ),
            settings=membership.Settings(
                timeout=timeout, recovery=recovery, lease=lease, has_limiter=limiter is not None, admission=admission
            ),
            start_timeout=start_timeout,
            options=options,
            name=fleet if name is None else name,
            fleet=fleet,
            namespace=ray.get_runtime_context().namespace if namespace is None else namespace,
            is_detached=name is not None,
        )
        with _claimed(plan.name, plan.namespace) if plan.is_detached else contextlib.nullcontext():
            if _actor(plan.name, plan.namespace) is not None:
                if get_if_exists:
                    return cls.attach(plan.name, plan.namespace, seed=rng)
                raise errors.ArgumentError(f"name must be new, got {name!r}: attach to that fleet, or close it")
            actor = plan.actor(ray.remote(num_cpus=0)(_Coordinator), plan.name, "coordinator_options", of_coordinator)
            handles, description = plan.start(_numbers(directory, shards))
            processes: dict[Any, Any] = dict(handles)
            with _killing_on_error(processes):
                if limiter is not None:
                    description.check_limiter(limiter, len(handles))
                with _sending("limiter"):
                    processes[name] = actor.remote(plan, description, limiter)
                members: Any = ray.get(processes[name].members.remote())
        transport = _Transport(plan.fleet, plan.namespace, processes[name], handles)
        return cls(transport, plan.settings, description, members, rng)

    @classmethod
    def attach(cls, name: str, namespace: str | None = None, *, seed: int | np.random.Generator | None = None) -> Self:
        """Return a client of a running fleet.

        Args:
            name: The name that was given to `start`.
            namespace: The namespace of Ray that was given to `start`; that of this process if None.
            seed: As for `start`.

        Raises:
            ArgumentError: There is no fleet of that name.
        """
        name, rng = validation.string("name", name), validation.generator("seed", seed)
        handle = _actor(name, namespace)
        if not hasattr(handle, "contact"):
            raise errors.ArgumentError(f"name must be that of a running fleet, got {name!r}")
        while True:
            try:
                (fleet, place), settings, description, members = ray.get(handle.contact.remote())
            except exceptions.ActorUnavailableError:
                time.sleep(timing.RETRY)
            else:
                return cls(_Transport(fleet, place, handle, {}), settings, description, members, rng)

    @property
    def shards(self) -> tuple[Any, ...]:
        """The actor handles of the shards, in order of their numbers."""
        return tuple([self._transport.handle(shard) for shard in self._shards.members.shards])

    @property
    def coordinator(self) -> Any:
        """The handle of the coordinator's actor."""
        return self._transport.coordinator_handle

    async def close(self) -> None:
        """Shut the fleet down for every client: shards close their files, and their processes end."""
        self._shards.close()
        with contextlib.suppress(errors.ClosedError):
            await self._shards.refresh()
            await self._of_each("close")
            for shard in self._shards.members.shards:
                self._transport.end(shard)
            ray.kill(self.coordinator)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._transport, self._settings, self._description, self._shards.members)


def _checked_options(setting: str, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return options of Ray for an actor; raise ArgumentError for those that belong to the fleet."""
    if options is None:
        return {}
    validation.require_instance(setting, options, Mapping)
    for key, why in _OURS.items():
        if key in options:
            got = validation.short_repr(options[key])
            raise errors.ArgumentError(f"{setting} must leave {key} to the fleet ({why}), got {key}={got}")
    return options


class _Named:
    """An actor that Ray shows under its name, also in logs."""

    def __repr__(self) -> str:
        return str(ray.get_runtime_context().get_actor_name())


class _Shard(_Named, shard_lib.Shard):
    """A Shard as an actor, whose process keeps the memory of what it has sent for what it sends next.

    Otherwise the C library gives large arrays back to the system, which clears their pages each time.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        with contextlib.suppress(AttributeError, OSError, TypeError):  # Another system has no such setting.
            malloc_option = ctypes.CDLL(None).mallopt
            if malloc_option(_MMAP_THRESHOLD, 2**30):  # The second one alone would make it slower.
                malloc_option(_TRIM_THRESHOLD, 2**30)


class _Coordinator(_Named, coordinator.Coordinator):
    """The fleet's Coordinator as an actor, which knows all that a client needs."""

    def __init__(self, plan: _Plan, description: adapter.Description, limiter: Any) -> None:
        place = plan.fleet, plan.namespace
        super().__init__(_Transport(*place, None, {}), _running(*place), plan.settings, limiter)
        self._plan, self._contact = plan, (place, plan.settings, description)
        # A new process continues at once with shards that are being drained.
        ray.get_runtime_context().current_actor.ping.remote()

    async def contact(self) -> tuple[Any, ...]:
        """Return where the shards are, the settings, the description and the members of the fleet."""
        return *self._contact, await self.members()

    async def plan(self) -> _Plan:
        """Return how to start another shard."""
        return self._plan


class _Claim:
    """An actor without calls, which a process has while it starts a fleet: only one actor can have its name."""


@contextlib.contextmanager
def _claimed(name: str, namespace: str) -> Iterator[None]:
    """Wait until no other process starts a fleet of that name; none does so during the block."""
    actor: Any = ray.remote(num_cpus=0)(_Claim).options(name=f"relive-starts-{name}", namespace=namespace)
    while True:
        try:
            claim = actor.remote()
            break
        except exceptions.ActorAlreadyExistsError:
            time.sleep(timing.RETRY)
    try:
        yield
    finally:
        ray.kill(claim)


def _running(fleet: str, namespace: str) -> list[int]:
    """Return the numbers of the shards that are running or being restarted."""
    actors: list[Any] = ray.util.list_named_actors(True)
    names = [each["name"] for each in actors if each["namespace"] == namespace]
    return sorted([int(shard[1]) for name in names if (shard := re.fullmatch(rf"{re.escape(fleet)}-(\d+)", name))])


def _numbers(directory: str | None, num_shards: int) -> list[int]:
    """Return the numbers of the shards: those in the directory, as seen by this machine, and new ones."""
    if num_shards > shares.MOST_SHARDS:
        raise errors.ArgumentError(f"shards must be at most {shares.MOST_SHARDS}, got {num_shards}")
    names = os.listdir(directory) if directory is not None and os.path.isdir(directory) else []
    there = [int(shard[1]) for name in names if (shard := re.fullmatch(r"shard-(\d+)", name))]
    if directory is not None and len(there) > num_shards:
        raise errors.CheckpointError(
            f"{files.named(directory)} holds a fleet of {len(there)} shards, got shards={num_shards}: "
            "start as many, or name another directory"
        )
    new = [number for number in range(num_shards) if number not in there]
    return sorted([*there, *new[: num_shards - len(there)]])


def _actor(name: str, namespace: str | None) -> Any:
    """Return the actor of that name; None if there is none."""
    try:
        return ray.get_actor(name, namespace)
    except ValueError:
        return None


class _Transport:
    """A transport to shards that are Ray actors."""

    def __init__(self, fleet: str, namespace: str, coordinator_handle: Any, handles: Mapping[int, Any]) -> None:
        self._fleet, self._namespace, self.coordinator_handle = fleet, namespace, coordinator_handle
        self._handles = dict(handles)

    def handle(self, shard: int) -> Any:
        """Return the handle of a shard; raise ClosedError if it will not come back."""
        if shard not in self._handles:
            handle = _actor(f"{self._fleet}-{shard}", self._namespace)
            if handle is None:
                raise errors.ClosedError(f"shard {shard} will not come back: it has ended")
            self._handles[shard] = handle
        return self._handles[shard]

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        """Call a method of a shard; see membership.Transport."""
        _check_ray()
        with _sending("what is sent to a shard"):
            reference = getattr(self.handle(shard), method).remote(*arguments)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(reference.future())
        except exceptions.RayTaskError as error:
            raise _raised(error) from error
        except exceptions.ActorDiedError as error:
            raise errors.ClosedError(f"shard {shard} will not come back: {type(error).__name__}") from error
        except (exceptions.RayError, TimeoutError) as error:
            reason = type(error).__name__
            raise errors.ShardLostError(f"shard {shard} does not respond to {method}: {reason}") from error

    async def coordinator(self, method: str, *arguments: Any) -> Any:
        """Call a method of the fleet's Coordinator; see membership.Transport."""
        while True:
            _check_ray()
            try:
                return await getattr(self.coordinator_handle, method).remote(*arguments)
            except exceptions.RayTaskError as error:
                raise _raised(error) from error
            except exceptions.ActorDiedError as error:
                raise errors.ClosedError("the fleet was closed: start a new one") from error
            except exceptions.RayError:
                await asyncio.sleep(timing.RETRY)

    async def launch(self, shard: int) -> None:
        """Start a shard, and wait until it is running; see membership.Transport."""
        plan = await self.coordinator("plan")
        handles, _ = await asyncio.to_thread(plan.start, [shard])
        self._handles |= handles

    def end(self, shard: int) -> None:
        """End the process of a shard for good."""
        with contextlib.suppress(errors.ClosedError):
            ray.kill(self.handle(shard))


@contextlib.contextmanager
def _killing_on_error(actors: Mapping[Any, Any]) -> Iterator[None]:
    """Kill the actors if the block fails."""
    try:
        yield
    except BaseException:
        for actor in actors.values():
            ray.kill(actor)
        raise


@contextlib.contextmanager
def _sending(what: str) -> Iterator[None]:
    """Raise ArgumentTypeError for objects that Ray cannot serialize."""
    try:
        yield
    except TypeError as error:
        rule = f"{what} must be something that can be sent to another process"
        raise errors.ArgumentTypeError(f"{rule}: {error.__cause__ or 'it cannot be pickled'}") from error


def _reason(arguments: tuple[Any, ...], error: Exception) -> BaseException:
    """Return why a shard could not be created: Ray gives only text for an actor, but the exception for a task."""
    try:
        # A separate process that ends with the task, so that it holds no file.
        ray.get(ray.remote(max_calls=1)(lambda *arguments: repr(shard_lib.Shard(*arguments))).remote(*arguments))
    except exceptions.RayTaskError as again:
        return _raised(again)
    return errors.ShardLostError(f"shards could not be started: {type(error).__name__}")


def _check_ray() -> None:
    """Raise ClosedError if Ray was shut down."""
    if not ray.is_initialized():
        raise errors.ClosedError("Ray was shut down, and the fleet with it")


def _raised(error: Exception) -> BaseException:
    """Return the exception raised in the process of an actor."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
