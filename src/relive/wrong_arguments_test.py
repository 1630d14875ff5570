"""Arguments of the wrong kind, in every public call: it works, or it raises one line of ours and changes nothing."""

import asyncio
from collections.abc import Callable, Iterator
import inspect
import itertools
import pathlib
from typing import Any
import warnings

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import messages_test


class Lines:
    """An object whose representation has several lines."""

    def __repr__(self) -> str:
        return "two\nlines"


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)
WRONG: list[Any] = [
    None,
    5,
    10**5000,
    1j,
    float("nan"),
    "a\nb\u2028c",
    "\ud800",
    object(),
    Lines(),
    slice(None),
    RECURSIVE,
]
WRONG += [
    [],
    ["a"],
    [[1], [1, 2]],
    [np.zeros(1), np.zeros(2)],
    {},
    {1: []},
    {1},
    np.array(0),
    np.array(None),
    np.zeros(0),
]
WRONG += [np.array(["batch", "x"]), np.float32(1), np.longdouble("1e400"), np.ma.array([1, 2], mask=[False, True])]
STEP = relive.TokenStep(prompt=[1, 2], response=[3], logprobs=[-1.0], policy_version=0)
SCHEMA = relive.Schema(relive.Field((), float), relive.Field((), int))


def column(kind: Any = relive.PrioritizedReplayBuffer, **settings: Any) -> Any:
    buffer = kind(20, seed=0, **settings)
    for t in range(6):
        buffer.add([t, 0.0], t % 2, 1.0, [t + 1, 0.0], terminated=t == 3, logp=0.5)
    return buffer


def joint() -> Any:
    buffer: Any = relive.JointReplayBuffer(9, agents=["a", "b"], seed=0)
    for t in range(3):
        buffer.add(*(dict.fromkeys("ab", t + later) for later in (0, 0, 0, 1)))
    return buffer


def episodes() -> Any:
    buffer: Any = relive.EpisodeReplayBuffer(seed=0, groups=relive.Groups(2), redeliver=True)
    for _ in range(2):
        episode_id = buffer.start_episode_nowait("a")
        for t in range(3):
            buffer.append_observation_action_reward_nowait(episode_id, t, t, 1.0)
        buffer.end_episode_nowait(episode_id, 3)
    buffer.next_episodes_nowait(1)
    return buffer


def writer() -> Any:
    """Return the calls of an open episode, which are given no id."""
    buffer = episodes()
    episode_id = buffer.start_episode_nowait("a")
    buffer.append = lambda **step: buffer.append_observation_action_reward_nowait(episode_id, **step)
    buffer.end = lambda **end: buffer.end_episode_nowait(episode_id, **end)
    return buffer


def tokens() -> Any:
    fields: Any = {
        "token_extras": {"adv": relive.Field((), float)},
        "sequence_extras": {"temp": relive.Field((), float)},
    }
    buffer = relive.TokenReplayBuffer(99, seed=0, **fields)
    buffer.add_episode([STEP], agent_id="a")
    buffer.next_episodes_nowait(1)
    return buffer


def items(unit: Any) -> Callable[[], Any]:
    def make() -> Any:
        buffer: Any = relive.ItemReplayBuffer(9, unit, seed=0)
        buffer.add_columns = lambda **columns: buffer.add(columns)
        return buffer

    return make


def rollout(several: bool) -> Callable[[], Any]:
    def make() -> Any:
        buffer = relive.RolloutBuffer(5)
        buffer.add(np.zeros((3, 2)), [1] * 3, [1.0] * 3) if several else buffer.add([0.0, 1.0], 1, 1.0)
        return buffer

    return make


def tree() -> Any:
    leaves = relive.SumTree(4)
    leaves.set([0, 1], [1.0, 2.0])
    return leaves


O, A, RUN = [9.0, 0.0], 1, [[9.0, 0.0], [1.0, 1.0]]
FLAGS = {"terminated": True, "truncated": False}
STEPS: dict[str, dict[str, Any]] = {
    "add": {"observation": O, "action": A, "reward": 1.0, "next_observation": O, **FLAGS, "stream": 0, "logp": 0.5},
    "extend": {"observation": [O], "action": [A], "reward": [1.0], "terminated": [True], "streams": [0], "logp": [0.5]},
    "add_episode": {"observations": RUN, "actions": [A], "rewards": [1.0], **FLAGS, "stream": 0, "logp": [0.5]},
    "add_episodes": {
        "observations": [O],
        "actions": [A],
        "rewards": [1.0],
        "terminated": [True],
        "truncated": [False],
        "episodes": [0],
        "next_observations": [O],
        "last_row": "step",
        "unknown_end": "error",
        "stream": 0,
        "logp": [0.5],
    },
    "add_steps": {"observations": RUN, "actions": [A], "rewards": [1.0], **FLAGS, "stream": 0, "logp": [0.5]},
}
COLUMNS: dict[str, dict[str, Any]] = STEPS | {
    "end_episode": {"stream": 0},
    "sample": {"batch_size": 3, "n_step": 2, "gamma": 0.9, "beta": 0.4},
    "batches": {"batch_size": 3, "prefetch": 1, "n_step": 2, "gamma": 0.9, "beta": 0.4},
    "sample_keys": {"batch_size": 3},
    "read": {"keys": [0], "n_step": 2, "gamma": 0.9, "beta": 0.4},
    "update_priorities": {"keys": [0], "priorities": [1.0]},
    "get_priorities": {"keys": [0]},
    "set_eligible": {"keys": [0], "eligible": True},
    "save": {"path": "saved", "keep": 1},
    "load_state_dict": {"state": {}},
}
DELIVERY: dict[str, dict[str, Any]] = {
    "reject": {"episode_ids": ["x"], "reason": "r"},
    "ack": {"version": 0},
    "set_policy_version": {"version": 1},
    "admit_nowait": {"count": 1},
    "next_episodes_nowait": {"count": 1, "max_lag": None, "accept": None},
}
DESCRIBED = {"agent_id": "a", "group_id": "g", "policy_version": 1, "ticket": None}
APPENDED = {"episode_id": "e", "observation": 1, "action": 1, "reward": 1.0, "policy_version": 1}
ENDED = {"episode_id": "e", "final_observation": 1, "status": "COMPLETED"}
EPISODES: dict[str, dict[str, Any]] = DELIVERY | {
    "start_episode_nowait": DESCRIBED,
    "start_episode": DESCRIBED,
    "append_observation_action_reward_nowait": APPENDED,
    "append_observation_action_reward": APPENDED,
    "end_episode_nowait": ENDED,
    "end_episode": ENDED,
    "abort_episode_nowait": {"episode_id": "e"},
    "sample_n_step_nowait": {"batch_size": 1, "n": 1, "gamma": 0.9, "max_lag": None, "lag_decay": 1.0},
    "next_groups_nowait": {"count": 1, "max_lag": None, "accept": None},
    "save": {"path": "saved", "keep": 1, "codec": None},
    "save_async": {"path": "saved", "keep": 1, "codec": None},
    "attach": {"journal": None, "codec": None},
}
AGENTS = {"a": 1, "b": 1}
JOINT = {
    "observations": AGENTS,
    "actions": AGENTS,
    "rewards": AGENTS,
    "next_observations": AGENTS,
    "terminations": AGENTS,
}
TOKENS: dict[str, dict[str, Any]] = DELIVERY | {
    "add_episode": {
        "steps": [STEP],
        "agent_id": "a",
        "group_id": "g",
        "status": "COMPLETED",
        "adv": [[1.0]],
        "temp": 0.5,
    },
    "update": {"keys": [0], "adv": [[1.0, 2.0, 3.0]], "temp": [0.5]},
    "sample": {"batch_size": 2, "max_lag": None},
    "read": {"keys": [0]},
    "micro_batches": {"keys": [0], "max_tokens": 9, "ranks": 1},
}
ROLLOUT = {"value": 0.5, **FLAGS, "next_value": 0.5}
CUT = {"c": [1, 2], "seq_lens": [1, 1]}, {"eps_id": [1, 1], "t": [0, 1], "terminated": [0, 1]}
METHODS: list[tuple[Callable[[], Any], dict[str, dict[str, Any]]]] = [
    (column, COLUMNS),
    (lambda: relive.RingReplayBuffer(9), STEPS),
    (lambda: relive.ThreadSafeReplayBuffer(column(), timeout=0.01), STEPS),
    (lambda: relive.AsyncReplayBuffer(column()), {**STEPS, "sample": COLUMNS["sample"], "save": COLUMNS["save"]}),
    (joint, {"add": JOINT, "sample": {"batch_size": 2, "n_step": 2, "gamma": 0.3}, "read": {"keys": [0]}}),
    (episodes, EPISODES),
    (lambda: relive.ThreadSafeReplayBuffer(episodes(), timeout=0.01), DELIVERY),
    (writer, {"append": {**APPENDED}, "end": {**ENDED}}),
    (tokens, TOKENS),
    (items("sequences"), {"add_columns": CUT[0], "add": {"columns": CUT[0]}, "sample": {"num_items": 1}}),
    (items("episodes"), {"add_columns": CUT[1]}),
    (items("timesteps"), {"add_columns": CUT[1]}),
    (items("fragments"), {"add_columns": CUT[1]}),
    (rollout(False), {"add": {"observation": [0.0, 1.0], "action": 1, "reward": 1.0, **ROLLOUT}}),
    (rollout(True), {"add": {"observation": np.zeros((3, 2)), "action": [1] * 3, "reward": [1.0] * 3, **ROLLOUT}}),
    (rollout(True), {"advantages": {"gamma": 0.9, "lambda_": 0.9, "last_value": 0.0}}),
    (tree, {"set": {"leaves": [0], "weights": [1.0]}, "find": {"masses": [0.5]}, "sample": {"size": 2, "rng": None}}),
    (
        lambda: relive.ColumnStorage(SCHEMA, 9),
        {"read": {"slots": 0, "fields": None}, "write": {"slots": 0, "rows": {}}},
    ),
]
NUMBERS = ("capacity", "max_tokens", "max_steps", "length", "n", "min_size", "error_buffer", "steps", "size", "max_lag")
REQUIRED: dict[str, Any] = {
    **dict.fromkeys((*NUMBERS, "ratio", "episodes_per_version", "shape"), 9),
    **dict.fromkeys(("start", "end", "gamma", "policy_version"), 1),
    **dict.fromkeys(("rewards", "lengths", "prompt", "response"), (1,)),
    **dict.fromkeys(("observation", "action"), SCHEMA.action),
    **dict.fromkeys(("agents", "path", "dtype"), "f4"),
    "schema": SCHEMA,
    "rows": [(1,)],
    "messages": [{"role": "assistant", "content": "4"}],
    "tokenizer": messages_test.Plain(),
}
NOT_CHECKED = {"AgentBatch", "Draw", "Episode", "EpisodeWriter", "group_advantages", "relabel", "RowOrigin", "Ticket"}
NOT_CHECKED |= {"PlainEpisodeWriter"}
"""Records, which hold what they are given; what relive makes itself; and what is tested elsewhere."""


def calls() -> Iterator[tuple[str, Callable[[], Any], str | None, dict[str, Any]]]:
    """Yield every call with valid arguments: a name, what makes its object, a method, and the arguments."""
    for make, methods in METHODS:
        for method, arguments in methods.items():
            left_out = {"logp"} if make is METHODS[1][0] else {"episode_id"} if make is writer else set()
            yield method, make, method, {name: value for name, value in arguments.items() if name not in left_out}
    for name in vars(relive)["__all__"]:
        value = getattr(relive, name)
        is_call = callable(value) and not inspect.isabstract(value) and getattr(value, "__module__", "") != "typing"
        is_plain = inspect.isclass(value) and (issubclass(value, BaseException) or name.endswith(("Stats", "Batch")))
        if is_call and not is_plain and name not in NOT_CHECKED:
            parameters = [each for each in inspect.signature(value).parameters.values() if each.kind in (1, 3)]
            arguments = {each.name: each.default for each in parameters if each.default is not each.empty}
            required = {each.name: REQUIRED.get(each.name) for each in parameters if each.name not in arguments}
            yield name, lambda value=value: value, None, required | arguments  # type: ignore[misc]


def contents(made: Any) -> Any:
    """Return all that a buffer holds, apart from times, in a form that can be compared."""
    buffer: Any = getattr(made, "_buffer", made)
    state_dict = None if isinstance(buffer, type) else getattr(buffer, "state_dict", None)
    return None if state_dict is None else _plain(state_dict())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if "age" not in name and "time" not in name}
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else repr(value)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in (1, 2, 3))])
def test_wrong_arguments_are_refused_in_one_line(
    part: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    faults: list[str] = []

    def is_refused(name: str, call: Any, arguments: dict[str, Any]) -> bool:
        try:
            answer = call(**arguments)
            if inspect.iscoroutine(answer):
                asyncio.run(answer)
        except errors.ReplayError as error:
            if not str(error).isprintable():
                faults.append(f"{name} says {str(error)!r}")
        except Exception as error:
            faults.append(f"{name} raises {error!r}")
        else:
            return False
        return True

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make, method, arguments in calls():
            made = before = None
            for parameter, wrong in itertools.islice(itertools.product(arguments, WRONG), part, None, 4):
                if made is None:
                    made = make()
                    before = contents(made)
                call = made if method is None else getattr(made, method)
                shown = f"{name}({parameter}={type(wrong).__name__})"
                if not is_refused(shown, call, {**arguments, parameter: wrong}):
                    made = None
                elif contents(made) != before:
                    faults.append(f"{shown} is refused and has changed something")
    assert not faults, "\n".join(faults)
