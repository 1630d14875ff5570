"""What is measured: a task, what is timed of it, and at which sizes."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import glob
import os
import shutil
import tempfile
from typing import Any, TypeAlias
import weakref

from relive.bench import catalogue
from relive.bench import coroutines
from relive.bench import tasks
from relive.bench import verification
from relive.bench.peers import own
from relive.testing import synthetic

Call: TypeAlias = Callable[[], object]
Timed: TypeAlias = Callable[[tasks.Buffer, tasks.Feed], Call]
"""Returns the call to time, given a full buffer and what it is fed. What the call returns is checked, unless None."""
Line: TypeAlias = Callable[[int], verification.Entrant]
"""Returns who takes part at that size; raises CannotError where it does not fit."""
Sizes: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Those of a full run and of a quick one, from the smallest on."""

OVERFILL = 1.05
"""How often over a ring is filled before it is measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One table.

    Attributes:
        name: What the command calls it.
        family: A name for this and its like.
        title: What the tables call it.
        task: What every peer's buffer has to do; None where only some peers take part, by `lines`.
        timed: What is timed of the task; None where the memory of a stored step is measured instead.
        lines: Those who take part where there is no task, by the names of the peers.
        sizes: At which `lines` are measured, from the smallest on.
        quick_sizes: The same in a quick run.
        counted: What the sizes count, where growth is shown; nothing otherwise.
        steps: Equal parts of a call, by which the time is divided.
        part: What such a part is called.
        why: Why others are faster, said where one is.
    """

    name: str
    family: str
    title: str
    task: tasks.Task | None = None
    timed: Timed | None = None
    lines: Mapping[str, Line] = dataclasses.field(default_factory=dict)
    sizes: Sequence[int] = (0,)
    quick_sizes: Sequence[int] = (0,)
    counted: str = ""
    steps: int = 1
    part: str = "batch"
    why: str = ""

    @property
    def unit(self) -> str:
        """What the values of the table are."""
        return f"bytes a {self.part}" if self.task and not self.timed else f"microseconds a {self.part}"

    def quick(self) -> "Workload":
        """Return the same at a hundredth of the size, or less."""
        task = self.task
        if task:
            sequences = task.batch_size * task.episode_lengths[1] // 4 if task.sequence_length else 0
            least = 8 * max(task.streams, 70, sequences)
            task = dataclasses.replace(task, capacity=max(least, min(task.capacity // 100, 2_000)))
        return dataclasses.replace(self, task=task, sizes=self.quick_sizes)

    def line(self, peer: catalogue.Peer) -> Line | None:
        """Return how that peer takes part; None if it does not."""
        task, timed = self.task, self.timed
        if task and timed:
            return lambda size: of_buffer(peer, peer.load(), task, timed, self.steps)
        return self.lines.get(peer.name)


def of_buffer(
    peer: catalogue.Peer, make: tasks.Make, task: tasks.Task, timed: Timed, steps: int = 1
) -> verification.Entrant:
    """Return a peer with a buffer that is full and more, after a look at what it returns in a small ring.

    Raises:
        CannotError: The peer has nothing for the task, or there is no room for it.
    """
    small = verification.Findings() if peer.is_limit else verification.check_small_ring(make, task)
    buffer, story, feed = tasks.filled(make, task, int(task.capacity * OVERFILL), 10_000)

    def check(drawn: Any, findings: verification.Findings) -> None:
        verification.check(task, story, buffer.answer(drawn), findings)

    return verification.Entrant(timed(buffer, feed), None if peer.is_limit else check, small, steps)


def sampling(buffer: tasks.Buffer, feed: tasks.Feed) -> Call:
    """Time a draw."""
    return buffer.sample


def updating(buffer: tasks.Buffer, feed: tasks.Feed) -> Call:
    """Time a draw and new priorities for what was drawn."""
    sample, update, priorities = buffer.sample, buffer.update, feed.priorities.__next__

    def call() -> object:
        drawn = sample()
        update(drawn, priorities())
        return drawn

    return call


def adding(buffer: tasks.Buffer, feed: tasks.Feed) -> Call:
    """Time one step more."""
    add, step = buffer.add, feed.steps().__next__
    return lambda: add(step())


def adding_and_sampling(buffer: tasks.Buffer, feed: tasks.Feed) -> Call:
    """Time one step more, and a draw."""
    add, step, sample = buffer.add, feed.steps().__next__, buffer.sample

    def call() -> object:
        add(step())
        return sample()

    return call


def extending(buffer: tasks.Buffer, feed: tasks.Feed) -> Call:
    """Time one step more of every stream."""
    extend, row = buffer.extend, feed.rows().__next__
    return lambda: extend(row())


def looping(buffer: tasks.Buffer, feed: tasks.Feed) -> Call:
    """Time four steps more, a draw, and new priorities for what was drawn."""
    add, step, update = buffer.add, feed.steps().__next__, updating(buffer, feed)

    def call() -> object:
        for _ in range(4):
            add(step())
        return update()

    return call


def saving(buffer: tasks.Buffer, feed: tasks.Feed) -> Call:
    """Time saving, until all of it is on the disk."""
    path = _temporary_path(buffer)

    def call() -> None:
        buffer.save(path)
        for place in glob.glob(f"{path}*") + glob.glob(f"{path}/*"):
            if os.path.isfile(place):
                descriptor = os.open(place, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    return call


def loading(buffer: tasks.Buffer, feed: tasks.Feed) -> Call:
    """Time loading, and one draw."""
    path = _temporary_path(buffer)
    buffer.save(path)

    def call() -> object:
        buffer.load(path)
        return buffer.sample()

    return call


def _temporary_path(buffer: tasks.Buffer) -> str:
    """Return a path for what is saved; it goes with the buffer."""
    directory = tempfile.mkdtemp()
    weakref.finalize(buffer, shutil.rmtree, directory, ignore_errors=True)
    return os.path.join(directory, "saved")


_SMALL = synthetic.Kind((4,), "float32")
_MIDDLE = synthetic.Kind((17,), "float32")
_PLAIN = tasks.Task(capacity=1_000_000, observation=_SMALL)
_WIDE = dataclasses.replace(_PLAIN, observation=_MIDDLE, action=synthetic.Kind((6,), "float32"))
_PRIORITIZED = dataclasses.replace(_PLAIN, prioritized=True)
_SAVED = dataclasses.replace(_PRIORITIZED, observation=_MIDDLE)
_STREAMS = dataclasses.replace(_PLAIN, streams=64, episode_lengths=(100, 100))
_EPISODES = dataclasses.replace(_PLAIN, n_step=5, by_episode=True, episode_lengths=(5, 15))
_IMAGES = tasks.Task(capacity=20_000, observation=synthetic.Kind((84, 84), "uint8"), frame_stack=4)
"""More than any cache holds, and room for those who store a stack twice a step."""
_SEQUENCES = tasks.Task(
    capacity=20_000,
    observation=synthetic.Kind((64, 64, 3), "uint8"),
    sequence_length=64,
    batch_size=16,
    episode_lengths=(100, 300),
)

_WHY = {
    "images": "Numpy gathers the stacks and those that follow them by a take each, after finding where each frame is. "
    "cpprb does all of it in one loop in C++.",
    "n-step": "cpprb works out its returns when steps are added, for one n and one gamma, so that a draw only gathers. "
    "relive works them out when they are drawn: adding costs nothing more, and every draw may have its own n.",
    "prioritized": "A call of numpy costs half a microsecond to two whatever it does, and relive makes more than fifty "
    "of them in a draw and its update: most of the time while the tree fits in a cache. Compiled trees make none.",
    "add": "relive checks every field for its shape and dtype, and that each episode goes on where it was; it keeps "
    "where episodes begin and end and what may be drawn. sb3 assigns to arrays unchecked.",
    "extend": "In most calls some of the 64 episodes end, and relive keeps books of where each begins and ends. sb3 "
    "keeps a flag a step and knows no episodes; its draws have to do without.",
    "saving": "relive takes a checksum of every byte, and checks it: a file may come from anywhere. What is pickled "
    "can be read by nobody else, and runs code.",
}
"""Why others are faster, by family."""
_WHY["loop"] = _WHY["prioritized"]


def _of(family: str, name: str, title: str, task: tasks.Task | None, timed: Timed | None, **rest: Any) -> Workload:
    """Return a workload of a family."""
    return Workload(name=name, family=family, title=title, task=task, timed=timed, why=_WHY.get(family, ""), **rest)


def _lines(family: str, name: str, title: str, lines: Mapping[str, Line], sizes: Sizes, **rest: Any) -> Workload:
    """Return a workload that only some peers take part in."""
    return _of(family, name, title, None, None, lines=lines, sizes=sizes[0], quick_sizes=sizes[1], **rest)


def _crowd(name: str, title: str, peers: Sequence[str], **settings: bool) -> Workload:
    """Return a workload of coroutines."""
    lines = {peer: functools.partial(coroutines.crowd, peer=peer, **settings) for peer in peers}
    title = f"a step of one of 1,000 coroutines{title}"
    return _lines("coroutines", name, title, lines, ((1_000,), (50,)), part="step")


def _mapped(
    size: int, peer: str, make: tasks.Make, timed: Timed = sampling, prioritized: bool = False
) -> verification.Entrant:
    """Return a peer with that many steps in mapped files; long episodes are stored fast, and cost a draw nothing."""
    task = dataclasses.replace(_PLAIN, capacity=size, prioritized=prioritized, episode_lengths=(1_000, 3_000))
    entrant = of_buffer(catalogue.PEERS[peer], make, task, timed)
    getattr(os, "sync", lambda: None)()  # Timing must not run beside what is still being written.
    return entrant


_BOTH = ("relive", "relive-episodes")
_GROWN: Sizes = (tuple(10**digits for digits in range(4, 9)), (1_000, 3_000, 10_000))
_UNIFORM = {
    "relive": functools.partial(_mapped, peer="relive", make=own.make_mapped),
    "take": functools.partial(_mapped, peer="take", make=own.make_mapped_take),
}
_BY_PRIORITY = {
    "relive": functools.partial(_mapped, peer="relive", make=own.make_mapped, timed=updating, prioritized=True)
}

_ALL = (
    _of("uniform", "uniform", "a draw of 256, observation f32[4]", _PLAIN, sampling),
    _of("uniform", "uniform-17", "a draw of 256, observation f32[17], action f32[6]", _WIDE, sampling),
    *(
        _of(
            "images",
            f"images-{size}",
            f"a draw of {size} stacks of four 84x84 images",
            dataclasses.replace(_IMAGES, batch_size=size),
            sampling,
        )
        for size in (32, 256)
    ),
    _of(
        "n-step", "n-step", "a 5-step draw of 256, observation f32[4]", dataclasses.replace(_PLAIN, n_step=5), sampling
    ),
    *(
        _of(
            "prioritized",
            f"prioritized-{name}",
            f"a prioritized draw of 256 and its update, {size:,} steps of f32[4]",
            dataclasses.replace(_PRIORITIZED, capacity=size),
            updating,
        )
        for name, size in {"10k": 10**4, "100k": 10**5, "1m": 10**6, "10m": 10**7}.items()
    ),
    _of(
        "loop",
        "loop",
        "a loop of 4 adds, a prioritized draw of 32 and its update",
        dataclasses.replace(_PRIORITIZED, batch_size=32),
        looping,
        steps=4,
        part="step",
    ),
    _of(
        "sequences", "sequences", "a draw of 16 sequences of 64 steps, observation u8[64, 64, 3]", _SEQUENCES, sampling
    ),
    *(
        _of(
            "episodes",
            f"episodes-{name}",
            f"an added step and a 5-step draw of 256 from {size:,} episodes of about 10 steps of f32[4]",
            dataclasses.replace(_EPISODES, capacity=10 * size),
            adding_and_sampling,
        )
        for name, size in {"1k": 10**3, "10k": 10**4, "100k": 10**5}.items()
    ),
    _lines(
        "episodes",
        "episodes-drawn",
        "a 3-step draw of 256 from 1,000,000 transitions",
        {"relive-episodes": coroutines.drawing},
        ((100, 1_000, 10_000, 100_000), (1, 3)),
        counted="episodes",
    ),
    _lines(
        "episodes",
        "episodes-open",
        "an awaited append to one of many open episodes",
        {"relive-episodes": coroutines.appending},
        ((10, 100, 1_000, 20_000), (10, 100)),
        counted="episodes",
        part="step",
    ),
    _crowd("coroutines", "", (*_BOTH, "await")),
    _crowd("coroutines-yielding", ", each of which then lets the others run", (*_BOTH, "await"), yields=True),
    _crowd("coroutines-learner", ", beside a learner that draws 256 at its turns", _BOTH, learns=True),
    _crowd("coroutines-limited", ", each drawn once by a learner", _BOTH, learns=True, limits=True),
    _of("add", "add", "adding a step of f32[4]", _PLAIN, adding, part="step"),
    _of(
        "add",
        "add-images",
        "adding a step of four stacked 84x84 images, one of them new",
        _IMAGES,
        adding,
        part="step",
    ),
    _of(
        "extend", "extend", "adding a step of f32[4] of each of 64 streams", _STREAMS, extending, steps=64, part="step"
    ),
    *(
        _of("saving", name, title, _SAVED, timed, steps=_SAVED.capacity, part="stored step")
        for name, title, timed in (
            ("save", "saving 1,000,000 steps of f32[17] with priorities, to the disk", saving),
            ("load", "loading 1,000,000 steps of f32[17] with priorities, and one draw", loading),
        )
    ),
    _of("memory", "memory", "memory of a step of f32[4]", _PLAIN, None, part="step"),
    _of("memory", "memory-prioritized", "memory of a step of f32[4] with a priority", _PRIORITIZED, None, part="step"),
    _lines(
        "growth",
        "growth-uniform",
        "a uniform draw of 256 from steps of f32[4] in mapped files",
        _UNIFORM,
        _GROWN,
        counted="steps",
    ),
    _lines(
        "growth",
        "growth-tree",
        "a stratified draw of 256 from the sum tree alone, and their weights set",
        {"relive": own.tree},
        _GROWN,
        counted="leaves",
    ),
    _lines(
        "growth",
        "growth-prioritized",
        "a prioritized draw of 256 and its update, steps of f32[4] in mapped files",
        _BY_PRIORITY,
        _GROWN,
        counted="steps",
    ),
)

WORKLOADS = {one.name: one for one in _ALL}
