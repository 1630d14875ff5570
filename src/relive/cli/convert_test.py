"""`relive convert`: the copy equals the source, and an impossible conversion is one line and changes nothing."""

import itertools
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import relive
from relive.cli import command_line
from relive.cli import convert
from relive.cli import saved_examples_test as examples
from relive.cli import terminal
from relive.common import trees
from relive.integrations import arrow
from relive.integrations import minari as relive_minari
from relive.integrations import stored_episodes
from relive.persistence import state

ENDING = "(a checkpoint may have no ending)"


@pytest.fixture(autouse=True)
def _datasets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def converted(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, what was printed, and the error without its beginning."""
    try:
        code = command_line.main(["convert", *arguments])
    except SystemExit as leaving:
        code = int(str(leaving.code))
    shown = capsys.readouterr()
    place = f"{os.getcwd()}/"
    return code, shown.out, shown.err.removeprefix("relive convert: ").replace(place, "")


def buffer(*, lazy: bool = False, **settings: Any) -> relive.PrioritizedReplayBuffer:
    """Return a buffer with an episode of each kind; the last step of one that is lazy has no next observation."""
    answer = relive.PrioritizedReplayBuffer(40, seed=3, **settings)
    for number, length in enumerate((5, 3)):
        observations = {"image": np.full((length + 1, 2, 2), number, np.uint8), "state": np.arange(length + 1.0)}
        steps = np.arange(length)
        extras = {"logp": -1.0 - steps, "version": 7 * steps}
        answer.add_episode(observations, steps, steps / 4, terminated=number == 0, stream=0, **extras)
    for t in range(2):
        observation, following = ({"image": np.full((2, 2), t + k, np.uint8), "state": t + k / 1.0} for k in (0, 1))
        answer.add(observation, t, 0.5, None if lazy else following, stream=0, logp=-9.0, version=3)
    return answer


def facts(found: Any) -> list[Any]:
    """Return everything about the episodes of a buffer except their keys."""
    answer = []
    for each in stored_episodes.stored_episodes(found):
        parts = {"o": each.observations, "a": each.actions, "r": each.rewards, **each.extras}
        arrays = [
            (path, array.dtype.str, array.shape, array.tobytes()) for path, array in trees.flat("", parts).items()
        ]
        answer.append((each.stream, each.status, each.has_final_observation, *arrays))
    return answer


def closed(found: list[Any]) -> list[Any]:
    """Return the episodes as they are read back: an open episode becomes a truncated one."""
    return [(stream, "TRUNCATED" if status == "IN_PROGRESS" else status, *rest) for stream, status, *rest in found]


def test_a_checkpoint_becomes_a_parquet_file_and_one_again(capsys: pytest.CaptureFixture[str]) -> None:
    source = buffer(streams=2)
    source.save("replay")
    wrote = "wrote 10 steps in 3 episodes to"
    assert converted(capsys, "replay", "steps.parquet") == (0, f"{wrote} steps.parquet\n", "")
    again = relive.RingReplayBuffer(40, streams=2)
    arrow.add_parquet(again, "steps.parquet")
    assert facts(again) == closed(facts(source))
    assert converted(capsys, "steps.parquet", "again") == (
        0,
        f"{wrote} again: a RingReplayBuffer of capacity 10; --like PATH for another\n",
        "",
    )
    loaded = relive.RingReplayBuffer.load("again")
    assert facts(loaded) == closed(facts(source))
    assert (loaded.capacity, loaded.streams) == (10, 2)


def test_a_checkpoint_becomes_a_dataset_and_one_again(capsys: pytest.CaptureFixture[str]) -> None:
    source = buffer()
    source.save("replay")
    assert converted(capsys, "replay", "minari:mine/test-v0") == (
        0,
        "wrote 10 steps in 3 episodes to minari:mine/test-v0\n",
        "",
    )
    assert converted(capsys, "minari:mine/test-v0", "again", "--capacity", "50") == (
        0,
        "wrote 10 steps in 3 episodes to again: a RingReplayBuffer of capacity 50; --like PATH for another\n",
        "",
    )
    again = relive.RingReplayBuffer.load("again")
    assert facts(again) == closed(facts(source))
    assert (again.capacity, again.streams) == (50, 1)
    assert again.schema is not None
    assert list(again.schema.extras) == ["logp", "version"]


def test_the_new_buffer_may_be_like_another(capsys: pytest.CaptureFixture[str]) -> None:
    source = buffer()
    arrow.write_parquet(source, "steps.parquet")
    like = relive.PrioritizedReplayBuffer(20, source.schema, n_step=3, seed=1)
    observation = {"image": np.zeros((2, 2), np.uint8), "state": 0.0}
    keys = [like.add(observation, 0, 1.0, observation, logp=0.0, version=0) for _ in range(3)]
    like.update_priorities(keys, [9.0] * 3)
    like.save("like")
    made = "a PrioritizedReplayBuffer of capacity 20"
    assert converted(capsys, "steps.parquet", "again", "--like", "like") == (
        0,
        f"wrote 10 steps in 3 episodes to again: {made}\n",
        "",
    )
    again = relive.load("again")
    assert (type(again), again.window.n_step) == (relive.PrioritizedReplayBuffer, 3)
    assert facts(again) == closed(facts(source))
    assert (again.get_stats().appended, again.get_priorities(again.eligible_keys()).max()) == (10, 1.0)
    assert len(relive.load("like")) == 3
    relive.RingReplayBuffer(3, source.schema).save("small")
    message = "the capacity of --like small must be at least 10 for 10 steps of 1 stream, got 3\n"
    assert converted(capsys, "steps.parquet", "new", "--like", "small") == (1, "", message)
    other = relive.RingReplayBuffer(20)
    other.add(5, 0, 1.0, 6)
    other.save("other")
    assert converted(capsys, "steps.parquet", "new", "--like", "other")[2].startswith("buffer must have the schema of")


def test_a_parquet_file_becomes_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    source = buffer(lazy=True)
    source.save("replay")
    code, _, error = converted(capsys, "replay", "minari:mine/test-v0")
    assert (code, error[:57]) == (1, "to_dataset needs the observation after the newest step of")
    arrow.write_parquet(source, "steps.parquet")
    assert converted(capsys, "steps.parquet", "minari:mine/test-v0") == (
        0,
        "wrote 9 steps in 3 episodes to minari:mine/test-v0\n",
        "",
    )
    code, out, error = converted(capsys, "steps.parquet", "minari:mine/test-v0")
    assert (code, out, error) == (1, "", "dataset_id must be a new one, got 'mine/test-v0'\n")
    assert relive_minari.infos_of("mine/test-v0") == {"logp": "logp", "version": "version"}


def test_an_empty_buffer_is_converted_too(capsys: pytest.CaptureFixture[str]) -> None:
    empty = relive.RingReplayBuffer(9, relive.Schema(relive.Field((), "f4"), relive.Field((), "i8")))
    arrow.write_parquet(empty, "steps.parquet")
    assert converted(capsys, "steps.parquet", "replay") == (
        0,
        "wrote 0 steps in 0 episodes to replay: a RingReplayBuffer of capacity 1; --like PATH for another\n",
        "",
    )
    assert relive.RingReplayBuffer.load("replay").capacity == 1
    source = relive.RingReplayBuffer(9)
    source.add_episode([0.0, 1.0], [0.5], [1.0], terminated=True)
    arrow.write_parquet(source, "steps.parquet")
    assert converted(capsys, "steps.parquet", "minari:mine/test-v0")[0] == 0


def test_an_existing_destination_is_recognised_by_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    buffer().save("left")
    arrow.write_parquet(buffer(), "steps.parquet")
    message = "left exists: name another path, or pass --overwrite\n"
    assert converted(capsys, "steps.parquet", "left") == (1, "", message)
    os.mkdir("new.parquet.1")
    assert converted(capsys, "left", "new.parquet")[0] == 0
    os.makedirs("minari:mine/test-v0")
    assert converted(capsys, "left", "minari:mine/test-v0")[0] == 0


def test_older_checkpoints_are_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    source = buffer()
    for _ in range(3):
        source.save("kept", keep=3)
    arrow.write_parquet(source, "old.parquet")
    before = sorted(os.listdir())
    message = "kept has older ones beside it, which would be lost: move kept.1, kept.2 away first\n"
    assert converted(capsys, "old.parquet", "kept", "--overwrite") == (1, "", message)
    assert sorted(os.listdir()) == before
    os.unlink("kept.1")
    os.unlink("kept.2")
    assert converted(capsys, "old.parquet", "kept", "--overwrite")[0] == 0


@pytest.mark.parametrize("target", ["steps.parquet", "again"])
def test_a_destination_created_meanwhile_stays(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = convert._read

    def slow(*arguments: Any) -> Any:
        answer = read(*arguments)
        pathlib.Path(target).write_text("mine")
        return answer

    monkeypatch.setattr(convert, "_read", slow)
    if target == "again":
        arrow.write_parquet(buffer(), "source.parquet")
    else:
        buffer().save("source")
    code, out, error = converted(capsys, "source" if target != "again" else "source.parquet", target)
    assert (code, out) == (1, "")
    assert error.startswith(f"{target} exists: name another path")
    assert pathlib.Path(target).read_text() == "mine"


def test_what_there_is_is_told_by_its_content(capsys: pytest.CaptureFixture[str]) -> None:
    source = buffer()
    source.save("steps.csv")
    assert converted(capsys, "steps.csv", "steps.parquet")[0] == 0
    os.rename("steps.parquet", "steps")
    for target in ("run.relive", "run", "run.RELIVE"):
        assert converted(capsys, "steps", target, "--overwrite")[0] == 0
        assert facts(relive.RingReplayBuffer.load(target)) == closed(facts(source))


def test_a_journal_is_rebuilt(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is not whole is left as it is."""
    source = examples.journal(pathlib.Path("journal"))
    segments = examples.segments(pathlib.Path("journal"))
    whole = segments[-1].read_bytes()
    assert converted(capsys, "journal", "steps.parquet") == (0, "wrote 30 steps in 6 episodes to steps.parquet\n", "")
    again = relive.RingReplayBuffer(40)
    arrow.add_parquet(again, "steps.parquet")
    assert facts(again) == facts(source)
    segments[-1].write_bytes(whole[:-3])
    torn = "journal cannot be converted: it ends with a torn record of 56 B: relive repair cuts it off\n"
    assert converted(capsys, "journal", "other.parquet") == (1, "", torn)
    assert segments[-1].read_bytes() == whole[:-3]
    segments[-1].write_bytes(whole)
    examples.change_byte(segments[0], 100)
    code, out, error = converted(capsys, "journal", "other.parquet")
    assert (code, out) == (1, "")
    assert "is damaged at byte" in error
    assert not os.path.exists("other.parquet")


FAILED: list[tuple[list[str], str]] = [
    (["nowhere", "steps.parquet"], "nowhere does not exist\n"),
    (["nowhere.parquet", "replay"], "nowhere.parquet does not exist\n"),
    (["here", "steps.parquet"], "here is empty: neither a checkpoint nor a journal\n"),
    (["minari:no/such-v0", "replay"], "dataset 'no/such-v0' not found: `minari download no/such-v0` fetches one"),
    (["saved", "minari:"], "dataset_id must be like 'namespace/name-v0'"),
    (["minari:", "replay"], "dataset '' not found: "),
    (["saved", "minari:nonsense"], "dataset_id must be like 'namespace/name-v0'"),
    (["saved", "nowhere/steps.parquet"], "nowhere/steps.parquet cannot be made: nowhere is not a directory\n"),
    (["old.parquet", "replay", "--capacity", "3"], "--capacity must be at least 10 for 10 steps of 1 stream, got 3\n"),
    (["old.parquet", "nowhere/replay"], "nowhere/replay cannot be made: nowhere is not a directory\n"),
    (["saved", "saved/here/steps.parquet"], "saved/here/steps.parquet cannot be made: "),
    (["here.parquet", "new"], "here.parquet is empty: neither a checkpoint nor a journal\n"),
    (["map", "new.parquet"], "map is a memory map, which holds rows and no buffer: "),
    (["saved", "here.parquet"], "here.parquet exists: name another path, or pass --overwrite\n"),
    (["saved", "a\0.parquet"], "TO must be the path of a file, got 'a\\x00.parquet'\n"),
    (["unknown", "steps.parquet"], "unknown holds no step and no schema: nothing to convert\n"),
    (["unknown", "minari:mine/test-v0"], "unknown holds no step and no schema: nothing to convert"),
    (["rollout", "a.parquet"], "rollout cannot be converted: it is of RolloutBuffer, whose steps are no columns\n"),
    (["episodes", "a.parquet"], "episodes cannot be converted: it is of EpisodeReplayBuffer, whose steps are no "),
    (["own", "a.parquet"], "own cannot be converted: it is of a 'os.system', a class that is not defined here: im"),
    (["begun", "a.parquet"], "begun cannot be converted: it holds no record\n"),
    (["old.parquet", "saved"], "saved exists: name another path, or pass --overwrite\n"),
    (["saved", "old.parquet"], "old.parquet exists: name another path, or pass --overwrite\n"),
    (["saved", "letter.parquet", "--overwrite"], "letter.parquet is not a Parquet file, or was cut: "),
    (
        ["old.parquet", "datasets", "--overwrite"],
        "datasets is a directory, and a checkpoint is a file: name another path\n",
    ),
]


def test_a_failed_conversion_prints_one_line_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    os.mkdir("here")
    os.mkdir("here.parquet")
    os.makedirs("datasets/mine")
    relive.RingReplayBuffer(9).save("unknown")
    relive.RolloutBuffer(9).save("rollout")
    examples.episodes().save("episodes")
    buffer().save("own")
    examples.forge(pathlib.Path("own"), **{"class": "os.system"})
    os.mkdir("begun")
    pathlib.Path(f"begun/segment-{0:020}.relive.new").touch()
    relive.MemmapStorage("map", relive.Schema(relive.Field((), "i8"), relive.Field((), "i8")), 10).close()
    pathlib.Path("letter.parquet").write_text("a letter")
    buffer().save("saved")
    arrow.write_parquet(buffer(), "old.parquet")
    before = pathlib.Path("old.parquet").read_bytes()
    for arguments, message in FAILED:
        with subtests.test(" ".join(arguments)):
            code, out, error = converted(capsys, *arguments)
            assert (code, out) == (1, "")
            assert error.startswith(message), error
            assert error.count("\n") == 1
            assert pathlib.Path("old.parquet").read_bytes() == before
    assert len(relive.PrioritizedReplayBuffer.load("saved")) == 10


CONTRADICTORY = [
    ("saved b", "FROM and TO are both a checkpoint: there is nothing to convert"),
    ("saved run.relive", "FROM and TO are both a checkpoint: there is nothing to convert"),
    ("saved old/", f"TO must be {convert._FORMS} {ENDING}, got 'old/'"),
    ("old b.PARQUET", "FROM and TO are both a Parquet file: there is nothing to convert"),
    ("minari:a-v0 minari:b-v0", "FROM and TO are both a Minari dataset: there is nothing to convert"),
    ("saved a.csv", f"TO must be {convert._FORMS} {ENDING}, got 'a.csv'"),
    ("saved a.npz", f"TO must be {convert._FORMS} {ENDING}, got 'a.npz'"),
    ("nowhere a.prquet", f"TO must be {convert._FORMS} {ENDING}, got 'a.prquet', did you mean .parquet?"),
    ("old run.v2", f"TO must be {convert._FORMS} {ENDING}, got 'run.v2'"),
    ("saved a.parquet --capacity 3", "argument --capacity: not allowed where TO is a Parquet file"),
    ("a a.parquet --capacity 0", "argument --capacity: must be an integer of at least 1, got '0'"),
    ("saved a.parquet --like saved", "argument --like: not allowed where TO is a Parquet file"),
    ("minari:a-v0 a --capacity 9 --like b", "argument --capacity: not allowed with --like"),
    (
        "saved minari:a-v0 --overwrite",
        "argument --overwrite: not allowed where TO is a Minari dataset: delete it with minari delete",
    ),
    ("a", "the following arguments are required: TO"),
    ("a b.parquet --from", "there is no option '--from'"),
]


def test_contradictory_arguments_print_one_line_and_exit_with_2(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    buffer().save("saved")
    arrow.write_parquet(buffer(), "old.parquet")
    os.rename("old.parquet", "old")
    before = sorted(os.listdir())
    for arguments, message in CONTRADICTORY:
        with subtests.test(arguments):
            assert converted(capsys, *arguments.split()) == (2, "", f"{message} (see relive convert --help)\n")
            assert sorted(os.listdir()) == before


@pytest.mark.parametrize("target", ["steps.parquet", "minari:mine/test-v0"])
def test_a_missing_library_is_reported_before_reading(target: str) -> None:
    name, extra = ("pyarrow", "arrow") if target.endswith(".parquet") else ("minari", "minari")
    script = (
        f"import sys; sys.modules[{name!r}] = None; from relive.cli.command_line import main; exit(main(sys.argv[1:]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, "convert", "nowhere", target], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(
        rf'relive convert: {name}\S* is not installed: it comes with the extra "{extra}" of relive\n', ended.stderr
    )


def test_an_interrupted_conversion_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    buffer().save("replay")
    monkeypatch.setattr("relive.persistence.files.fsync_file", interrupted)
    assert converted(capsys, "replay", "steps.parquet") == (130, "", "\nrelive convert: interrupted\n")
    assert sorted(os.listdir()) == [".replay.lock", "replay"]


def test_reading_and_writing_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    class Shown:
        def __init__(self, label: str) -> None:
            self.numbers = told.setdefault(label, [])

        def __enter__(self) -> state.Progress:
            return lambda *numbers: self.numbers.append(numbers)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(terminal, "progress", Shown)
    buffer().save("replay")
    steps = ["replay", "steps.parquet", "minari:mine/test-v0", "again"]
    for source, target in itertools.pairwise(steps):
        told.clear()
        assert converted(capsys, source, target)[0] == 0
        assert list(told) == ["reading", "writing"]
        for numbers in told.values():
            done, total = numbers[-1]
            assert done == total > 0
    os.unlink("replay")
