"""How many operations the hot paths make: calls, arithmetic, comparisons and subscripts in the code of relive itself.

Each of them may be a call of numpy, and a call of numpy takes half a microsecond to two whatever it does. They are
counted, not timed: the counts are the same on every machine. What spellings of the same call cost is compared here;
`python src/relive/buffers/call_counts_test.py HEAD~1` compares all counts with those of another revision.
"""

import collections
from collections.abc import Callable, Mapping
import dis
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
from typing import Any

import numpy as np
import pytest

import relive
from relive.common import arrays as arrays_lib

PACKAGE = str(pathlib.Path(relive.__file__).parent)
OPERATIONS = ("CALL", "BINARY", "COMPARE", "UNARY", "STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR")


def count(call: Callable[[], object]) -> int:
    """Return how many operations the call makes in relive's own code."""
    total = 0

    def made(code: types.CodeType, offset: int) -> None:
        nonlocal total
        total += offset in operations(code)

    (_count_by_monitoring if sys.version_info >= (3, 12) else _count_by_tracing)(call, made)
    return total


def _count_by_tracing(call: Callable[[], object], made: Callable[[types.CodeType, int], None]) -> None:
    """Yield the position of each instruction."""

    def trace(frame: types.FrameType, event: str, argument: object) -> Callable[..., Any]:
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        if event == "opcode":
            made(frame.f_code, frame.f_lasti)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)


def _count_by_monitoring(call: Callable[[], object], made: Callable[[types.CodeType, int], None]) -> None:
    """Do the same from Python 3.12 on, where tracing of instructions is not reliable."""
    monitoring: Any = vars(sys)["monitoring"]
    tool = monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "relive")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, made)
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        call()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


@functools.cache
def operations(code: types.CodeType) -> frozenset[int]:
    """Return the positions of the operations of a code object; none if it is not part of relive."""
    if not code.co_filename.startswith(PACKAGE) or code.co_filename.endswith("call_counts_test.py"):
        return frozenset()
    return frozenset(
        instruction.offset
        for instruction in dis.get_instructions(code)
        if instruction.opname.startswith(OPERATIONS) and not instruction.opname.startswith("CALL_INTRINSIC")
    )


# What is counted: in full buffers, so that a write evicts.

VECTORS = relive.Schema(relive.Field(4, "float32"), relive.Field((), "int64"), reward=relive.Field((), "float32"))
IMAGES = relive.Schema(relive.Field((8, 8), "uint8"), relive.Field((), "int64"), reward=relive.Field((), "float32"))


def filled(buffer: Any) -> Any:
    """Return the buffer after it was filled, one and a half times, with episodes of 100 steps."""
    field = buffer.schema.fields["observation"]
    observations = np.zeros((101, *field.shape), field.dtype)
    for _ in range(3 * buffer.capacity // 200):
        buffer.add_episode(observations, np.zeros(100, int), np.zeros(100), terminated=True)
    return buffer


class Hooked(relive.UniformSampler):
    def _added(self, slots: arrays_lib.Slots) -> None:
        pass


def add(buffer: Any) -> Callable[[], object]:
    observation = np.zeros(4, np.float32)
    return lambda: buffer.add(observation, 0, 1.0, observation)


def ring() -> Any:
    return filled(relive.RingReplayBuffer(1_000, VECTORS, seed=0))


def prioritized() -> Any:
    return filled(relive.PrioritizedReplayBuffer(1_000, VECTORS, seed=0))


def added(name: str, **told: Any) -> Callable[[], Callable[[], object]]:
    """Return a function that calls `add` on a full buffer, with one argument passed in an unusual way."""

    def made() -> Callable[[], object]:
        buffer, step = spelled(name, 1, told)
        return lambda: buffer.add(**step, stream=0)

    return made


def extended(name: str, turns: int = 20, **told: Any) -> Callable[[], Callable[[], object]]:
    """Return the same for `extend`, of 64 streams."""

    def made() -> Callable[[], object]:
        buffer, step = spelled(name, 64, told)
        if name == "a seam":
            buffer.add_episode(np.zeros((11, 4), np.float32), [0] * 10, np.zeros(10), terminated=True, stream=0)
        for _ in range(turns):
            buffer.extend(**step)
        return lambda: buffer.extend(**step)

    return made


MAPPINGS: dict[str, Callable[[Any], Any]] = {
    "mappings": dict,
    "ordered": collections.OrderedDict,
    "proxies": types.MappingProxyType,
}


def spelled(name: str, streams: int, told: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a full buffer, and a step of each stream for it."""
    lead = () if streams == 1 else (streams,)
    observation: Any = np.zeros((*lead, 4), np.float32)
    field: Any = relive.Field(4, "float32")
    if name in MAPPINGS:
        observation, field = {"pose": observation, "goal": observation}, {"pose": field, "goal": field}
        observation = MAPPINGS[name](observation)
    step: dict[str, Any] = {
        "observation": observation,
        "action": np.zeros(lead, int),
        "reward": np.zeros(lead),
        "next_observation": observation,
        **told,
    }
    extras = {"cost": relive.Field((), "float32")} if "cost" in told else None
    schema = relive.Schema(field, relive.Field((), "int64"), reward=relive.Field((), "float32"), extras=extras)
    buffer = relive.RingReplayBuffer(1_024, schema, streams=streams, seed=0)
    for _ in range(3 * buffer.capacity // (2 * streams)):
        if streams == 1:
            buffer.add(**step, stream=0)
        else:
            buffer.extend(**step)
    return buffer, step


def update() -> Callable[[], object]:
    buffer = prioritized()
    batch = buffer.sample(256)
    return lambda: buffer.update_priorities(batch.keys, batch.weights)


def whole_episode() -> Callable[[], object]:
    buffer = ring()
    episode = np.zeros((101, 4), np.float32), np.zeros(100, int), np.zeros(100)
    return lambda: buffer.add_episode(*episode, terminated=True)


def episodes() -> Any:
    """Return a full episode buffer, and the id of its open episode."""
    buffer: Any = relive.EpisodeReplayBuffer(max_transitions=1_000, seed=0)
    for _ in range(15):
        episode_id = buffer.start_episode_nowait("agent")
        for t in range(100):
            buffer.append_observation_action_reward_nowait(episode_id, t, 0, 1.0)
        buffer.end_episode_nowait(episode_id, 100)
    return buffer


def append() -> Callable[[], object]:
    buffer = episodes()
    episode_id = buffer.start_episode_nowait("agent")
    return lambda: buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0)


def samples(make: Callable[[], Any], *arguments: Any, **options: Any) -> Callable[[], Callable[[], object]]:
    return lambda: functools.partial(make().sample, *arguments, **options)


HOT_PATHS: dict[str, Callable[[], Callable[[], object]]] = {
    "sample": samples(ring, 256),
    "sample, 5 steps": samples(ring, 256, n_step=5),
    "sample, frame stack": samples(lambda: filled(relive.RingReplayBuffer(1_000, IMAGES, frame_stack=4, seed=0)), 32),
    "sample, priorities": samples(prioritized, 256),
    "sample, sequences": samples(lambda: filled(relive.SequenceReplayBuffer(1_000, IMAGES, length=64, seed=0)), 16),
    "update_priorities": update,
    "add": lambda: add(ring()),
    "add, lists": added("lists", observation=[0.0] * 4, next_observation=[0.0] * 4, action=0, reward=0.0),
    "add, integers": added("integers", observation=[0] * 4, next_observation=[0] * 4),
    "add, mappings": added("mappings"),
    "add, ordered mappings": added("ordered"),
    "add, proxies of mappings": added("proxies"),
    "add, a sampler with hooks": lambda: add(filled(relive.RingReplayBuffer(1_000, VECTORS, sampler=Hooked(), seed=0))),
    "add, sequences": lambda: add(filled(relive.SequenceReplayBuffer(1_000, VECTORS, length=16, seed=0))),
    "add, an extra": added("an extra", cost=0.5),
    "add, without next_observation": added("lazily", next_observation=None),
    "add, an episode ends": added("an end", terminated=True),
    "add, priorities": lambda: add(prioritized()),
    "extend, 64 streams": extended("arrays"),
    "extend, lists": extended("lists", observation=[[0.0] * 4] * 64, next_observation=[[0.0] * 4] * 64),
    "extend, mappings": extended("mappings"),
    "extend, ordered mappings": extended("ordered"),
    "extend, an extra": extended("an extra", cost=np.zeros(64, np.float32)),
    "extend, flags": extended("flags", terminated=[False] * 64, truncated=[False] * 64),
    "extend, streams=": extended("streams", streams=np.arange(64)),
    "extend, an episode ends": extended("an end", terminated=np.arange(64) == 7),
    "extend, over the seam": extended("a seam", turns=15),
    "add_episode": whole_episode,
    "sample_n_step_nowait": lambda: functools.partial(episodes().sample_n_step_nowait, 32, n=5, gamma=0.9),
    "append_observation_action_reward_nowait": append,
}


def counted(path: str) -> int:
    """Return the number of operations of a hot path, after a warm-up."""
    call = HOT_PATHS[path]()
    for _ in range(3):
        call()
    return count(call)


DEARER = {"add, a sampler with hooks": 2.6, "add, an episode ends": 4, "extend, an episode ends": 2.25}
"""How many times as much as the cheapest a call costs at most, where it does more; others cost twice as much.

The step that goes on makes three fifths of the operations of 62410b3, so that one with hooks, which costs less than it
did there, and one that begins and ends an episode, which costs the same, are further from it. A round in which an
episode ends is written by the function that writes any other.
"""


@pytest.mark.parametrize("call", ["add", "extend"])
def test_spellings_of_a_call_cost_the_same(call: str) -> None:
    """At most twice the cheapest, also where the ring wraps."""
    counts = {path: counted(path) for path in HOT_PATHS if path.split(",")[0] == call and "priorities" not in path}
    cheapest = min(counts.values())
    for path, number in counts.items():
        assert number <= DEARER.get(path, 2) * cheapest, path


def test_only_the_operations_of_relive_count() -> None:
    assert count(lambda: np.full(3, 7).sum() + 1) == 0
    one, two = (count(functools.partial(relive.compute_discounted_return, [1.0] * length, 0.5)) for length in (1, 2))
    assert 0 < one < two


# Beside another revision.

MORE = 1.02
"""How many times as many operations a call may make as it did."""


def counts_of(source: pathlib.Path) -> dict[str, int]:
    """Return the operations of each hot path of the package in a folder."""
    command = [sys.executable, __file__, "--count"]
    answer = subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(source)})
    counts: dict[str, int] = json.loads(answer.stdout)
    return counts


def compare(revision: str) -> int:
    """Print the operations of each hot path here and at a revision; return 1 if one makes more."""
    source = pathlib.Path(PACKAGE).parent
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "."], cwd=source, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        there, here = counts_of(pathlib.Path(folder)), counts_of(source)
    for path, number in here.items():
        sys.stdout.write(f"{path:42} {there[path]:5} {number:5}{' more' if number > MORE * there[path] else ''}\n")
    return any(number > MORE * there[path] for path, number in here.items())


if __name__ == "__main__":
    if sys.argv[1] == "--count":
        sys.stdout.write(json.dumps({path: counted(path) for path in HOT_PATHS}))
    else:
        sys.exit(compare(sys.argv[1]))
