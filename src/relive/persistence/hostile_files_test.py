"""Checkpoints and journals, damaged and forged, by the hundred and by the thousand.

    damaged      bits flipped, files cut, lost, swapped, or something else in their place
    forged       what is in them is changed, and then sealed as relive itself would seal it

Each gives a CheckpointError, or the state that it says, or a buffer that passes its audit and can be written to, drawn
from and saved. The buffers are of every class.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import json
import os
import pathlib
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any, TypeAlias
import uuid
import warnings
import zipfile

import numpy as np
import pytest

import relive
from relive import errors
from relive.persistence import archive_test
from relive.persistence import checkpoint
from relive.persistence import checkpoint_test
from relive.persistence import journal_reader
from relive.persistence import npy
from relive.persistence import posix_test
from relive.persistence import seed_blocks_test
from relive.persistence import state as state_lib
from relive.persistence import states_test
from relive.testing import zoo

MAKERS = [kind.make for kind in zoo.JOURNALED.values()]
SECONDS = 60
"""A case that takes longer hangs."""
MOST_BYTES = 64 << 20
"""A case takes no more memory than that beyond what its files hold, which is little."""
ADDRESSES = 4 << 30
"""Bytes of addresses that a process of cases can have: what asks for more gets a MemoryError."""

Files: TypeAlias = dict[str, bytes]
Change: TypeAlias = Callable[[pathlib.Path, random.Random], None]


# What is right.

IDS = random.Random()
"""What ids of episodes, journals and segments are made of in a process of cases: a case is the same in each."""


@functools.cache
def checkpoint_file(maker: int, seed: int) -> bytes:
    """The checkpoint of a used buffer."""
    IDS.seed(f"checkpoint {maker} {seed}")
    with tempfile.TemporaryDirectory() as directory:
        zoo.worked(MAKERS[maker], seed, 20 + 40 * seed).save(f"{directory}/saved")
        return pathlib.Path(directory, "saved").read_bytes()


@functools.cache
def journal_files(maker: int, seed: int) -> Files:
    """The files of a journal of several segments, or of one."""
    IDS.seed(f"journal {maker} {seed}")
    with tempfile.TemporaryDirectory() as directory:
        buffer = zoo.worked(MAKERS[maker], seed, 20 * seed)
        size = [300, 10_000, 1 << 20][seed % 3]
        with relive.Journal(f"{directory}/log", fsync="never", segment_bytes=size) as log:
            buffer.attach(log)
            zoo.work(buffer, random.Random(f"journaled {seed}"), 60)
        return files_of(pathlib.Path(directory, "log"))


def files_of(path: pathlib.Path) -> Files:
    return {each.name: each.read_bytes() for each in sorted(path.iterdir())}


# Damages.


class Touched:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def cleared(path: pathlib.Path) -> None:
    """Delete whatever is at a path: a file, a link, a pipe, or an empty directory."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def written(directory: pathlib.Path, files: Files) -> None:
    """Empty a directory, of whatever it holds, and fill it."""
    for each in directory.iterdir() if directory.exists() else ():
        cleared(each)
    directory.mkdir(exist_ok=True)
    for name, raw in files.items():
        (directory / name).write_bytes(raw)


def any_file(path: pathlib.Path, rng: random.Random) -> pathlib.Path:
    return path / rng.choice(sorted(os.listdir(path))) if path.is_dir() else path


def flip(path: pathlib.Path, rng: random.Random) -> None:
    file = any_file(path, rng)
    raw = bytearray(file.read_bytes())
    first = 128 if len(raw) > 128 and rng.random() < 0.5 else 0  # Behind a header, or anywhere.
    for _ in range(rng.randrange(1, 4)):
        raw[rng.randrange(first, len(raw))] ^= 1 << rng.randrange(8)
    file.write_bytes(raw)


def resize(path: pathlib.Path, rng: random.Random) -> None:
    file = any_file(path, rng)
    size = file.stat().st_size
    sizes = [0, 1, 10, 37, 54, 127, 128, 129, size // 2, size - 1, size + 1, size + 10_000, rng.randrange(size)]
    os.truncate(file, rng.choice(sizes))


def remove(directory: pathlib.Path, rng: random.Random) -> None:
    any_file(directory, rng).unlink()


def swap(directory: pathlib.Path, rng: random.Random) -> None:
    one, two = any_file(directory, rng), any_file(directory, rng)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def rename(path: pathlib.Path, rng: random.Random) -> None:
    """Rename a file to the name of another one."""
    names = sorted(os.listdir(path))
    number = rng.choice([0, 1, 2, 50, 10**19, 99999999999999999999])
    others = ["segment-1.relive", "../victim", "x", "a.npy", "manifest.json", f"{names[0]}.new", f"{names[0]}.damaged"]
    os.rename(path / rng.choice(names), path / rng.choice([journal_reader.segment_name(number), *others]))


def replace(path: pathlib.Path, rng: random.Random) -> None:
    """Put something else in the place of a file: a link to the same bytes, a pipe, a directory, pickles."""
    file = any_file(path, rng)
    raw = file.read_bytes()
    file.unlink()
    victim, touched = path.parent / "victim", Touched(path.parent / "touched")
    kind = rng.randrange(7)
    if kind == 0:
        victim.write_bytes(raw)
        file.symlink_to(victim)
    elif kind in (1, 2):
        file.symlink_to("/dev/zero" if kind == 1 else file.name)
    elif kind == 3 and hasattr(os, "mkfifo"):
        os.mkfifo(file)
    elif kind == 4:
        file.mkdir()
    elif kind == 5:
        file.write_bytes(pickle.dumps(touched))
    else:
        with file.open("wb") as opened:
            np.save(opened, np.array([touched], object), allow_pickle=True)


def splice(path: pathlib.Path, rng: random.Random) -> None:
    """Move bytes to another place of a file, or put those of another archive there."""
    raw = bytearray(path.read_bytes())
    other = checkpoint_file(rng.randrange(len(MAKERS)), 1) if rng.random() < 0.5 else bytes(raw)
    count = rng.choice([1, 4, 30, 46, 100, 1000])
    source, target = rng.randrange(len(other)), rng.randrange(len(raw))
    raw[target : target + rng.choice([0, count])] = other[source : source + count]
    path.write_bytes(raw)


DAMAGES: list[Change] = [flip, flip, remove, swap, replace, resize, resize, rename]
FILE_DAMAGES: list[Change] = [flip, flip, flip, replace, resize, resize, splice]

# Forgeries of checkpoints.


HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 2**64, 10**15, 10**300, 0.5, 1e300, "", "a", "|O", "O", "<f8", "|b1",
    "<U1", "../x", "..", "/etc/passwd", "a\0b", "manifest.json", ".", "x" * 5000, [], {}, [0], [10**15],
    [10**15, 10**15], [-1], [True], [[]], [["a", "|O"]], [["a", "<f8"], ["a", "<f8"]], [["", "|V8"]],
    {"a": 1}, [1] * 40, [[[[[[]]]]]],
]  # fmt: skip
TEXTS = [
    b"NaN", b"Infinity", b"[" * 5000, b"{" * 99, b'"', b"\\", b"\0", b"\xff", b",", b":", b"9" * 5000, b"-", b"1e999",
]  # fmt: skip


Members: TypeAlias = dict[str, bytes]


def members_of(members: Members) -> dict[str, Any]:
    """Return what the manifest of an archive holds."""
    found: dict[str, Any] = json.loads(members["manifest.json"])
    return found


def resigned(members: Members, values: dict[str, Any]) -> None:
    """Put a manifest into the members of an archive."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
    members["manifest.json"] = f"{{\n{lines}\n}}\n".encode()


def forge_value(archived: Members, rng: random.Random) -> None:
    """Put a hostile value, or drop one, anywhere in the manifest."""
    members = members_of(archived)
    place: Any = members
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.2:
            break
        place = place[key]
    if rng.random() < 0.1:
        del place[key]
    elif isinstance(place, dict) and rng.random() < 0.1:
        place[rng.choice(HOSTILE[14:27])] = place.pop(key)
    else:
        place[key] = rng.choice(HOSTILE)
    resigned(archived, members)


def forge_text(members: Members, rng: random.Random) -> None:
    """Put text anywhere in the manifest, or leave some out."""
    raw = members["manifest.json"]
    start = rng.randrange(len(raw))
    members["manifest.json"] = raw[:start] + rng.choice(TEXTS) + raw[start + rng.randrange(4) :]


def any_array(members: Members, rng: random.Random) -> tuple[Any, Any, str]:
    """Return a manifest, the entry of an array in it, and its file."""
    values = members_of(members)
    entry = values["arrays"][rng.choice(sorted(values["arrays"]))]
    return values, entry, entry["file"]


def forge_rows(members: Members, rng: random.Random) -> None:
    """Change bytes of an array."""
    _, _, file = any_array(members, rng)
    raw = bytearray(members[file])
    for place in [rng.randrange(len(raw) if rng.random() < 0.3 else 128, len(raw) + 1) for _ in range(3)]:
        raw[min(place, len(raw) - 1)] = rng.randrange(256)
    members[file] = bytes(raw)


def forge_shape(members: Members, rng: random.Random) -> None:
    """Claim another dtype and shape, consistently, but for the rows."""
    values, entry, file = any_array(members, rng)
    shapes = [[10**15], [2**62, 4], [0, 2**62, 2**62], [10**15, 0], [0], [5], [40], [320], [4, 10], [1] * 32]
    dtype, shape = rng.choice(["|u1", "<f8", "|b1", "<U2", "|S320", "|V1"]), rng.choice(shapes)
    old = npy.Member("a", npy.dtype_of(entry["dtype"]), tuple(entry["shape"])).header
    members[file] = npy.Member("a", np.dtype(dtype), tuple(shape)).header + members[file][len(old) :]
    entry.update(dtype=dtype, shape=shape)
    resigned(members, values)


def swap_arrays(members: Members, rng: random.Random) -> None:
    """Give an array the name of another."""
    values = members_of(members)
    arrays, names = values["arrays"], sorted(values["arrays"])
    one, two = rng.choice(names), rng.choice(names)
    arrays[one], arrays[two] = arrays[two], arrays[one]
    resigned(members, values)


def forge_names(members: Members, rng: random.Random) -> None:
    """Leave a member out, add one, or give one another name."""
    name, others = (
        rng.choice(sorted(members)),
        ["x", "../victim", "/etc/passwd", "a.npy", "\n", "manifest.json", "a/b/c"],
    )
    content = members.pop(name)
    if rng.random() < 0.7:
        members[rng.choice(others)] = content
    if rng.random() < 0.3:
        members[name] = content


def in_archive(forge: Callable[[Members, random.Random], None]) -> Change:
    """Return what changes the members of an archive and writes it anew, with checksums that are right."""

    def change(path: pathlib.Path, rng: random.Random) -> None:
        members = archive_test.contents_of(path)
        forge(members, rng)
        archive_test.written(path, members)

    return change


def forge_saved_state(path: pathlib.Path, rng: random.Random) -> None:
    """Save the state anew, with a few changes."""
    with checkpoint.opened(path) as state:
        arrays = {name: state_lib.in_memory(column) for name, column in state["arrays"].items()}
    path.unlink()
    with contextlib.suppress(errors.ReplayError, AttributeError):
        checkpoint.save(states_test.forged(state | {"arrays": arrays}, rng), path)


def forge_archive(path: pathlib.Path, rng: random.Random) -> None:
    """Write the members anew with zipfile, some twice, compressed, in another order, with comments or gaps."""
    members = [*archive_test.contents_of(path).items()]
    with zipfile.ZipFile(path, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About names that are there twice.
        first, *others = members
        others = rng.sample(others, len(others)) if rng.random() < 0.3 else others
        for name, content in [first, *others, *([rng.choice(members)] if rng.random() < 0.3 else [])]:
            info = zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6))
            info.compress_type = rng.choice([zipfile.ZIP_STORED] * 40 + [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
            info.extra = b"\x99\x99\0\0" if rng.random() < 0.01 else b""
            info.comment = b"hidden" if rng.random() < 0.01 else b""
            file.writestr(info, content)
        file.comment = b"hidden" if rng.random() < 0.1 else b""


def forge_fields(path: pathlib.Path, rng: random.Random) -> None:
    """Put hostile numbers into the heads of members, their entries in the directory, and the end."""
    raw = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2])):
        kind, size = rng.choice([(b"PK\3\4", 30), (b"PK\1\2", 46), (b"PK\1\2", 46), (b"PK\5\6", 22)])
        starts = [match.start() for match in re.finditer(re.escape(kind), raw)]
        place, value = (
            rng.choice(starts) + rng.randrange(4, size),
            rng.choice([0, 1, 2, 7, 100, 0x7FFFFFFF, 0xFFFFFFFF]),
        )
        width = rng.choice([1, 2, 4])
        raw[place : place + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    path.write_bytes(raw)


FORGED_MEMBERS = [forge_value, forge_value, forge_text, forge_rows, forge_rows, forge_shape, swap_arrays, forge_names]
CHECKPOINT_FORGERIES: list[Change] = [
    *[forge_saved_state] * 5, *map(in_archive, FORGED_MEMBERS), forge_archive, forge_archive, *[forge_fields] * 3,
]  # fmt: skip

# Forgeries of journals.


def forge_records(path: pathlib.Path, rng: random.Random) -> None:
    """Change records, and write segments that hold them with numbers and checksums that are right."""
    segments: list[list[tuple[int, bytes]]] = []
    for record in journal_reader.records(path):
        if record.kind == journal_reader.BASE:
            segments.append([])
        segments[-1].append((record.kind, record.payload))
    first = int(min(os.listdir(path))[8:28])
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        rng.choice(RECORD_FORGERIES)(segments, rng)
    for each in [*path.glob("*.relive"), *path.glob("*.closed")]:
        each.unlink()
    for segment in segments:
        header = journal_reader.segment_header(first, 0)
        seed = journal_reader.seed_of(header, first)
        framed = [
            journal_reader.framed(number, kind, payload, seed)
            for number, (kind, payload) in enumerate(segment, start=first)
        ]
        content = b"".join([header, *framed])
        (path / journal_reader.segment_name(first)).write_bytes(content)
        first += len(segment)


Segments: TypeAlias = list[list[tuple[int, bytes]]]


def any_place(segments: Segments, rng: random.Random) -> tuple[list[tuple[int, bytes]], int]:
    """A record, and no base."""
    longer = [segment for segment in segments if len(segment) > 1]
    if not longer:
        return [(1, b"")], 0
    segment = rng.choice(longer)
    return segment, rng.randrange(1, len(segment))


def forge_payload(segments: Segments, rng: random.Random) -> None:
    segment, place = any_place(segments, rng)
    kind, payload = segment[place]
    raw = bytearray(payload)
    action = rng.randrange(6)
    if action == 0 and raw:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif action == 1 and raw:
        raw[rng.randrange(min(len(raw), 16))] = rng.choice([0, 1, 2, 3, 127, 128, 255])
    elif action == 2:
        del raw[rng.randrange(len(raw) + 1) :]
    elif action == 3:
        raw += rng.randbytes(rng.choice([1, 8, 36, 1000]))
    elif action == 4:
        start = rng.randrange(len(raw) + 1)
        raw[start : start + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\1" + b"\0" * 7])
    else:
        raw = bytearray(rng.randbytes(rng.choice([0, 1, 5, 13, 37, 48, 100])))
    segment[place] = kind, bytes(raw)


def forge_kind(segments: Segments, rng: random.Random) -> None:
    segment, place = any_place(segments, rng)
    segment[place] = rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 255]), segment[place][1]


def forge_order(segments: Segments, rng: random.Random) -> None:
    """Leave a record out, writes it twice, or let it come at another time."""
    segment, place = any_place(segments, rng)
    other, there = any_place(segments, rng)
    action = rng.randrange(3)
    if action == 0:
        other.insert(there, segment[place])
    elif action == 1:
        segment[place], other[there] = other[there], segment[place]
    else:
        del segment[place]


def forge_segments(segments: Segments, rng: random.Random) -> None:
    """Leave a segment out, or give it the place of another."""
    if rng.random() < 0.5:
        rng.shuffle(segments)
    elif segments:
        del segments[rng.randrange(len(segments))]


def forge_stranger(segments: Segments, rng: random.Random) -> None:
    """Put the record of another buffer there."""
    segment, place = any_place(segments, rng)
    files = journal_files(rng.randrange(len(MAKERS)), 2)
    with tempfile.TemporaryDirectory() as directory:
        for name, raw in files.items():
            pathlib.Path(directory, name).write_bytes(raw)
        others = list(journal_reader.records(directory))
    other = rng.choice(others)
    segment.insert(place, (other.kind or 1, other.payload))


def forge_base(segments: Segments, rng: random.Random) -> None:
    """Change the state that the first segment, or another, begins with."""
    if not segments:
        return
    segment = segments[0] if rng.random() < 0.8 else rng.choice(segments)
    kind, payload = segment[0]
    action = rng.randrange(8)
    if action == 0:
        raw = bytearray(payload)
        raw[rng.randrange(len(raw))] = rng.randrange(256)
        payload = bytes(raw)
    elif action == 1:
        value: Any = rng.choice(
            [None, {}, [], {"journal_id": "x"}, {"class": []}, {1: 2}, {"arrays": {}}, b"", np.zeros(3)]
        )
        payload = relive.PlainCodec().encode(value)
    else:
        # What was forged before may be no state any more.
        with contextlib.suppress(errors.ReplayError, TypeError, LookupError, ValueError, RecursionError):
            state = states_test.forged(relive.PlainCodec().decode(payload), rng)
            payload = relive.PlainCodec().encode(state)
    segment[0] = kind, payload


RECORD_FORGERIES: list[Callable[[Segments, random.Random], None]] = [
    *[forge_payload] * 5, *[forge_base] * 4, forge_kind, forge_order, forge_order, forge_segments, forge_stranger,
]  # fmt: skip


# Cases.


def checkpoint_of(case: int) -> bytes:
    """Every 19 cases have all makers, and every 57 each of them with all seeds."""
    return checkpoint_file(case % len(MAKERS), (case + case // len(MAKERS)) % 3)


def journal_of(case: int) -> Files:
    """Every 19 cases have all makers, and every 114 each of them with all seeds."""
    return journal_files(case % len(MAKERS), (case + case // len(MAKERS)) % 6)


class Guard:
    """Fails if a case hangs, unpickles, or changes files outside its directory."""

    def __init__(self, parent: pathlib.Path) -> None:
        self.parent = parent
        for name in ("load", "loads", "Unpickler"):
            setattr(pickle, name, self._unpickles)
        signal.signal(signal.SIGALRM, self._hangs)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        before = self._listing()
        signal.alarm(SECONDS)
        try:
            yield
        finally:
            signal.alarm(0)
        assert self._listing() == before

    def _listing(self) -> Any:
        """All that is beside the case and above it, with sizes and times; its lock comes and stays."""
        listing = {}
        for directory in (self.parent, self.parent.parent):
            for entry in os.scandir(directory):
                if entry.name not in ("bad", ".bad.lock", self.parent.name):
                    status = entry.stat(follow_symlinks=False)
                    listing[entry.path] = status.st_mtime_ns, status.st_size, status.st_mode
        return listing

    @staticmethod
    def _unpickles(*_: object, **__: object) -> Any:
        raise SystemExit("a pickle was read")

    @staticmethod
    def _hangs(*_: object) -> None:
        raise SystemExit("it hangs")


def change(path: pathlib.Path, rng: random.Random, forgeries: list[Change], damages: list[Change]) -> bool:
    """Change files; return whether they are sealed again."""
    is_forged = rng.random() < 0.7
    rng.choice(forgeries if is_forged else damages)(path, rng)
    return is_forged


def load_case(case: int, parent: pathlib.Path, guard: Guard) -> bool:
    """Load a changed checkpoint; return whether that gave a buffer."""
    rng, maker = random.Random(case), case % len(MAKERS)
    bad = parent / "bad"
    cleared(bad)
    bad.write_bytes(checkpoint_of(case))
    is_forged = change(bad, rng, CHECKPOINT_FORGERIES, FILE_DAMAGES)
    if not is_usable(lambda: type(MAKERS[maker]()).load(bad), rng, guard):
        return False
    if not is_forged:  # The damage is to nothing that matters.
        found = checkpoint_test.loaded(bad)
        cleared(bad)
        bad.write_bytes(checkpoint_of(case))
        assert found == checkpoint_test.loaded(bad)
    return True


def recover_case(case: int, parent: pathlib.Path, guard: Guard) -> bool:
    """Recover a changed journal; return whether that gave a buffer, which can then go on with it."""
    rng = random.Random(case)
    bad = parent / "bad"
    written(bad, journal_of(case))
    change(bad, rng, [forge_records], DAMAGES)
    buffers: list[Any] = []

    def recovered() -> Any:
        buffers.append(relive.recover(bad))
        return buffers[-1]

    if not is_usable(recovered, rng, guard):
        return False
    with guard.watching():
        goes_on(relive.recover(bad), bad, rng)
    return True


def goes_on(buffer: Any, path: pathlib.Path, rng: random.Random) -> None:
    """It can write to its journal, which can be recovered again."""
    with relive.Journal(path, fsync="never") as log:
        buffer.attach(log)
        with contextlib.suppress(errors.ArgumentError), np.errstate(all="ignore"):
            zoo.work(buffer, rng, 10)
        buffer.detach()
    # Of segments that are gone, the one that is the first now may have been forged too.
    with contextlib.suppress(errors.CheckpointError):
        relive.recover(path).check()


def is_usable(made: Callable[[], Any], rng: random.Random, guard: Guard) -> bool:
    with guard.watching():
        try:
            buffer = made()
        except errors.CheckpointError as error:
            text = str(error)
            assert "\n" not in text, text
            assert len(text) < 20_000, text  # The names of arrays are as long as a forger likes.
            return False
        states_test.assert_usable(buffer, rng.randrange(2**32))
        return True


def peak() -> int:
    """Return the peak memory of this process since the last call, where the system reports it."""
    try:
        status = pathlib.Path("/proc/self/status").read_text()
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        usage = posix_test.resource.getrusage(posix_test.resource.RUSAGE_SELF)
        return int(usage.ru_maxrss) << (0 if sys.platform == "darwin" else 10)
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def run(what: str, first: int, last: int) -> int:
    """Run cases, in a process of their own, and return how many gave a buffer."""
    np.seterr(all="ignore")
    run_case, files_of_case = {"load": (load_case, checkpoint_of), "recover": (recover_case, journal_of)}[what]
    uuid.uuid4 = lambda: uuid.UUID(int=IDS.getrandbits(128), version=4)
    os.urandom = IDS.randbytes
    os.fsync = lambda fd: None  # Nothing here is about what a disk loses.
    with tempfile.TemporaryDirectory() as grandparent:
        parent = pathlib.Path(grandparent, "parent")
        parent.mkdir()
        (pathlib.Path(grandparent) / "beside").write_text("beside")
        (parent / "victim").write_text("victim")
        guard = Guard(parent)
        for case in range(first, last):
            files_of_case(case)
        with contextlib.suppress(ValueError):  # macOS takes no such limit; what is taken is measured all the same.
            posix_test.resource.setrlimit(posix_test.resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        usable, before = 0, (peak(), peak())[1]
        for case in range(first, last):
            with states_test.noted(f"in case {case}"):
                IDS.seed(case)
                usable += run_case(case, parent, guard)
            taken = peak() - before
            assert taken < MOST_BYTES, f"case {case} took {taken} bytes"
    return usable


@posix_test.LIMITS
@pytest.mark.parametrize("cases", seed_blocks_test.seed_blocks(19, 1000, 7))
@pytest.mark.parametrize("what", ["load", "recover"])
def test_a_hostile_file_gives_an_error_or_a_buffer_that_works(what: str, cases: range, tmp_path: pathlib.Path) -> None:
    first, last = cases.start, cases.stop
    program = (
        f"from relive.persistence import hostile_files_test; print(hostile_files_test.run({what!r}, {first}, {last}))"
    )
    command = [sys.executable, "-c", program]
    patience, environment = SECONDS * (len(cases) + 10), os.environ | {"TMPDIR": str(tmp_path)}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False, env=environment)
    assert answer.returncode == 0, answer.stderr[-5000:]
    assert 0 < int(answer.stdout) < len(cases)
