"""ShardedReplay: a replay buffer distributed over Ray actors (the extra "ray").

    writers, anywhere  ──batches──►  shard 0   shard 1   ...   shard k-1     each a buffer, in a process of its own
    learners           ◄──parts───
                                     Coordinator        which shards there are; a rate limiter that holds for all

The logic of shards and clients is in `relive.fleet`, which does not depend on Ray. Ray places and starts the processes,
restarts dead ones, and passes arrays through its object store without a copy.

Shards are actors with names, by which clients find those that were added, and a new process of the coordinator all.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
import contextlib
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
from relive.fleet import membership
from relive.fleet import replay
from relive.fleet import shard as shard_lib
from relive.fleet import shares
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

_REFUSED = frozenset(("max_concurrency", "concurrency_groups", "allow_out_of_order_execution", "get_if_exists"))
"""Options of Ray by which a shard's calls would run side by side or in another order, or another's actor be taken."""

_SHARD = re.compile(r"shard-(\d+)")
"""The name of a shard's directory, with its number."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """How to start the shards of a fleet.

    Attributes:
        make_buffer: Returns a new buffer.
        directory: The parent of their directories; None for no persistence.
        durability: How each is persisted, apart from the directory.
        lease: Seconds after which a silent writer counts as gone.
        recovery: Seconds for which writers look for a lost shard.
        start_timeout: Seconds to wait until they are running.
        options: Ray options for each.
        fleet: What the names of their actors begin with.
        namespace: Where Ray keeps these names.
        is_detached: Whether the actors outlive the process that started them.
    """

    make_buffer: Callable[[], adapters.Buffer]
    directory: str | None
    durability: shard_lib.Durability
    lease: float
    recovery: float
    start_timeout: float
    options: Mapping[str, Any]
    fleet: str
    namespace: str
    is_detached: bool

    def arguments(self, shard: int) -> tuple[Any, ...]:
        """Return the arguments of a shard."""
        durability = self.durability
        if self.directory is not None:
            durability = dataclasses.replace(durability, directory=os.path.join(self.directory, f"shard-{shard}"))
        return self.make_buffer, shard, self.lease, durability, self.recovery

    def start(self, shards: Iterable[int]) -> tuple[dict[int, Any], adapter.Description]:
        """Start shards, and return their handles and the description of their buffers, once all are running.

        Raises:
            ArgumentError: make_buffer returns an unsupported buffer, or cannot be sent, or the options are invalid.
            CheckpointError: A directory cannot be read back.
            ShardLostError: The shards did not start in time.
        """
        handles: dict[int, Any] = {}
        try:
            for shard in shards:
                actor = self.actor(shard_lib.Shard, f"{self.fleet}-{shard}", self.options)
                try:
                    handles[shard] = actor.remote(*self.arguments(shard))
                except TypeError as error:
                    raise errors.ArgumentTypeError(f"make_buffer {_unsent(error)}") from error
            return handles, self._described(handles)
        except BaseException:
            for handle in handles.values():
                ray.kill(handle)
            raise

    def actor(self, kind: type, name: str, options: Mapping[str, Any]) -> Any:
        """Return an actor class whose actors Ray restarts when they die; calls in flight then fail."""
        ours = {"max_restarts": -1, "max_task_retries": 0, "name": name, "namespace": self.namespace}
        ours["lifetime"] = "detached" if self.is_detached else None
        for key in (ours.keys() | _REFUSED) & options.keys():
            raise errors.ArgumentError(f"actor_options must leave {key} to the fleet, got {key}={options[key]!r}")
        try:
            return ray.remote(kind).options(**ours, **options)
        except (TypeError, ValueError) as error:
            raise errors.ArgumentError(
                f"actor_options must be options of Ray, got {validation.short_repr(dict(options))}"
            ) from error

    def _described(self, handles: Mapping[int, Any]) -> adapter.Description:
        """Return the description of the shards' buffers, once all are running."""
        references = [handle.describe.remote() for handle in handles.values()]
        _, missing = ray.wait(references, num_returns=len(references), timeout=self.start_timeout)
        if missing:
            raise errors.ShardLostError(
                f"{len(missing)} of {len(references)} shards were not there after {self.start_timeout:g} seconds: "
                "does the cluster have room for them?"
            )
        descriptions: list[adapter.Description] = []
        for (shard, handle), reference in zip(handles.items(), references, strict=True):
            try:
                descriptions.append(ray.get(reference))
            except exceptions.RayError as error:
                ray.kill(handle)
                raise _reason(self.arguments(shard), error) from error
        return descriptions[0]


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
        name: str | None = None,
        namespace: str | None = None,
    ) -> Self:
        """Start the shards, and return a client once all are running.

        Args:
            make_buffer: Returns a new buffer of columns, joint steps, episodes or tokens, without a limiter and an
                admission. Called once in each shard, and again when its process is restarted. The seed is mixed with
                the number of the shard.
            shards: Number of shards.
            limiter: Decides when steps may be inserted and batches drawn, counted over all shards; None to sample as
                soon as anything can be drawn. While no learner has sampled for `lease` seconds, inserts are not held
                back.
            admission: Decides when episodes may start, counted over all shards; each then needs a ticket from `admit`.
                None to admit all.
            directory: Where each shard keeps a journal and checkpoints, in its own subdirectory; must be shared by all
                machines on which shards may run. An existing fleet of at most so many shards is continued. None for no
                persistence.
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
            actor_options: Ray options for each shard, such as num_cpus, resources or scheduling_strategy. Those for
                names, restarts and concurrency are the fleet's: a shard runs one call after the other.
            name: A name for `attach`. The fleet then outlives this process, until `close`. None for a fleet that ends
                with this process.
            namespace: The namespace of Ray for the name; that of this process if None.

        Raises:
            ArgumentError: An argument is invalid, make_buffer returns an unsupported buffer, or there is a fleet of
                that name.
            CheckpointError: The directory cannot be read back, or has more shards.
            ShardLostError: The shards did not start in time.
            Exception: Any exception of make_buffer.
        """
        if not callable(make_buffer):
            raise errors.ArgumentTypeError(f"make_buffer must be callable, got {validation.short_repr(make_buffer)}")
        num_shards = validation.positive_int("shards", shards)
        if limiter is not None:
            validation.require_instance("limiter", limiter, rate_limiters.RateLimiter)
        if admission is not None:
            validation.require_instance("admission", admission, admission_lib.Admission)
        times = {"lease": lease, "timeout": timeout, "recovery": recovery, "start_timeout": start_timeout}
        if checkpoint_seconds is not None:
            times["checkpoint_seconds"] = checkpoint_seconds
        for setting, seconds in times.items():
            if validation.finite_number(setting, seconds) <= 0:
                raise errors.ArgumentError(f"{setting} must be above 0 seconds, got {seconds}")
        actor_options = {} if actor_options is None else actor_options
        validation.require_instance("actor_options", actor_options, Mapping)
        fsync = journal.EverySeconds(1.0) if fsync is None else fsync
        journal.check(fsync)
        rng = validation.generator("seed", seed)
        if num_shards > shares.MOST_SHARDS:
            raise errors.ArgumentError(f"shards must be at most {shares.MOST_SHARDS}, got {num_shards}")
        numbers = list(range(num_shards))
        if directory is not None:
            directory = os.path.abspath(directory)
            numbers = _numbers(directory, num_shards)
        plan = _Plan(
            make_buffer=make_buffer,
            directory=directory,
            durability=shard_lib.Durability(
                fsync=fsync, checkpoint_seconds=None if directory is None else checkpoint_seconds, codec=codec
            ),
            lease=float(lease),
            recovery=float(recovery),
            start_timeout=float(start_timeout),
            options=actor_options,
            fleet=f"relive-{os.urandom(8).hex()}",
            namespace=ray.get_runtime_context().namespace if namespace is None else namespace,
            is_detached=name is not None,
        )
        if name is not None:
            _check_name(validation.string("name", name), plan.namespace)
        handles, description = plan.start(numbers)
        settings = membership.Settings(
            timeout=float(timeout),
            recovery=float(recovery),
            lease=float(lease),
            has_limiter=limiter is not None,
            admission=admission,
        )
        processes = list(handles.values())
        try:
            actor = plan.actor(_Coordinator, plan.fleet if name is None else name, {"num_cpus": 0})
            try:
                processes.append(actor.remote(plan, settings, description, limiter))
            except TypeError as error:
                raise errors.ArgumentTypeError(f"limiter {_unsent(error)}") from error
            members: Any = ray.get(processes[-1].members.remote())
        except BaseException:
            for each in processes:
                ray.kill(each)
            raise
        return cls(_Transport(plan.fleet, plan.namespace, processes[-1], handles), settings, description, members, rng)

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
        try:
            handle = ray.get_actor(name, namespace)
            contact = handle.contact
        except (ValueError, AttributeError) as error:
            raise errors.ArgumentError(f"name must be that of a running fleet, got {name!r}") from error
        while True:
            try:
                found: Any = ray.get(contact.remote())
                break
            except exceptions.ActorUnavailableError:
                time.sleep(_RETRY)
        (fleet, place), settings, description, members = found
        return cls(_Transport(fleet, place, handle, {}), settings, description, members, rng)

    @property
    def shards(self) -> tuple[Any, ...]:
        """The actor handles of the shards, in order of their numbers."""
        return tuple([self._processes.handle(shard) for shard in self._shards.members.shards])

    @property
    def coordinator(self) -> Any:
        """The handle of the coordinator's actor."""
        return self._processes.coordinator_handle

    async def close(self) -> None:
        """Shut the fleet down for every client: shards close their files, and their processes end."""
        self._shards.close()
        with contextlib.suppress(errors.ClosedError):
            await self._shards.refresh()
            await self._of_each("close")
            self._processes.kill(self._shards.members.shards)

    @property
    def _processes(self) -> "_Transport":
        assert isinstance(self._transport, _Transport)
        return self._transport

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._transport, self._settings, self._description, self._shards.members)


class _Coordinator(coordinator.Coordinator):
    """The fleet's Coordinator as an actor, which knows all that a client needs."""

    def __init__(
        self,
        plan: _Plan,
        settings: membership.Settings,
        description: adapter.Description,
        limiter: rate_limiters.RateLimiter | None,
    ) -> None:
        place = plan.fleet, plan.namespace
        super().__init__(_Transport(*place, None, {}), _running(*place), settings, limiter)
        self._plan, self._contact = plan, (place, settings, description)
        # A new process continues at once with shards that are being drained.
        ray.get_runtime_context().current_actor.ping.remote()

    async def contact(self) -> tuple[Any, ...]:
        """Return where the shards are, the settings, the description and the members of the fleet."""
        return *self._contact, await self.members()

    async def plan(self) -> _Plan:
        """Return how to start another shard."""
        return self._plan


def _running(fleet: str, namespace: str) -> list[int]:
    """Return the numbers of the shards that are running or being restarted."""
    pattern = re.compile(re.escape(fleet) + r"-(\d+)")
    actors: list[Any] = ray.util.list_named_actors(True)
    names = [each["name"] for each in actors if each["namespace"] == namespace]
    return sorted([int(found[1]) for name in names if (found := pattern.fullmatch(name))])


def _numbers(directory: str, num_shards: int) -> list[int]:
    """Return the numbers of the shards: those in the directory, as seen by this machine, and new ones.

    Raises:
        CheckpointError: There are more in the directory.
    """
    names = os.listdir(directory) if os.path.isdir(directory) else []
    there = [int(shard[1]) for name in names if (shard := _SHARD.fullmatch(name))]
    if len(there) > num_shards:
        raise errors.CheckpointError(
            f"{files.named(directory)} holds a fleet of {len(there)} shards, got shards={num_shards}: "
            "start as many, or name another directory"
        )
    new = [number for number in range(num_shards) if number not in there]
    return sorted([*there, *new[: num_shards - len(there)]])


def _check_name(name: str, namespace: str) -> None:
    """Raise ArgumentError if there is an actor of that name."""
    try:
        ray.get_actor(name, namespace)
    except ValueError:
        return
    raise errors.ArgumentError(f"name must be new, got {name!r}: attach to that fleet, or close it")


class _Transport:
    """A transport to shards that are Ray actors."""

    def __init__(self, fleet: str, namespace: str, coordinator_handle: Any, handles: Mapping[int, Any]) -> None:
        self._fleet, self._namespace, self.coordinator_handle = fleet, namespace, coordinator_handle
        self._handles = dict(handles)

    def handle(self, shard: int) -> Any:
        """Return the handle of a shard.

        Raises:
            ClosedError: It will not come back.
        """
        if shard not in self._handles:
            try:
                self._handles[shard] = ray.get_actor(f"{self._fleet}-{shard}", self._namespace)
            except ValueError as error:
                raise errors.ClosedError(f"shard {shard} will not come back: it has ended") from error
        return self._handles[shard]

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        """Call a method of a shard; see membership.Transport."""
        _check_ray()
        try:
            reference = getattr(self.handle(shard), method).remote(*arguments)
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
                await asyncio.sleep(_RETRY)

    async def launch(self, shard: int) -> None:
        """Start a shard, and wait until it is running; see membership.Transport."""
        plan = await self.coordinator("plan")
        handles, _ = await asyncio.to_thread(plan.start, [shard])
        self._handles |= handles

    def end(self, shard: int) -> None:
        """End the process of a shard for good."""
        with contextlib.suppress(errors.ClosedError):
            ray.kill(self.handle(shard))

    def kill(self, shards: Iterable[int]) -> None:
        """End the processes."""
        for shard in shards:
            self.end(shard)
        ray.kill(self.coordinator_handle)


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
