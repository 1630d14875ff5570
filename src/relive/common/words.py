"""Words of other libraries, and what they are called here, for errors.

Each table gives, for a word, the words of relive that it may mean. An object has some of them; what is more than a
name holds for the others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import difflib
import importlib.util
import inspect
import sys
import types
from typing import Any, TypeAlias
import weakref

from relive import errors

Table: TypeAlias = Mapping[str, tuple[str, ...]]

_BOTH_ENDS = ("terminated", "truncated")
EXTRAS: Table = {
    **dict.fromkeys(("done", "dones", "episode_end", "finished", "is_done", "is_last"), _BOTH_ENDS),
    **dict.fromkeys(("terminal", "terminals", "terminateds", "is_terminal", "is_state_terminal"), ("terminated",)),
    **dict.fromkeys(("term", "termination", "terminations"), ("terminated",)),
    **dict.fromkeys(("truncate", "truncateds", "trunc", "truncation", "truncations"), ("truncated",)),
    **dict.fromkeys(("timed_out", "timeouts"), ("truncated",)),
    "obs": ("observation",),
    **dict.fromkeys(("next_obs", "new_obs", "next_observations", "next_state"), ("next_observation",)),
    **dict.fromkeys(("obs_next", "observation_next"), ("next_observation",)),
    **dict.fromkeys(("info", "infos"), ("the values that you need by their names",)),
    **dict.fromkeys(("final_obs", "final_observation"), ("next_observation",)),
    **dict.fromkeys(("rewards", "rew", "rews"), ("reward",)),
    **dict.fromkeys(("act", "actions"), ("action",)),
    **dict.fromkeys(("priority", "priorities"), ("it with update_priorities",)),
}
"""An extra of that name is refused, unless a schema declares it."""

_FLAT = {"next_observation": "next_observations"}
FLAT_EXTRAS: Table = {
    **{word: tuple(_FLAT.get(each, each) for each in meant) for word, meant in EXTRAS.items()},
    "next_observation": ("next_observations",),
    "streams": ("stream",),
}
"""The same in flat arrays of many episodes."""

_BY_AGENT = {
    "terminated": "terminations",
    "truncated": "truncations",
    **{name: f"{name}s" for name in ("observation", "action", "reward", "next_observation")},
}
JOINT_EXTRAS: Table = {
    **{word: tuple(_BY_AGENT.get(each, each) for each in meant) for word, meant in EXTRAS.items()},
    **{word: (each,) for word, each in _BY_AGENT.items()},
}
"""The same in a joint step, whose arguments are by agent."""

_BOOTSTRAPPED = ("next_discount", "is_terminal", *_BOTH_ENDS)
FIELDS: Table = {
    **dict.fromkeys(("obs", "observations", "state", "states"), ("observation",)),
    **dict.fromkeys(("act", "actions"), ("action",)),
    **dict.fromkeys(("rew", "rewards"), ("reward",)),
    **dict.fromkeys(("next_obs", "obs_next", "next_observations", "next_state", "next_states"), ("next_observation",)),
    **dict.fromkeys(("done", "dones", "terminal", "terminals", "terminated", "terminations"), _BOOTSTRAPPED),
    **dict.fromkeys(("truncated", "truncations"), ("truncated", "next_discount")),
    "masks": ("mask",),
    **dict.fromkeys(("discount", "discounts"), ("next_discount",)),
    **dict.fromkeys(("index", "indices", "indexes", "idx", "idxs"), ("keys",)),
    **dict.fromkeys(("weight", "is_weight", "importance_weights"), ("weights",)),
    **dict.fromkeys(("info", "infos"), ("extras",)),
}
"""The fields of batches."""

_MODULES = {name: name for name in ("arrow", "gymnasium", "jax", "minari", "ray", "torch")}
_MODULES |= {"gym": "gymnasium", "parquet": "arrow", "pyarrow": "arrow", "pytorch": "torch"}
_MODULES |= dict.fromkeys(("sb3", "stable_baselines3"), "stable_baselines3")
_FOUND_IN = {
    "arrow": ("add_parquet", "add_table", "to_table", "write_parquet"),
    "gymnasium": ("EpisodeRecorder", "Recorder", "VectorRecorder", "from_env", "schema_from_spaces"),
    "jax": ("as_jax",),
    "minari": ("add_dataset", "to_dataset"),
    "torch": ("ReplayDataset", "as_tensordict", "as_tensors", "data_loader", "from_tensordict"),
}
NAMES: Table = {
    **{word: (f"relive.integrations.{module}",) for word, module in _MODULES.items()},
    **{word: (f"relive.integrations.{module}.{word}",) for module, words in _FOUND_IN.items() for word in words},
    **dict.fromkeys(("ReplayBuffer", "UniformReplayBuffer", "NStepReplayBuffer"), ("RingReplayBuffer",)),
    **dict.fromkeys(("Buffer", "ReplayMemory", "RingBuffer", "TransitionReplayBuffer"), ("RingReplayBuffer",)),
    **dict.fromkeys(("PER", "PrioritizedBuffer", "PrioritizedReplayMemory"), ("PrioritizedReplayBuffer",)),
    **dict.fromkeys(("RecurrentReplayBuffer", "SequenceBuffer"), ("SequenceReplayBuffer",)),
    **dict.fromkeys(("EpisodeBuffer", "TrajectoryBuffer", "TrajectoryReplayBuffer"), ("EpisodeReplayBuffer",)),
    **dict.fromkeys(("MultiAgentBuffer", "MultiAgentReplayBuffer"), ("JointReplayBuffer",)),
    **dict.fromkeys(("RolloutReplayBuffer", "RolloutStorage"), ("RolloutBuffer",)),
    **dict.fromkeys(("HERReplayBuffer", "HerReplayBuffer", "HindsightReplayBuffer"), ("relabel",)),
}
"""The names in the module itself."""

_SIZE = ("capacity", "max_transitions", "max_tokens", "max_steps")
_SCHEMA = ("schema", "schemas", "leave it out, the first step tells")
_DEVICE = "leave it out, relive.integrations.torch.as_tensors makes tensors of a batch and batch.to(device) moves them"
_OF_SB3 = "replay_buffer_class= of Stable-Baselines3 takes relive.integrations.stable_baselines3.ReplayBuffer"
_PRIORITIES = "leave it out, PrioritizedReplayBuffer has priorities"
_DISCOUNTS = "leave it out, the call that discounts takes it, as advantages and sample_n_step do"
ARGUMENTS: Table = {
    **dict.fromkeys(("optimize_memory_usage", "handle_timeout_termination"), (_OF_SB3,)),
    **dict.fromkeys(("buffer_size", "max_size", "size", "memory_size", "replay_size", "maxlen", "max_length"), _SIZE),
    **dict.fromkeys(_SIZE, _SIZE),
    **dict.fromkeys(("num_envs", "n_envs", "buffer_num"), ("streams", "leave it out, any number of environments fits")),
    **dict.fromkeys(("observation_space", "obs_space", "observation_shape", "obs_shape", "obs_dim"), _SCHEMA),
    **dict.fromkeys(("action_space", "act_space", "action_shape", "act_dim", "action_dim", "state_dim"), _SCHEMA),
    "device": (_DEVICE,),
    "batch_size": ("leave it out, sample takes it",),
    **dict.fromkeys(("n_steps", "nstep", "num_steps"), ("n_step", "max_steps")),
    "n_step": (_DISCOUNTS,),
    **dict.fromkeys(("gamma", "discount", "discount_factor"), ("gamma", _DISCOUNTS)),
    **dict.fromkeys(("num_stack", "stack_num", "stack_size"), ("frame_stack",)),
    **dict.fromkeys(("seq_len", "sequence_length", "chunk_length"), ("length",)),
    **dict.fromkeys(("alpha", "prioritized_replay_alpha", "priority_exponent"), ("alpha", _PRIORITIES)),
    **dict.fromkeys(("beta", "prioritized_replay_beta", "importance_exponent"), ("beta", _PRIORITIES)),
    **dict.fromkeys(("prioritized_replay_eps", "eps"), ("epsilon", _PRIORITIES)),
    **dict.fromkeys(("prioritized", "prioritized_replay"), (_PRIORITIES,)),
    **dict.fromkeys(("num_agents", "n_agents"), ("agents",)),
    **dict.fromkeys(("rng", "random_seed"), ("seed",)),
}
"""The arguments of constructors of buffers."""

_ADD = ("add", "append_observation_action_reward", "add_episode", "append")
_START, _END = ("start_episode",), ("end_episode", "end")
_SAMPLE = ("sample", "sample_n_step", "arrays")
METHODS: Table = {
    **dict.fromkeys(("push", "append", "store", "put", "insert", "remember", "add_transition", "add_sample"), _ADD),
    **dict.fromkeys(("add", "add_step", "append_step", "step", "record", "append_observation_action_reward"), _ADD),
    **dict.fromkeys(("append_nowait", "add_nowait"), ("append_observation_action_reward_nowait", *_ADD)),
    **dict.fromkeys(("start", "begin", "begin_episode", "new_episode", "open_episode", "create_episode"), _START),
    **dict.fromkeys(("end", "finish", "finish_episode", "close_episode", "complete_episode"), _END),
    **dict.fromkeys(("end_episode", "done"), ("end",)),
    **dict.fromkeys(("add_episode", "add_trajectory", "append_episode"), ("add_episode", "episode", "add")),
    **dict.fromkeys(("get_episodes", "next_episode", "pop", "pop_episodes", "sample_episodes"), ("next_episodes",)),
    **dict.fromkeys(("sample", "sample_batch", "get_batch", "sample_transitions", "get"), _SAMPLE),
    **dict.fromkeys(("update_priority", "set_priorities", "set_priority"), ("update_priorities",)),
    **dict.fromkeys(("reset", "empty"), ("clear",)),
    "full": ("is_full", "get_stats"),
    "size": ("len(buffer)",),
    **dict.fromkeys(("buffer_size", "max_size", "maxlen"), ("capacity", "get_stats")),
    **dict.fromkeys(("compute_returns_and_advantage", "compute_returns", "finish_path"), ("advantages",)),
}
"""The attributes of buffers."""

NORMALIZATIONS: Mapping[str, str] = {
    **dict.fromkeys(("grpo", "std", "zscore", "z_score"), "mean_std"),
    **dict.fromkeys(("dr_grpo", "drgrpo"), "mean"),
    **dict.fromkeys(("rloo", "loo"), "leave_one_out"),
}
"""The normalizations of `group_advantages`, each of which means one of ours."""


def meant(table: Table, word: str, has: Collection[str]) -> list[str]:
    """Return what another library's word may mean, among the names that there are; empty if nothing."""
    words = table.get(word, ())
    return [each for each in words if each in has] or [each for each in words if not each.isidentifier()]


def refuse_extras(given: Collection[str], declared: Collection[str], table: Table = EXTRAS) -> None:
    """Raise SchemaError if an extra that is not declared has another library's name for an argument."""
    for name in given:
        if name in table and name not in declared:
            raise errors.SchemaError(f"unknown extra {name!r}: say {' or '.join(table[name])}")


def missing_attribute(owner: object, name: str, has: Collection[str], table: Table, most: int) -> AttributeError:
    """Return the error for an attribute that an object does not have, with the `most` first that it may mean."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}{_use(meant(table, name, has)[:most])}"
    return AttributeError(message, name=name, obj=owner)


def _use(words: Sequence[str]) -> str:
    """Return what to use instead, for the end of an error message; empty if there is none."""
    return f": use {' or '.join(words)}" if words else ""


def missing_name(module: str, name: str, has: Collection[str]) -> AttributeError | ImportError:
    """Return the error for a name that a module of ours does not have, called by its `__getattr__`.

    It is an ImportError in `from module import name`: Python drops what an AttributeError says there.
    """
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    is_from = sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"
    if importlib.util.find_spec(f"{module}.{name}") is not None:
        # It is imported next in `from module import name`.
        return AttributeError(f"module {module!r} has no attribute {name!r}: import {module}.{name} first")
    words = meant(NAMES, name, has)
    if not words:
        by_small = {each.lower(): each for each in has}
        words = [by_small[near] for near in difflib.get_close_matches(name.lower(), by_small, 1, 0.85)]
    if is_from and words:
        return ImportError(f"cannot import name {name!r} from {module!r}{_use(words)}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}{_use(words)}")


def no_rows(buffer: object) -> errors.ArgumentTypeError:
    """Return the error for a buffer that is indexed, as a DataLoader indexes its data set."""
    has = dir(type(buffer))
    words = [each for each in _SAMPLE if each in has][:1]
    loader = ", and relive.integrations.torch.data_loader for a DataLoader" if "batches" in has else ""
    return errors.ArgumentTypeError(f"{type(buffer).__name__} is not indexed{_use(words)}{loader}")


def check_arguments(kind: type, values: Sequence[object], named: Collection[str]) -> None:
    """Raise ArgumentTypeError for arguments that a constructor does not take, if there is a word for what is meant.

    Python raises TypeError for others.
    """
    parameters = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    kinds = {each.kind for each in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    for name in (each for each in ARGUMENTS if each in named):
        words = [] if name in parameters else meant(ARGUMENTS, name, parameters)
        if words:
            rule = f"{kind.__name__}() got an unexpected keyword argument {name!r}"
            raise errors.ArgumentTypeError(f"{rule}: {'say ' if words[0].isidentifier() else ''}{words[0]}")
    if len(values) >= len(parameters) - len(_of(parameters, inspect.Parameter.KEYWORD_ONLY)):
        raise too_many(kind.__name__, kind.__init__, len(values))  # type: ignore[misc]


def too_many(name: str, function: Callable[..., Any], count: int) -> errors.ArgumentTypeError:
    """Return the error for `count` positional arguments of a method, which says in Python's words what is given how."""
    parameters = inspect.signature(function).parameters
    by_place = _of(parameters, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_name = " and ".join(f"{each}=" for each in _of(parameters, inspect.Parameter.KEYWORD_ONLY)[:2])
    least, most = sum(parameters[each].default is inspect.Parameter.empty for each in by_place), len(by_place)
    rule = ", and ".join([f"{', '.join(by_place[1:])} by place"] * (most > 1) + [f"{by_name} by name"] * bool(by_name))
    takes = f"{f'from {least} to {most}' if least < most else most} positional argument{'s' if most > 1 else ''}"
    return errors.ArgumentTypeError(
        f"{name} takes {rule}: {function.__qualname__}() takes {takes} but {count + 1} were given"
    )


def _of(parameters: Mapping[str, inspect.Parameter], kind: Any) -> list[str]:
    """Return the names of the parameters of one kind."""
    return [name for name, each in parameters.items() if each.kind is kind]


_COPIES: weakref.WeakKeyDictionary[types.FunctionType, types.FunctionType] = weakref.WeakKeyDictionary()
"""The functions that classes have for methods that they inherit, and those of which they are copies."""


def name_methods(kind: type) -> None:
    """Give a class a copy of each public method that it inherits, since Python's errors name the class of a function.

    A copy that would hide a method of another class from `super()`, where there are several bases, is taken away.
    """
    for name in [name for name in dir(kind) if not name.startswith("_")]:
        member: Any = None
        for base in reversed(kind.__mro__):
            found = vars(base).get(name)
            function = _function_of(found)
            original = None if function is None else _COPIES.get(function)
            if original is None:
                member = member if found is None else found
            elif original is not _function_of(member):
                delattr(base, name)
        function = _function_of(member)
        if function is not None and name not in vars(kind):
            copy = _copied(function, f"{kind.__qualname__}.{name}")
            setattr(kind, name, classmethod(copy) if isinstance(member, classmethod) else copy)


def _function_of(member: object) -> types.FunctionType | None:
    """Return the function of a method of a class or of its instances; None if it is something else."""
    function = member.__func__ if isinstance(member, classmethod) else member
    return function if isinstance(function, types.FunctionType) else None


def _copied(function: types.FunctionType, qualname: str) -> types.FunctionType:
    """Return a copy of a function that has another name in Python's errors."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__doc__, copy.__module__, copy.__qualname__ = function.__doc__, function.__module__, qualname
    vars(copy).update(vars(function))
    _COPIES[copy] = function
    return copy
