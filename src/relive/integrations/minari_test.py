"""Tests of Minari in and out, with the real Minari, its DataCollector and environments."""

import importlib
import json
import os
import pathlib
from typing import Any
import warnings

import numpy as np
import pytest

pytest.importorskip("minari")

import gymnasium
from gymnasium import spaces
import minari
from minari.data_collector import episode_buffer

import relive
from relive import errors
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations import minari as relive_minari
from relive.integrations import stored_episodes

FORMATS = ["hdf5", "arrow", "parquet"]
SCHEMA = relive.Schema(
    {
        "image": relive.Field((32, 32, 3), "uint8"),
        "hand": {"angle": relive.Field((), "float32"), "touch": relive.Field(2, "bool")},
        "half": relive.Field((2, 2), "float16"),
    },
    {"0": relive.Field((), "uint64"), "1": relive.Field(3, "float64")},
    reward=relive.Field((), "float32"),
    extras={
        "logp": relive.Field((), "float64"),
        "policy": {"version": relive.Field((), "int16"), "greedy": relive.Field((), "bool")},
        "hidden": relive.Field((2, 3), "float32"),
        "word": relive.Field((), "<U5"),
    },
)
NANS = {2: 0x7E55, 4: 0x7FC00123, 8: 0x7FF8_0000_DEAD_BEEF}
"""Not the NaN that numpy makes, by bytes."""


@pytest.fixture(autouse=True)
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Where Minari keeps its datasets while a test runs."""
    path = tmp_path / "datasets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path))
    return path


def column(rng: np.random.Generator, length: int, field: relive.Field) -> Any:
    """Return random values [length, ...], among them a NaN of unusual bytes, -0.0, infinity and a subnormal."""
    shape = (length, *field.shape)
    if field.dtype.kind == "U":
        return rng.choice(["", "a", "bé", "three"], shape).astype(field.dtype)
    if field.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(field.dtype)
    if field.dtype.kind in "iu":
        limits = np.iinfo(field.dtype)
        return rng.integers(limits.min, limits.max, shape, field.dtype.newbyteorder("="), endpoint=True).astype(
            field.dtype
        )
    values = rng.normal(size=shape).astype(field.dtype)
    size = field.dtype.itemsize
    odd = np.array([NANS[size], 1 << (8 * size - 1), 1], f"u{size}").view(f"f{size}")
    flat = values.reshape(-1)
    flat[: min(3, len(flat))] = odd[: len(flat)].astype(field.dtype)
    return values


def columns(rng: np.random.Generator, length: int, tree: Any) -> Any:
    """Return the same for a tree of fields."""
    if isinstance(tree, relive.Field):
        return column(rng, length, tree)
    return {key: columns(rng, length, part) for key, part in tree.items()}


def filled(schema: relive.Schema, *lengths: int, streams: int = 1) -> relive.RingReplayBuffer:
    """Return a buffer of random episodes, every other one of which terminates."""
    rng, buffer = np.random.default_rng(0), relive.RingReplayBuffer(100, schema, streams=streams)
    for number, length in enumerate(lengths):
        extras = columns(rng, length, schema.extras)
        buffer.add_episode(
            columns(rng, length + 1, schema.observation),
            columns(rng, length, schema.action),
            np.nan_to_num(columns(rng, length, schema.reward)),
            terminated=number % 2 == 0,
            stream=number % streams,
            **extras,
        )
    return buffer


def exactly(value: Any) -> Any:
    """Return a tree of arrays by dtypes, shapes and bytes."""
    if isinstance(value, dict):
        return {key: exactly(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return tuple(exactly(part) for part in value)
    return value.dtype.str, value.shape, value.tobytes()


def of_buffer(buffer: relive.RingReplayBuffer) -> list[Any]:
    """Return the episodes of a buffer, without the numbers of their rows."""
    return [
        (episode.status, *map(exactly, (episode.observations, episode.actions, episode.rewards, episode.extras)))
        for episode in stored_episodes.stored_episodes(buffer)
    ]


def of_dataset(dataset: Any) -> list[Any]:
    """Return the episodes of a dataset."""
    found = []
    for episode in dataset:
        parts = (episode.observations, episode.actions, episode.rewards, episode.terminations, episode.truncations)
        found.append((*map(exactly, parts), exactly(episode.infos)))
    return found


def through(dataset: Any, dataset_id: str, data_format: Any) -> Any:
    """Return a dataset that went through a buffer."""
    infos = relive_minari.infos_of(dataset)
    buffer = relive.RingReplayBuffer(dataset.total_steps, relive_minari.schema_of(dataset, infos=infos))
    assert relive_minari.add_dataset(buffer, dataset, infos=infos) == dataset.total_steps == len(buffer)
    buffer.check()
    return relive_minari.to_dataset(
        buffer,
        dataset_id,
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        data_format=data_format,
    )


def collected(env: Any, dataset_id: str, data_format: str, episodes: int, record_infos: bool = False) -> Any:
    """Return a dataset that Minari has recorded of random actions; a reset cuts every third episode."""
    env.action_space.seed(0)
    collector = minari.DataCollector(env, data_format=data_format, record_infos=record_infos, jpeg_encoding=False)
    for seed in range(episodes):
        collector.reset(seed=seed)
        for _ in range(7 if seed % 3 == 2 else 1000):
            if any(collector.step(collector.action_space.sample())[2:4]):
                break
    with warnings.catch_warnings(action="ignore"):
        dataset = collector.create_dataset(dataset_id)
    collector.env.close()
    collector._tmp_dir.cleanup()  # Its own close leaves that to the garbage collector, which warns.
    return dataset


class Counting(gymnasium.Env[Any, Any]):
    """Counts steps, in every kind of space, and returns infos."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "box": spaces.Box(-1, 1, (2,), np.float64),
                "pair": spaces.Tuple((spaces.Discrete(100), spaces.MultiBinary(3))),
            }
        )
        self.action_space = spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.Dict({"go": spaces.Box(0, 1, ())})))
        self._steps = 0

    def _answer(self) -> tuple[Any, dict[str, Any]]:
        steps = self._steps
        observation = {
            "box": np.array([steps / 100, -0.0]),
            "pair": (np.int64(steps), np.array([steps % 2, 1, 0], np.int8)),
        }
        return observation, {"speed": float(steps), "place": np.array([steps, 1], np.float32), "won": steps == 5}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._answer()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        observation, info = self._answer()
        return observation, self._steps / 3, self._steps == 5, False, info


# Round trips.


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_minari_round_trip_is_bitwise_equal(data_format: Any) -> None:
    buffer = filled(SCHEMA, 4, 1, 9)
    dataset = relive_minari.to_dataset(buffer, "test/mine-v0", data_format=data_format)
    assert data_format == dataset.storage.FORMAT
    infos = relive_minari.infos_of("test/mine-v0")
    assert infos == {name: name for name in SCHEMA.extras}
    assert relive_minari.schema_of(dataset, infos=infos) == SCHEMA
    back = relive.RingReplayBuffer(14, SCHEMA)
    assert relive_minari.add_dataset(back, "test/mine-v0", infos=infos) == 14
    assert of_buffer(back) == of_buffer(buffer)
    again = through(dataset, "test/again-v0", data_format)
    assert [each[:-1] for each in of_dataset(again)] == [each[:-1] for each in of_dataset(dataset)]


def test_other_byte_orders_are_kept_in_hdf5() -> None:
    field = relive.Field
    schema = relive.Schema({"a": field(2, ">f4"), "b": field((), ">i2")}, field((), ">i8"))
    buffer = filled(schema, 3)
    relive_minari.to_dataset(buffer, "test/mine-v0")
    back = relive.RingReplayBuffer(3, relive_minari.schema_of("test/mine-v0"))
    relive_minari.add_dataset(back, "test/mine-v0")
    assert back.schema == schema
    assert of_buffer(back) == of_buffer(buffer)


@pytest.mark.parametrize(
    ("name", "data_format"),
    [
        ("CartPole-v1", "hdf5"),
        ("CartPole-v1", "parquet"),
        ("Pendulum-v1", "arrow"),
        pytest.param("CartPole-v1", "arrow", marks=pytest.mark.long),
        pytest.param("Pendulum-v1", "hdf5", marks=pytest.mark.long),
        pytest.param("Pendulum-v1", "parquet", marks=pytest.mark.long),
    ],
)
def test_a_recorded_dataset_survives_a_round_trip(name: str, data_format: str) -> None:
    env = gymnasium.make(name, max_episode_steps=40)
    dataset = collected(env, "test/theirs-v0", data_format, 8)
    schema = relive_minari.schema_of(dataset)
    assert schema == relive_gymnasium.from_env(env, reward_dtype="float64")
    buffer = relive.RingReplayBuffer(500, schema)
    relive_minari.add_dataset(buffer, dataset)
    for stored, episode in zip(stored_episodes.stored_episodes(buffer), dataset, strict=True):
        assert np.array_equal(stored.terminated, episode.terminations)
        assert np.array_equal(stored.truncated, episode.truncations)
        assert exactly(stored.observations) == exactly(episode.observations)
    assert of_dataset(through(dataset, "test/mine-v0", data_format)) == of_dataset(dataset)


@pytest.mark.parametrize("data_format", FORMATS)
def test_nested_spaces_and_infos_survive_a_round_trip(data_format: str) -> None:
    dataset = collected(Counting(), "test/theirs-v0", data_format, 3, record_infos=True)
    schema = relive_minari.schema_of(dataset, infos={"velocity": "speed", "place": "place"})
    assert schema.extras == {"velocity": relive.Field((), "float64"), "place": relive.Field(2, "float32")}
    assert set(schema.fields) >= {"observation/pair/0", "observation/pair/1", "action/0", "action/1/go"}
    buffer = relive.RingReplayBuffer(50, schema)
    relive_minari.add_dataset(buffer, dataset, infos={"velocity": "speed", "place": "place"})
    for stored in stored_episodes.stored_episodes(buffer):
        assert stored.extras["velocity"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert stored.observations["pair"]["0"].tolist() == [0, 1, 2, 3, 4, 5]
    again = through(dataset, "test/mine-v0", data_format)
    assert (again.observation_space, again.action_space) == (dataset.observation_space, dataset.action_space)
    assert [episode[:-1] for episode in of_dataset(again)] == [episode[:-1] for episode in of_dataset(dataset)]
    for mine, theirs in zip(again, dataset, strict=True):
        assert mine.infos.keys() == theirs.infos.keys() == {"speed", "place", "won"}
        for key in mine.infos:
            assert exactly(mine.infos[key][1:]) == exactly(theirs.infos[key][1:])
            assert not mine.infos[key][0].any()


class Telling(Counting):
    """Return infos in infos, and text."""

    def _answer(self) -> tuple[Any, dict[str, Any]]:
        observation, _ = super()._answer()
        steps = self._steps
        deep = {"hit": steps == 3, "place": np.full(2, steps, np.float32)}
        return observation, {"state": {"x": steps / 4, "deep": deep}, "word": "abcdeé"[: steps + 1], "count": steps}


@pytest.mark.parametrize("data_format", FORMATS)
def test_every_recorded_info_is_found(data_format: str) -> None:
    dataset = collected(Telling(), "test/theirs-v0", data_format, 2, record_infos=True)
    infos = relive_minari.infos_of(dataset)
    assert infos == {"state": "state", "word": "word", "count": "count"}
    infos |= {"x": "state/x", "hit": "state/deep/hit"}
    field = relive.Field
    schema = relive_minari.schema_of(dataset, infos=infos)
    assert schema.extras == {
        "count": field((), "int64"),
        "hit": field((), "bool"),
        "state": {"deep": {"hit": field((), "bool"), "place": field(2, "float32")}, "x": field((), "float64")},
        "word": field((), "<U6"),
        "x": field((), "float64"),
    }
    buffer = relive.RingReplayBuffer(10, schema)
    assert relive_minari.add_dataset(buffer, dataset, infos=infos) == 10
    for stored in stored_episodes.stored_episodes(buffer):
        extras = stored.extras
        assert extras["x"].tolist() == extras["state"]["x"].tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]
        assert extras["hit"].tolist() == extras["state"]["deep"]["hit"].tolist() == [False, False, True, False, False]
        assert extras["state"]["deep"]["place"].tolist() == [[n, n] for n in range(1, 6)]
        assert extras["word"].tolist() == ["ab", "abc", "abcd", "abcde", "abcdeé"]


def test_text_longer_than_in_the_first_episode_is_not_cut() -> None:
    of_minari([episode(1, infos={"word": ["", "ab"]}), episode(1, infos={"word": ["", "abc"]})])
    infos = relive_minari.infos_of("test/theirs-v0")
    schema = relive_minari.schema_of("test/theirs-v0", infos=infos)
    with pytest.raises(errors.SchemaError, match=r"^episode 1: extras/word must fit <U2, got "):
        relive_minari.add_dataset(relive.RingReplayBuffer(2, schema), "test/theirs-v0", infos=infos)
    wider = relive.Schema(schema.observation, schema.action, extras={"word": relive.Field((), "<U9")})
    buffer = relive.RingReplayBuffer(2, wider)
    assert relive_minari.add_dataset(buffer, "test/theirs-v0", infos=infos) == 2
    assert buffer.read([0, 1]).extras["word"].tolist() == ["ab", "abc"]


@pytest.mark.parametrize(
    ("data_format", "name", "values", "message"),
    [
        ("hdf5", "raw", [b"\xff", b"", b""], r"^extras/raw must be an array of numbers, of text or of dates, got "),
        ("hdf5", "once", np.int64(3), r"^extras/once must have at least 1 leading axes, got shape \(\)$"),
        ("hdf5", "reward", np.zeros(3), r"^an extra must not be named like an argument of add, got 'reward'$"),
        ("arrow", "tree", {"list": [[1], [2, 3], []]}, r"^extras/tree must be an array of numbers, of text or of "),
        ("parquet", "tree", {"some": [1, None, 2.5]}, r"^extras/tree/some must be an array of numbers, of text or of "),
    ],
)
def test_an_info_outside_the_schema_is_left_out(data_format: str, name: str, values: Any, message: str) -> None:
    of_minari([episode(2, infos={name: values, "count": [0, 1, 2]})], data_format)
    assert relive_minari.infos_of("test/theirs-v0") == {"count": "count"}
    with pytest.raises(errors.ArgumentError, match=message):
        relive_minari.schema_of("test/theirs-v0", infos={name: name})
    assert relive_minari.add_dataset(relive.RingReplayBuffer(2), "test/theirs-v0") == 2


@pytest.mark.parametrize("seed", range(3))
def test_streams_become_one_episode_after_another(seed: int) -> None:
    rng, buffer = np.random.default_rng(seed), relive.RingReplayBuffer(30, streams=3)
    for number in range(20):
        length, end = int(rng.integers(1, 6)), int(rng.integers(3))
        seen, stream = 100 * number + np.arange(length + 1), int(rng.integers(3))
        ends = {"terminated": end == 1, "truncated": end == 2}
        buffer.add_steps(seen, -seen[1:], seen[1:] / 2, **ends, stream=stream, place=seen[:-1])
    stored, dataset = list(stored_episodes.stored_episodes(buffer)), relive_minari.to_dataset(buffer, "test/mine-v0")
    for each, written in zip(stored, dataset, strict=True):
        assert written.observations.tolist() == each.observations.tolist()
        assert written.actions.tolist() == each.actions.tolist()
        assert written.rewards.tolist() == each.rewards.tolist()
        assert written.infos["place"].tolist() == [0, *each.extras["place"].tolist()]
        assert written.terminations[-1] == (each.status == "COMPLETED")
        assert written.truncations[-1] == (each.status == "TRUNCATED")


@pytest.mark.parametrize("data_format", FORMATS)
def test_text_outside_a_format_is_an_error_of_one_line(data_format: Any, root: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add_episode([1, 2], [0], [0.5], terminated=True, word=["\ud800"])
    with pytest.raises(errors.ArgumentError, match=r"^dataset 'test/mine-v0' cannot be made: .*surrogates not allowed"):
        relive_minari.to_dataset(buffer, "test/mine-v0", data_format=data_format)
    assert not list(root.glob("**/*-v*"))


# Out of a dataset.


def episode(length: int, **fields: Any) -> Any:
    """Return an episode for Minari, of one Discrete observation and action, that terminates."""
    flags = np.arange(length) == length - 1
    given = {
        "observations": np.arange(length + 1),
        "actions": np.arange(length),
        "rewards": np.arange(length) / 2,
        "terminations": flags,
        "truncations": np.zeros(length, np.bool_),
    }
    return episode_buffer.EpisodeBuffer(**(given | fields))


def of_minari(episodes: list[Any], data_format: str = "hdf5", space: Any = None) -> Any:
    """Return a dataset of those episodes."""
    discrete = spaces.Discrete(100_000)
    with warnings.catch_warnings(action="ignore"):
        return minari.create_dataset_from_buffers(
            "test/theirs-v0",
            episodes,
            observation_space=space or discrete,
            action_space=discrete,
            data_format=data_format,
        )


@pytest.mark.parametrize(
    ("terminated", "truncated", "status"),
    [(True, True, "COMPLETED"), (True, False, "COMPLETED"), (False, True, "TRUNCATED"), (False, False, "TRUNCATED")],
)
def test_only_terminated_ends_are_terminal(terminated: bool, truncated: bool, status: str) -> None:
    last = np.array([False, True])
    of_minari([episode(2, terminations=last & terminated, truncations=last & truncated)])
    buffer = relive.RingReplayBuffer(2)
    relive_minari.add_dataset(buffer, "test/theirs-v0")
    (stored,) = stored_episodes.stored_episodes(buffer)
    assert (stored.status, stored.observations.tolist()) == (status, [0, 1, 2])


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_part_of_a_dataset_can_be_added(data_format: str) -> None:
    dataset = of_minari([episode(2), episode(3), episode(4)], data_format)
    buffer = relive.RingReplayBuffer(7)
    heard: list[tuple[int, int]] = []
    part = dataset.filter_episodes(lambda found: len(found) != 3)
    assert relive_minari.add_dataset(buffer, part, progress=lambda *sizes: heard.append(sizes)) == 6
    assert [len(stored) for stored in stored_episodes.stored_episodes(buffer)] == [2, 4]
    assert heard == [(48, 144), (144, 144)]
    assert relive_minari.add_dataset(buffer, dataset.filter_episodes(lambda _: False)) == 0


def test_a_dataset_without_episodes_has_the_schema_of_its_spaces() -> None:
    dataset = of_minari([])
    assert relive_minari.schema_of(dataset) == relive.Schema(*[relive.Field((), int)] * 2)
    assert relive_minari.infos_of(dataset) == {}


def test_a_schema_has_the_dtypes_of_the_recording() -> None:
    of_minari([episode(2, observations=np.arange(3.0), rewards=np.zeros(2, np.float16))])
    fields = relive_minari.schema_of("test/theirs-v0").fields
    assert [fields[name].dtype for name in ("observation", "action", "reward")] == [np.float64, np.int64, np.float16]


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_an_episode_that_minari_reads_in_pieces_is_refused(data_format: str) -> None:
    of_minari([episode(32_768)], data_format)
    with pytest.raises(errors.ArgumentError, match=r"^dataset .* must have 32768 steps to read, got 32767$"):
        relive_minari.add_dataset(relive.RingReplayBuffer(40_000), "test/theirs-v0")


@pytest.mark.parametrize("name", ["terminations", "truncations"])
def test_an_episode_ends_once(name: str) -> None:
    of_minari([episode(3), episode(3, **{name: np.array([False, True, False])})])
    with pytest.raises(errors.ArgumentError, match="^episode 1 must end at its last step alone, got an end at row 1$"):
        relive_minari.add_dataset(relive.RingReplayBuffer(9), "test/theirs-v0")


def test_a_reward_that_is_not_finite_is_named() -> None:
    of_minari([episode(2), episode(2, rewards=np.array([0.0, np.nan]))])
    with pytest.raises(errors.ArgumentError, match=r"^episode 1: reward must be finite, got nan at \[1\]$"):
        relive_minari.add_dataset(relive.RingReplayBuffer(9), "test/theirs-v0")


def test_data_that_do_not_fit_the_schema_are_named() -> None:
    of_minari([episode(2, infos={"n": np.arange(3)}), episode(2, infos={"n": np.arange(3) + 0.5})])
    buffer = relive.RingReplayBuffer(9, relive_minari.schema_of("test/theirs-v0", infos={"m": "n"}))
    with pytest.raises(errors.SchemaError, match=r"^episode 0: extra 'm' is missing: the schema has extra 'm'$"):
        relive_minari.add_dataset(buffer, "test/theirs-v0")
    with pytest.raises(errors.SchemaError, match=r"^episode 1: extras/m must fit int64, got 1\.5: cast it yourself"):
        relive_minari.add_dataset(buffer, "test/theirs-v0", infos={"m": "n"})
    assert len(buffer) == 2
    with pytest.raises(errors.ArgumentError, match=r"^info must hold 'x' for the extra 'm', got \['n'\]$"):
        relive_minari.add_dataset(buffer, "test/theirs-v0", infos={"m": "x"})
    with pytest.raises(errors.ArgumentError, match=r"^info must hold 'x' for the extra 'm', got \[\]$"):
        relive_minari.schema_of("test/theirs-v0", infos={"m": "n/x"})
    with pytest.raises(errors.ArgumentTypeError, match=r"^infos must be keys of the info by extra, got \['n'\]$"):
        wrong: Any = ["n"]
        relive_minari.add_dataset(buffer, "test/theirs-v0", infos=wrong)
    short = relive.RingReplayBuffer(3)
    with pytest.raises(errors.ArgumentError, match=r"^dataset must have at most capacity = 3 steps, got 4$"):
        relive_minari.add_dataset(short, "test/theirs-v0")


def test_other_spaces_are_refused_by_name() -> None:
    of_minari([episode(1, observations=["a", "b"])], space=spaces.Text(3))
    with pytest.raises(errors.ArgumentError, match=r"^observation_space must be made of Box, .* got Text$"):
        relive_minari.schema_of("test/theirs-v0")


@pytest.mark.parametrize("data_format", FORMATS)
def test_fields_leave_out_what_a_schema_cannot_hold(data_format: str) -> None:
    space = spaces.Dict(x=spaces.Box(0, 9), seen=spaces.Tuple((spaces.Discrete(9), spaces.Text(3))))
    numbers = np.arange(3, dtype=np.float32)[:, np.newaxis]
    observations = {"x": numbers, "seen": (np.arange(3), ["a", "b", "c"])}
    dataset = of_minari([episode(2, observations=observations)], data_format, space)
    rule = r"^observation_space/seen/1 must be made of Box, .* got Text: fields= leaves it out$"
    with pytest.raises(errors.ArgumentError, match=rule):
        relive_minari.schema_of(dataset)
    for fields, paths in (
        (["reward", "action", "observation/x"], ["observation/x"]),
        (("observation/seen/0", "action", "observation/x"), ["observation/seen/0", "observation/x"]),
        ({"observation/seen/0", "action"}, ["observation/seen/0"]),
    ):
        schema = relive_minari.schema_of(dataset, fields=fields)
        assert list(schema.fields) == [*paths, "action", "reward"]
        buffer = relive.RingReplayBuffer(9, schema)
        assert relive_minari.add_dataset(buffer, dataset, fields=fields) == 2
        observation = buffer.read([1]).next_observation
        assert "x" not in observation or observation["x"].tolist() == [[2.0]]
        assert "seen" not in observation or observation["seen"]["0"].tolist() == [2]
    for wrong, rule in (
        (["observation/x"], r"^fields must hold action or a part of it, got \['observation/x'\]$"),
        (["action", "x"], "^fields must be among observation, observation/x, .*, action, got 'x'$"),
        ("action", "^fields must be a collection of paths, got 'action'$"),
    ):
        with pytest.raises(errors.ArgumentError, match=rule):
            relive_minari.add_dataset(relive.RingReplayBuffer(9), dataset, fields=wrong)


def test_a_missing_dataset_is_named(root: pathlib.Path) -> None:
    with pytest.raises(errors.ArgumentError, match=r"^dataset 'no/such-v0' not found: `minari download no/such-v0`"):
        relive_minari.schema_of("no/such-v0")
    (root / "test" / "empty-v0" / "data").mkdir(parents=True)
    with pytest.raises(errors.ArgumentError, match=r"^dataset 'test/empty-v0' cannot be read: No data found in"):
        relive_minari.schema_of("test/empty-v0")
    wrong: Any = 3
    with pytest.raises(errors.ArgumentTypeError, match=r"^dataset must be a MinariDataset or the id of one, got 3$"):
        relive_minari.schema_of(wrong)
    with pytest.raises(errors.ArgumentTypeError, match=r"^buffer must be an instance of ColumnReplayBuffer, got 3$"):
        relive_minari.add_dataset(wrong, "no/such-v0")
    with pytest.raises(errors.ArgumentTypeError, match=r"^progress must be callable or None, got 3$"):
        relive_minari.add_dataset(relive.RingReplayBuffer(3), "no/such-v0", progress=wrong)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("damaged", ["cut", "without an episode"])
def test_a_damaged_dataset_is_named(damaged: str, data_format: str, root: pathlib.Path) -> None:
    dataset = of_minari([episode(2), episode(3)], data_format)
    (data,) = root.glob("**/data")
    files = [file for file in data.rglob("*") if file.suffix in (".hdf5", ".arrow", ".parquet")]
    for file in files:
        if damaged == "cut":
            os.truncate(file, 100)
        elif data_format == "hdf5":
            with importlib.import_module("h5py").File(file, "a") as inside:
                del inside["episode_0"]
        else:
            file.unlink()
    calls: list[Any] = [relive_minari.infos_of, relive_minari.schema_of]
    calls.append(lambda found: relive_minari.add_dataset(relive.RingReplayBuffer(9), found))
    for call in calls:
        for given in (dataset, "test/theirs-v0"):
            with pytest.raises(
                errors.ArgumentError, match=r"^dataset 'test/theirs-v0' (cannot be read: |must have)"
            ) as caught:
                call(given)
            assert "\n" not in str(caught.value)


def test_an_error_without_a_message_is_named_by_its_class(root: pathlib.Path) -> None:
    of_minari([episode(2)])
    (file,) = root.glob("**/data/metadata.json")
    facts = json.loads(file.read_text()) | {"observation_space": 3}
    file.write_text(json.dumps(facts))
    with pytest.raises(errors.ArgumentError, match=r"^dataset 'test/theirs-v0' cannot be read: AssertionError$"):
        relive_minari.infos_of("test/theirs-v0")


# Into a dataset.


def test_spaces_are_made_of_the_schema() -> None:
    dataset = relive_minari.to_dataset(filled(SCHEMA, 2), "test/mine-v0")
    box = spaces.Box
    assert dataset.observation_space == spaces.Dict(
        {
            "hand": spaces.Dict(
                angle=box(-np.inf, np.inf, (), np.float32),
                touch=box(np.zeros(2, np.bool_), np.ones(2, np.bool_), (2,), np.bool_),
            ),
            "half": box(-np.inf, np.inf, (2, 2), np.float16),
            "image": box(0, 255, (32, 32, 3), np.uint8),
        }
    )
    assert dataset.action_space == spaces.Dict(
        {"0": box(0, 2**64 - 1, (), np.uint64), "1": box(-np.inf, np.inf, (3,), np.float64)}
    )
    with pytest.raises(ValueError, match="env_spec is None"):
        dataset.recover_environment()


@pytest.mark.parametrize("how", ["environment", "spec", "id"])
def test_an_environment_is_recovered(how: str) -> None:
    env = gymnasium.make("CartPole-v1")
    buffer = relive.RingReplayBuffer(9, relive_gymnasium.from_env(env))
    buffer.add_episode(np.zeros((3, 4), np.float32), [0, 1], [1.0, 1.0], terminated=True)
    given: Any = {"environment": env, "spec": env.spec, "id": "CartPole-v1"}[how]
    other = gymnasium.make("Pendulum-v1")
    evaluated: Any = {"environment": other, "spec": other.spec, "id": "Pendulum-v1"}[how]
    dataset = relive_minari.to_dataset(
        buffer, "test/mine-v0", env=given, author="me", author_email=None, eval_env=evaluated
    )
    assert (dataset.observation_space, dataset.action_space) == (env.observation_space, env.action_space)
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    assert dataset.recover_environment(eval_env=True).spec.id == "Pendulum-v1"
    assert dataset.storage.metadata["author"] == {"me"}
    one = spaces.Discrete(7)
    dataset = relive_minari.to_dataset(buffer, "test/mine-v1", env=given, action_space=one)
    assert (dataset.observation_space, dataset.action_space) == (env.observation_space, one)


def open_one(**step: Any) -> relive.RingReplayBuffer:
    """Return a buffer with an episode of two steps in stream 1, and the first step of another one in stream 0."""
    buffer = relive.RingReplayBuffer(9, streams=2)
    buffer.add_episode([1, 2, 3], [0, 1], [0.5, 1.0], terminated=True, stream=1)
    buffer.add(4, 0, 2.0, stream=0, **step)
    return buffer


def test_an_open_episode_has_no_end() -> None:
    dataset = relive_minari.to_dataset(open_one(next_observation=5), "test/mine-v0")
    written = dataset[1]
    assert (written.observations.tolist(), written.rewards.tolist()) == ([4, 5], [2.0])
    assert (written.terminations.tolist(), written.truncations.tolist()) == ([False], [False])


def test_an_unknown_observation_is_not_invented(root: pathlib.Path) -> None:
    message = (
        r"^to_dataset needs the observation after the newest step of every episode, and that of key 2 is not known: "
        r"add steps with next_observation$"
    )
    for step in ({}, {"terminated": True}):
        with pytest.raises(errors.ArgumentError, match=message):
            relive_minari.to_dataset(open_one(**step), "test/mine-v0")
    assert not list(root.glob("**/*-v*"))


def test_progress_counts_bytes() -> None:
    heard: list[tuple[int, int]] = []
    buffer = open_one(next_observation=5)
    relive_minari.to_dataset(buffer, "test/mine-v0", progress=lambda *sizes: heard.append(sizes))
    assert heard == [(48, 72), (72, 72)]


def test_an_incomplete_dataset_is_deleted(root: pathlib.Path) -> None:
    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    buffer = open_one(next_observation=5)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            relive_minari.to_dataset(buffer, "test/mine-v0", progress=stop)
        assert not list(root.glob("**/*-v*"))


def test_a_dataset_is_not_overwritten() -> None:
    buffer = open_one(next_observation=5)
    relive_minari.to_dataset(buffer, "test/mine-v0")
    with pytest.raises(errors.ArgumentError, match=r"^dataset_id must be a new one, got 'test/mine-v0'$"):
        relive_minari.to_dataset(buffer, "test/mine-v0")
    assert len(minari.load_dataset("test/mine-v0")) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataset_id": "mine"}, r"^dataset_id must be like 'namespace/name-v0', .* got 'mine'$"),
        ({"dataset_id": "../mine-v0"}, r"^dataset_id must be like 'namespace/name-v0', .* got '../mine-v0'$"),
        ({"dataset_id": 3}, r"^dataset_id must be like 'namespace/name-v0', .* got 3$"),
        (
            {"dataset_id": "x/mine-v0"},
            r"^dataset_id must be like 'namespace/name-v0', with a namespace of at least two letters, digits, - and _, "
            r"got 'x/mine-v0'$",
        ),
        ({"data_format": "csv"}, r"^data_format must be 'hdf5' or 'arrow' or 'parquet', got 'csv'$"),
        ({"nobody": 3}, r"^dataset 'test/mine-v0' cannot be made: .* got an unexpected keyword argument 'nobody'$"),
        ({"jpeg_encoding": True}, r"^dataset 'test/mine-v0' cannot be made: .* multiple values for .*'jpeg_encoding'$"),
        ({"author": 3}, r"^dataset 'test/mine-v0' cannot be made: AssertionError$"),
        ({"eval_env": "nope-v0"}, r"^dataset 'test/mine-v0' cannot be made: Environment `nope` doesn't exist"),
        ({"env": 3}, r"^dataset 'test/mine-v0' cannot be made: Unsupported env type$"),
        ({"env": "NoSuch-v0"}, r"^dataset 'test/mine-v0' cannot be made: Environment `NoSuch` doesn't exist\.?$"),
        (
            {"env": "CartPole-v1"},
            r"^observation_space must be of Field\(\(\), 'int64'\), as what is stored, got Field\(\(4,\), 'float32'\)$",
        ),
        (
            {"action_space": spaces.Tuple((spaces.Discrete(2),))},
            r"^action_space must be of Field\(\(\), 'int64'\), as what is stored, got none$",
        ),
        ({"action_space": spaces.Text(3)}, r"^action_space must be made of Box, .* got Text$"),
        ({"buffer": 3}, r"^buffer must be an instance of ColumnReplayBuffer, got 3$"),
        ({"progress": 3}, r"^progress must be callable or None, got 3$"),
    ],
)
def test_wrong_arguments_leave_nothing_behind(changed: dict[str, Any], message: str, root: pathlib.Path) -> None:
    arguments: Any = {"buffer": open_one(next_observation=5), "dataset_id": "test/mine-v0"} | changed
    with pytest.raises(errors.ArgumentError, match=message):
        relive_minari.to_dataset(arguments.pop("buffer"), arguments.pop("dataset_id"), **arguments)
    assert not list(root.glob("**/*-v*"))


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_dataset_needs_at_least_one_step(schema: relive.Schema | None) -> None:
    with pytest.raises(errors.NotReadyError, match=r"^to_dataset has nothing to write: add steps first$"):
        relive_minari.to_dataset(relive.RingReplayBuffer(3, schema), "test/mine-v0")


@pytest.mark.parametrize(
    ("dtype", "shape", "data_format", "message"),
    [
        ("complex64", (), "hdf5", "^action must be of bools, integers or floats for a space, got complex64$"),
        (np.longdouble, (), "hdf5", "cannot be made: .*(longdouble|float128)"),
        (">f4", (), "arrow", "^dataset 'test/mine-v0' cannot be made: Byte-swapped arrays not supported$"),
    ],
)
def test_fields_that_minari_cannot_store_are_refused(dtype: Any, shape: Any, data_format: Any, message: str) -> None:
    buffer = relive.RingReplayBuffer(3, relive.Schema(relive.Field((), int), relive.Field(shape, dtype)))
    buffer.add_episode([1, 2], np.zeros((1, *shape), dtype), [0.0], terminated=True)
    with pytest.raises(errors.ArgumentError, match=message):
        relive_minari.to_dataset(buffer, "test/mine-v0", data_format=data_format)


def test_an_episode_in_hdf5_may_have_any_length() -> None:
    buffer = relive.RingReplayBuffer(40_000)
    buffer.add_episode(np.arange(40_001), np.arange(40_000), np.zeros(40_000), terminated=True)
    assert of_dataset(relive_minari.to_dataset(buffer, "test/mine-v0"))[0][2][1] == (40_000,)


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_an_episode_longer_than_minari_reads_is_refused(data_format: Any) -> None:
    for length in (32_768, 32_767):
        buffer = relive.RingReplayBuffer(40_000)
        buffer.add_episode(np.arange(length + 1), np.arange(length), np.zeros(length), terminated=True)
        if length == 32_768:
            with pytest.raises(
                errors.ArgumentError, match=r"^episodes must have at most 32767 steps for .* got 32768: "
            ):
                relive_minari.to_dataset(buffer, "test/mine-v0", data_format=data_format)
    relive_minari.to_dataset(buffer, "test/mine-v0", data_format=data_format)
    back = relive.RingReplayBuffer(40_000)
    assert relive_minari.add_dataset(back, "test/mine-v0") == 32_767
    assert of_buffer(back) == of_buffer(buffer)
