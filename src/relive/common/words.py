"""Words of other libraries, and what they are called here, for errors.

Each table gives, for a word, the words of relive that it may mean. An object has some of them; what is more than a
name holds for the others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import inspect
from typing import Any, TypeAlias

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

_SIZE = ("capacity", "max_transitions", "max_tokens", "max_steps")
_SCHEMA = ("schema", "schemas", "leave it out, the first step tells")
_DEVICE = "leave it out, relive.integrations.torch.as_tensors makes tensors of a batch and batch.to(device) moves them"
ARGUMENTS: Table = {
    **dict.fromkeys(("buffer_size", "max_size", "size", "memory_size", "replay_size", "maxlen", "max_length"), _SIZE),
    **dict.fromkeys(("num_envs", "n_envs", "buffer_num"), ("streams", "leave it out, any number of environments fits")),
    **dict.fromkeys(("observation_space", "obs_space", "observation_shape", "obs_shape", "obs_dim"), _SCHEMA),
    **dict.fromkeys(("action_space", "act_space", "action_shape", "act_dim", "action_dim", "state_dim"), _SCHEMA),
    "device": (_DEVICE,),
    "batch_size": ("leave it out, sample takes it",),
    **dict.fromkeys(("n_steps", "nstep", "num_steps"), ("n_step", "max_steps")),
    **dict.fromkeys(("discount", "discount_factor"), ("gamma",)),
    **dict.fromkeys(("num_stack", "stack_num", "stack_size"), ("frame_stack",)),
    **dict.fromkeys(("seq_len", "sequence_length", "chunk_length"), ("length",)),
    **dict.fromkeys(("prioritized_replay_alpha", "priority_exponent"), ("alpha",)),
    **dict.fromkeys(("prioritized_replay_beta", "importance_exponent"), ("beta",)),
    **dict.fromkeys(("prioritized_replay_eps", "eps"), ("epsilon",)),
    **dict.fromkeys(("rng", "random_seed"), ("seed",)),
}
"""The arguments of constructors of buffers."""

_ADD = ("add", "append_observation_action_reward", "add_episode")
METHODS: Table = {
    **dict.fromkeys(("push", "append", "store", "put", "insert", "remember", "add_transition", "add_sample"), _ADD),
    **dict.fromkeys(("sample_batch", "get_batch", "sample_transitions", "get"), ("sample", "sample_n_step", "arrays")),
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


def missing_attribute(owner: object, name: str, has: Collection[str], table: Table, most: int) -> AttributeError:
    """Return the error for an attribute that an object does not have, with the `most` first that it may mean."""
    words = meant(table, name, has)[:most]
    remedy = f": use {' or '.join(words)}" if words else ""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}{remedy}"
    return AttributeError(message, name=name, obj=owner)


def check_arguments(kind: type, values: Sequence[object], named: Collection[str]) -> None:
    """Raise ArgumentTypeError for arguments that a constructor does not take, if there is a word for what is meant.

    Python raises TypeError for others.
    """
    parameters = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    kinds = {each.kind for each in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    for name in named:
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
