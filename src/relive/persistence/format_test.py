"""The files follow docs/format.md and the pages beside it: a reader written from these, without relive's own code."""

import itertools
import json
import pathlib
import random
import shutil
import struct
from typing import Any, TypeAlias, get_args
import zipfile
import zlib

import numpy as np
import pytest

import relive
from relive.buffers import item_cuts
from relive.persistence import codec_test
from relive.testing import zoo

State: TypeAlias = dict[str, Any]
Record: TypeAlias = tuple[int, int, bytes]

# plain-1.


def value_of(content: bytes) -> Any:
    """Read one value, and nothing behind it."""
    value, end = value_at(content, 0)
    assert end == len(content)
    return value


def size_at(content: bytes, place: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte = content[place]
        size |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return size, place


def value_at(content: bytes, place: int) -> tuple[Any, int]:
    tag, place = chr(content[place]), place + 1
    if tag in "NTF":
        return {"N": None, "T": True, "F": False}[tag], place
    if tag == "f":
        return struct.unpack_from("<d", content, place)[0], place + 8
    if tag == "c":
        return complex(*struct.unpack_from("<dd", content, place)), place + 16
    if tag in "rR":
        dtype = np.dtype({"b": "<i1", "h": "<i2", "i": "<i4", "q": "<i8", "d": "<f8"}[chr(content[place])])
        size, place = size_at(content, place + 1)
        numbers = np.frombuffer(content, dtype, size, place).tolist()
        return numbers if tag == "r" else tuple(numbers), place + size * dtype.itemsize
    size, place = size_at(content, place)
    if tag in "isy":
        part = content[place : place + size]
        if tag == "i":
            return int.from_bytes(part, "little", signed=True), place + size
        if tag == "s":
            return part.decode("utf-8", "surrogatepass"), place + size
        return part, place + size
    if tag in "ag":
        descr, shape = json.loads(content[place : place + size])
        place += size
        dtype = dtype_of(descr)
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(content, dtype, count, place).reshape(shape)
        return array[()] if tag == "g" else array, place + array.nbytes
    values = []
    for _ in range(2 * size if tag == "d" else size):
        value, place = value_at(content, place)
        values.append(value)
    if tag == "d":
        return dict(zip(values[::2], values[1::2], strict=True)), place
    return {"l": list, "t": tuple, "e": set, "E": frozenset}[tag](values), place


def dtype_of(descr: Any) -> np.dtype[Any]:
    if isinstance(descr, str):
        return np.dtype(descr)
    return np.dtype([(name, dtype_of(part), *map(tuple, shape)) for name, part, *shape in descr])


# Checkpoints and memory maps.


def unsealed(raw: bytes, begin: bytes) -> State:
    """Read a JSON file that ends with the CRC-32 of what comes before."""
    assert raw.startswith(b"{\n " + begin)
    comma = raw.rindex(b",\n")
    assert raw[comma:] == b',\n "crc32": %d\n}\n' % zlib.crc32(raw[:comma])
    state: State = json.loads(raw)
    return state


def file_of(name: str) -> str:
    """Return the name of the file of an array."""
    text = ""
    for byte in name.encode():
        character = chr(byte)
        stays = byte < 128 and (character.isalnum() or character in "_-")
        text += character if stays else "." if character == "/" else f"%{byte:02x}"
    if len(text) > 100 or any(character.isupper() for character in text):
        text = f"{text[:100]}~{zlib.crc32(name.encode()):08x}"
    return f"{text}.npy"


def checkpoint_at(path: pathlib.Path) -> State:
    """Read a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        infos, raw = archive.infolist(), archive.read("manifest.json")
    assert {(info.compress_type, info.flag_bits, info.comment, info.extra) for info in infos} == {(0, 0, b"", b"")}
    assert infos[0].header_offset == 0
    for one, other in itertools.pairwise(infos):
        assert other.header_offset == one.header_offset + 30 + len(one.filename) + one.file_size
    assert raw.startswith(b'{\n "format": "relive checkpoint",\n "version": 2,\n "relive": ')
    state: State = json.loads(raw)
    assert raw.count(b"\n") == len(state) + 2
    assert [info.filename for info in infos] == ["manifest.json", *map(file_of, state["arrays"])]
    with np.load(path, allow_pickle=False) as members:
        for name, entry in state["arrays"].items():
            assert sorted(entry) == ["dtype", "file", "shape"]
            array = members[entry["file"]]
            assert (entry["file"], array.dtype, list(array.shape)) == (
                file_of(name),
                dtype_of(entry["dtype"]),
                entry["shape"],
            )
            state["arrays"][name] = array
    return state


def rewritten(path: pathlib.Path, state: State) -> None:
    """Write a checkpoint, with zipfile and numpy alone."""
    arrays, lines = {}, []
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in state["arrays"].items():
            arrays[name] = {"file": file_of(name), "dtype": descr_of(array.dtype), "shape": list(array.shape)}
        for name, value in {**state, "arrays": arrays}.items():
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
        archive.writestr("manifest.json", "{\n" + ",\n".join(lines) + "\n}\n")
        for name, array in state["arrays"].items():
            with archive.open(file_of(name), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array).reshape(array.shape), version=(1, 0))


def descr_of(dtype: np.dtype[Any]) -> Any:
    return json.loads(json.dumps(np.lib.format.dtype_to_descr(dtype)))


@pytest.mark.parametrize("name", ["ring", "episodes in groups", "tokens", "joint"])
def test_a_checkpoint_written_without_relive_is_loaded(name: str, tmp_path: pathlib.Path) -> None:
    buffer = zoo.worked(zoo.KINDS[name].make, 3, 60)
    buffer.save(tmp_path / "own")
    rewritten(tmp_path / "other", checkpoint_at(tmp_path / "own"))
    zoo.assert_same(buffer, relive.load(tmp_path / "other"))


def bytes_of(column: Any, row: int) -> bytes:
    """Return the bytes of a row as the file has them: a scalar would come in the machine's order."""
    answer: bytes = column[row : row + 1].tobytes()
    return answer


# Journals.


def records_at(path: pathlib.Path) -> list[Record]:
    """Read the records of a journal: number, kind and payload."""
    records: list[Record] = []
    salts: set[int] = set()
    marks = [int(each.name[8:28]) for each in path.iterdir() if each.name.endswith(".relive.oldest")]
    oldest = f"segment-{max(marks, default=0):020}.relive"
    segments = sorted(each for each in path.iterdir() if each.name.endswith(".relive") and each.name >= oldest)
    assert segments[0].name == oldest
    for segment in segments:
        content = segment.read_bytes()
        magic, first, salt, seed = struct.unpack_from("<17sQQI", content)
        assert (magic, zlib.crc32(content[:33])) == (b"relive journal 1\n", seed)
        salts.add(salt)
        assert segment.name == f"segment-{first:020}.relive"
        assert first == (records[-1][0] + 1 if records else first)
        place = 37
        while place + 17 <= len(content):
            length, kind, number, crc32 = struct.unpack_from("<IBQI", content, place)
            payload = content[place + 17 : place + 17 + length]
            if len(payload) < length or zlib.crc32(payload, zlib.crc32(content[place : place + 13], seed)) != crc32:
                break
            assert number == (records[-1][0] + 1 if records else first)
            assert (kind == 0) == (number == first)
            records.append((number, kind, payload))
            place += 17 + length
        assert segment == segments[-1] or place == len(content)
    assert len(salts) == 1
    closed = [int(each.name[8:28]) for each in path.iterdir() if each.name.endswith(".relive.closed")]
    assert len(closed) <= 1
    assert max(closed, default=0) <= records[-1][0] + 1
    return records


class Columns:
    """The rows of a buffer of columns."""

    def __init__(self, state: State) -> None:
        self.state, arrays = state, state["arrays"]
        self.capacity, self.streams = state["settings"]["capacity"], state["settings"]["streams"]
        self.next_key = state["next_key"]
        self.set_schema(state["settings"]["schema"])
        numbers, names = arrays["row_episode"].tolist(), ("stream", "length", "end", "has_tail")
        self.episodes = [
            dict(zip(names, values, strict=True))
            for values in zip(*(arrays[f"episode_{name}"].tolist() for name in names), strict=True)
        ]
        tails = 0
        for episode in self.episodes:
            episode["tail"] = None
            if episode["has_tail"]:
                episode["tail"] = {path: bytes_of(arrays[f"final/{path}"], tails) for path in self.observation}
                tails += 1
        self.rows: list[dict[str, Any]] = []
        for row, number in enumerate(numbers):
            episode, alive = self.episodes[number], numbers.count(number)
            self.rows.append(
                {
                    "key": self.next_key - len(numbers) + row,
                    "episode": episode,
                    "step": episode["length"] - alive + numbers[:row].count(number),
                    "fields": {path: bytes_of(arrays[f"rows/{path}"], row) for path in self.fields},
                    "barred": bool(arrays["barred"][row]),
                }
            )

    def set_schema(self, schema: Any) -> None:
        self.fields = {path: (dtype_of(descr), shape) for path, descr, shape in schema or ()}
        self.observation = [path for path in self.fields if path.split("/")[0] == "observation"]

    def size(self, path: str) -> int:
        dtype, shape = self.fields[path]
        return int(dtype.itemsize * np.prod(shape, dtype=np.int64))

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record."""
        place = 0

        def take(form: str) -> tuple[Any, ...]:
            nonlocal place
            numbers = struct.unpack_from("<" + form, payload, place)
            place += struct.calcsize("<" + form)
            return numbers

        def columns(paths: list[str], count: int) -> list[dict[str, bytes]]:
            rows: list[dict[str, bytes]] = [{} for _ in range(count)]
            for path in paths:
                for row in rows:
                    (row[path],) = take(f"{self.size(path)}s")
            return rows

        if kind == 1:
            count, flags = take("IB")
            is_run, has_next = bool(flags & 1), bool(flags & 2)
            streams = take("I") * count if is_run else take(f"{count}I")
            events = take(f"{count}B")
            rows = columns(list(self.fields), count)
            if is_run:
                following: Any = [*rows[1:], columns(self.observation, 1)[0] if has_next else None]
            else:
                following = columns(self.observation, count) if has_next else [None] * count
            for stream, event, row, then in zip(streams, events, rows, following, strict=True):
                if event & 4:
                    self.end(stream, 2)
                seen = None if then is None else {path: then[path] for path in self.observation}
                self.add(stream, row, seen, bool(event & 1), bool(event & 2))
        elif kind == 2:
            (length,) = take("I")
            self.set_schema(value_of(payload[place : place + length]))
            self.apply(1, payload[place + length :])
            place = len(payload)
        elif kind == 3:
            take("q")
            self.rows, self.episodes = [], []
        elif kind == 5:
            (stream,) = take("I")
            self.end(stream, 2)
        else:
            assert kind == 4
            (is_eligible,) = take("?")
            keys = take(f"{(len(payload) - 1) // 8}q")
            for stored in self.rows:
                if stored["key"] in keys:
                    stored["barred"] = not is_eligible
        assert place == len(payload)

    def open_in(self, stream: int) -> dict[str, Any] | None:
        for episode in self.episodes:
            if episode["stream"] == stream and episode["end"] == 0:
                return episode
        return None

    def end(self, stream: int, how: int) -> None:
        episode = self.open_in(stream)
        if episode is not None:
            episode["end"] = how

    def add(self, stream: int, row: dict[str, bytes], following: Any, terminated: bool, truncated: bool) -> None:
        episode = self.open_in(stream)
        if episode is not None and episode["tail"] not in (None, {path: row[path] for path in self.observation}):
            self.end(stream, 2)
            episode = None
        if episode is None:
            episode = {"stream": stream, "length": 0, "end": 0}
            self.episodes.append(episode)
        step = episode["length"]
        self.rows.append({"key": self.next_key, "episode": episode, "step": step, "fields": row, "barred": False})
        self.next_key += 1
        del self.rows[: -self.capacity]
        episode["tail"], episode["length"] = following, step + 1
        if terminated or truncated:
            self.end(stream, 1 if terminated else 2)

    def steps(self) -> list[dict[str, Any]]:
        """Return all that can be read of each step, by its key."""
        steps = []
        for place, row in enumerate(self.rows):
            episode = row["episode"]
            later = [other for other in self.rows[place + 1 :] if other["episode"] is episode]
            following = episode["tail"]
            if later:
                following = {path: later[0]["fields"][path] for path in self.observation}
            steps.append(
                {
                    **{name: row[name] for name in ("key", "step", "fields", "barred")},
                    "stream": episode["stream"],
                    "terminated": not later and episode["end"] == 1,
                    "truncated": not later and episode["end"] == 2,
                    "following": following,
                }
            )
        return steps


class Episodes:
    """What a buffer of episodes holds."""

    def __init__(self, state: State) -> None:
        self.state, arrays = state, state["arrays"]
        assert state["codec"] == "plain-1"

        def values(name: str, end: str) -> Any:
            ends = arrays[end].tolist()
            content = arrays[name].tobytes()
            return iter([value_of(content[i:j]) for i, j in zip([0, *ends][:-1], ends, strict=True)])

        observations, actions = values("observations", "observation_end"), values("actions", "action_end")
        rewards = iter(arrays["rewards"].tolist())
        self.episodes: dict[str, list[Any]] = {}
        times = iter(arrays["episode_start_time"].tolist())
        for name, agent, group, version, known, status, changes, size, steps in values("episodes", "episode_end"):
            versions: list[Any] = []
            at = dict(changes)
            for t in range(steps):
                versions.append(at.get(t, versions[-1] if versions else version))
            self.episodes[name] = [
                agent, next(times), [next(observations) for _ in range(size)], [next(actions) for _ in range(steps)],
                [next(rewards) for _ in range(steps)], status, group, version, versions,
                value_of(known) if known else {},
            ]  # fmt: skip
        self.learner = state["policy_version"]
        self.finished = [list(self.episodes)[number] for number in arrays["finished"].tolist()]

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record."""
        if kind == 9:
            (self.learner,) = value_of(payload)
        if kind > 8:
            return
        arguments: list[Any] = list(value_of(payload)) or [""]
        name, *values = arguments
        if kind == 7:
            self.is_carried = name not in self.episodes
        if kind in (7, 8):
            if self.is_carried:
                self.apply(kind - 6, payload)
        elif kind == 1:
            agent, group, version, known, start_time = values
            metadata = value_of(known) if known else {}
            self.episodes[name] = [agent, start_time, [], [], [], "IN_PROGRESS", group, version, [], metadata]
        elif kind == 2 and name in self.episodes:
            observation, action, reward, version = values
            episode = self.episodes[name]
            episode[2].append(value_of(observation))
            episode[3].append(value_of(action))
            episode[4].append(reward)
            before = episode[8][-1] if episode[8] else episode[7]
            episode[8].append(before if version is None else version)
        elif kind in (3, 4) and name in self.episodes:
            if kind == 3:
                self.episodes[name][2].append(value_of(values[0]))
            self.episodes[name][5] = values[1] if kind == 3 else "ABORTED"
            self.finished.append(name)
        elif kind == 5:
            self.episodes, self.finished = {}, []
        elif kind == 6:
            for gone in values[1]:
                if gone in self.episodes:
                    del self.episodes[gone]
                    self.finished.remove(gone)


def played(path: pathlib.Path, kind: Any) -> Any:
    """Play a journal back into the model that `kind` makes from its first base."""
    (_, _, base), *rest = records_at(path)
    state = value_of(base)
    buffer = kind(state)
    for _, number, payload in rest:
        if number == 255:
            place = 4 + int.from_bytes(payload[:4], "little")
            while place < len(payload):
                kind_of_part, length = struct.unpack_from("<BI", payload, place)
                buffer.apply(kind_of_part, payload[place + 5 : place + 5 + length])
                place += 5 + length
        elif number:
            buffer.apply(number, payload)
        else:
            assert value_of(payload)["journal_id"] == state["journal_id"]
    return buffer


# What relive itself says.


def leaves(tree: Any, path: str) -> dict[str, Any]:
    """Return the columns of a tree by path."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: column for key, part in tree.items() for name, column in leaves(part, f"{path}/{key}").items()}


def assert_says(rows: Columns, buffer: Any) -> None:
    """The buffer says the same of each step that it can draw."""
    steps = {step["key"]: step for step in rows.steps()}
    assert len(steps) == len(buffer)
    assert sorted(steps) == list(range(rows.next_key - len(buffer), rows.next_key))
    keys = buffer.eligible_keys()
    assert not [key for key in keys.tolist() if steps[key]["barred"]]
    if not len(keys):
        return
    batch = buffer.read(keys, n_step=1)
    frames, next_frames = leaves(batch.observation, "observation"), leaves(batch.next_observation, "observation")
    if buffer.window.frame_stack > 1:
        frames, next_frames = ({path: each[:, -1] for path, each in stack.items()} for stack in (frames, next_frames))
    found = frames | leaves(batch.action, "action") | {"reward": batch.reward} | leaves(batch.extras, "extras")
    for place, key in enumerate(keys.tolist()):
        step = steps[key]
        assert {path: bytes_of(column, place) for path, column in found.items()} == step["fields"]
        assert batch.is_terminal[place] == step["terminated"]
        if step["following"] is not None:
            assert {path: bytes_of(column, place) for path, column in next_frames.items()} == step["following"]


def stored(buffer: relive.EpisodeReplayBuffer[Any, Any]) -> dict[str, Any]:
    """Return what a buffer of episodes holds."""
    return {
        episode.episode_id: [
            episode.agent_id, episode.start_time, episode.observations, episode.actions, episode.rewards,
            episode.status, episode.group_id, episode.policy_version, episode.policy_versions, episode.metadata,
        ]
        for episode in buffer._store
    }  # fmt: skip


RINGS = {
    name: make
    for name, make in zoo.COLUMNS.items()
    if name.startswith(("ring", "prioritized", "schema")) and "sequences" not in name
}


# Numpy itself makes no array of values of no bytes from memory, and its description of gaps is not that of the files.
VALUES = [
    value for value in codec_test.SAMPLES if getattr(value, "dtype", np.dtype(int)).descr[0][1] not in ("|V0", "|u1")
]


def test_values_are_written_as_described(subtests: pytest.Subtests) -> None:
    for value in VALUES:
        with subtests.test(value=value):
            assert codec_test.are_same(value_of(relive.PlainCodec().encode(value)), value)


@pytest.mark.parametrize("make", RINGS.values(), ids=RINGS.keys())
def test_a_checkpoint_of_columns_is_read_from_the_page_alone(make: Any, tmp_path: pathlib.Path) -> None:
    for seed, count in enumerate([0, 5, 70]):
        buffer = zoo.worked(make, seed, count)
        path = tmp_path / str(seed)
        buffer.save(path)
        state = checkpoint_at(path)
        assert state["class"] == type(buffer).__name__
        assert state["journal"] is None
        assert_says(Columns(state), buffer)
        keys = buffer.eligible_keys()
        rows = keys - (state["next_key"] - len(buffer))
        if isinstance(buffer, relive.PrioritizedReplayBuffer):
            assert state["arrays"]["sampler/priorities"][rows].tolist() == buffer.get_priorities(keys).tolist()


@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
@pytest.mark.parametrize("make", RINGS.values(), ids=RINGS.keys())
def test_a_journal_of_columns_is_read_from_the_page_alone(make: Any, tmp_path: pathlib.Path) -> None:
    for seed, (before, count) in enumerate([(0, 20), (40, 80)]):
        buffer = zoo.worked(make, seed, before)
        path = tmp_path / f"journal {seed}"
        with relive.Journal(path, fsync="never", segment_bytes=4_000) as journal:
            journal._set_note(lambda: b"a note")
            buffer.attach(journal)
            zoo.work(buffer, random.Random(seed), count)
            with journal._group(lambda: b"another one"):
                zoo.work(buffer, random.Random(seed + 100), count // 4)
            buffer.save(tmp_path / f"checkpoint {seed}")
            num_records = journal.num_records
        assert records_at(path)[-1][0] == num_records - 1
        read, state = played(path, Columns), checkpoint_at(tmp_path / f"checkpoint {seed}")
        assert state["journal"] == {"id": read.state["journal_id"], "num_records": num_records}
        assert read.steps() == Columns(state).steps()
        assert_says(read, buffer)


def test_fields_of_a_step_lie_in_their_order(tmp_path: pathlib.Path) -> None:
    byte, image = relive.Field((), "uint8"), relive.Field((9, 9), "uint8")
    schema = relive.Schema({"a": byte, "b": image, "c": byte}, {"d": byte}, extras={"e": image, "f": byte})
    buffer = relive.RingReplayBuffer(4, schema)
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        for t in range(6):
            now, then = ({"a": 10 * k, "b": np.full((9, 9), k, np.uint8), "c": k} for k in (t, t + 1))
            buffer.add(now, {"d": 100 + t}, 0.5, then, e=np.full((9, 9), 50 + t, np.uint8), f=t)
    read = played(tmp_path / "journal", Columns)
    assert_says(read, buffer)
    assert [step["fields"]["action/d"] for step in read.steps()] == [bytes([102 + t]) for t in range(4)]


@pytest.mark.parametrize("name", ["episodes", "episodes within limits", "episodes with their own sampler"])
def test_a_buffer_of_episodes_is_read_from_the_page_alone(name: str, tmp_path: pathlib.Path) -> None:
    for seed, (before, count) in enumerate([(0, 0), (0, 60), (30, 60), (50, 300)]):
        buffer = zoo.worked(zoo.EPISODES[name], seed, before)
        journal_path, path = tmp_path / f"journal {seed}", tmp_path / f"checkpoint {seed}"
        with relive.Journal(journal_path, fsync="never", segment_bytes=4_000) as journal:
            buffer.attach(journal)
            zoo.work(buffer, random.Random(seed + 100), count)
            buffer.save(path)
            num_records = journal.num_records
        read, saved = played(journal_path, Episodes), Episodes(checkpoint_at(path))
        for each in (read, saved):
            assert zoo.plain(each.episodes) == zoo.plain(stored(buffer))
            assert each.finished == [episode.episode_id for episode in buffer._store.finished]
            assert each.learner == buffer.policy_version
        assert saved.state["journal"] == {"id": read.state["journal_id"], "num_records": num_records}
        assert saved.state["counters"]["inserted"] == buffer.get_stats().appended
        places = saved.state["arrays"]["growing"].tolist()
        pools = [buffer._store.versions.pools[version] for version in (-1, *sorted(buffer.transitions_by_version()))]
        growing = [episode.episode_id for pool in pools for episode in pool.growing]
        assert [list(saved.episodes)[place] for place in places] == growing


@pytest.mark.parametrize("unit", get_args(item_cuts.StorageUnit))
def test_a_buffer_of_items_is_read_from_the_page_alone(unit: Any, tmp_path: pathlib.Path) -> None:
    buffer, rng = relive.ItemReplayBuffer(15, storage_unit=unit, seed=0), random.Random(0)
    added = [zoo.items_of(unit, rng, 3) for _ in range(6)]
    for number, batch in enumerate(added):
        if unit == "episodes":
            ids = batch["eps_id"] + 3 * number
            batch |= {"eps_id": ids, "terminated": np.diff(ids, append=-1) != 0}
        buffer.add(batch)
    buffer.save(tmp_path / "items")
    state = checkpoint_at(tmp_path / "items")
    arrays, stats = state["arrays"], buffer.get_stats()
    names = [name for name, _, _ in state["columns"] if (unit, name) != ("sequences", "seq_lens")]
    assert sorted(f"values/{name}" for name in names) == sorted(set(arrays) - {"lengths"})
    lengths = arrays["lengths"].reshape(stats.items, -1)
    assert lengths.max(axis=1).sum() == stats.timesteps
    assert state["counters"]["added"] == stats.added
    assert state["generator"]["bit_generator"] == "PCG64"
    for place, name in enumerate(names):
        rows = arrays[f"values/{name}"]
        assert len(rows) == lengths[:, place % lengths.shape[1]].sum()
        # The newest items are those of the last adds.
        assert rows.tobytes() == np.concatenate([batch[name] for batch in added])[-len(rows) :].tobytes()


@pytest.mark.parametrize(("name", "environments"), [("rollout", None), ("rollout of 3 environments", 3)])
def test_a_rollout_is_read_from_the_page_alone(name: str, environments: int | None, tmp_path: pathlib.Path) -> None:
    buffer = zoo.worked(zoo.KINDS[name].make, 0, 5)
    buffer.save(tmp_path / "rollout")
    state = checkpoint_at(tmp_path / "rollout")
    assert (state["size"], state["environments"], state["generator"]) == (5, environments, None)
    found = {name.removeprefix("rows/"): rows for name, rows in state["arrays"].items()}
    paths = [path for path, _, _ in state["schema"]]
    assert sorted(found) == sorted([*paths, "value", "terminated", "truncated", "next_value"])
    expected = buffer.arrays()
    for path in found.keys() & expected.keys():
        assert zoo.plain(found[path]) == zoo.plain(expected[path])


def test_a_record_that_is_cut_short_is_left_out(tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(10)
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        for t in range(5):
            buffer.add(t, t, 1.0)
        shutil.copytree(tmp_path / "journal", tmp_path / "killed")
    (segment,) = (tmp_path / "killed").iterdir()
    segment.write_bytes(segment.read_bytes()[:-3])
    assert len(played(tmp_path / "killed", Columns).steps()) == 4
    assert len(relive.recover(tmp_path / "killed")) == 4


def test_a_memory_map_is_read_from_the_page_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows"
    with relive.MemmapStorage(path, zoo.SCHEMA, 20) as storage:
        assert storage.generation == 0
        buffer = relive.RingReplayBuffer(20, storage=storage, seed=0)
        zoo.work(buffer, random.Random(3), 60)
        buffer.save(tmp_path / "checkpoint")
        assert sorted(each.name for each in path.iterdir())[:2] == ["dirty.json", "rows-0.npy"]
    said = unsealed((path / "storage.json").read_bytes(), b'"format": "relive memory map",\n "version": 2,\n')
    clean = unsealed((path / "clean.json").read_bytes(), b"")
    assert (clean["id"], clean["generation"]) == (said["id"], 1)
    fields = {name: (dtype_of(descr), tuple(shape)) for name, descr, shape in said["schema"]}
    columns: dict[str, Any] = {}
    for block in said["blocks"]:
        assert (path / block["file"]).stat().st_size == block["bytes"]
        (name,), array = block["fields"], np.load(path / block["file"])
        assert (array.dtype, array.shape) == (fields[name][0], (said["capacity"], *fields[name][1]))
        columns[name] = array
    rows = Columns(checkpoint_at(tmp_path / "checkpoint"))
    assert len(rows.rows) > 10
    for row in rows.rows:
        slot = row["key"] % said["capacity"]
        assert {name: bytes_of(column, slot) for name, column in columns.items()} == row["fields"]


def test_files_are_named_as_the_page_says() -> None:
    for name, file in [
        ("rows/observation/camera 1", "rows.observation.camera%201.npy"),
        ("rows/extras/Q", "rows.extras.Q~97459b26.npy"),
    ]:
        assert file_of(name) == file
