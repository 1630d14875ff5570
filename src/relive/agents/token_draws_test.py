"""Tests of samplers over token sequences, with a naive twin that keeps a dict of priorities."""

import collections
import copy
import pathlib
import pickle
import random
from typing import Any, ClassVar

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.agents import token_buffer_test
from relive.agents import token_episode_test
from relive.agents import token_journal
from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.persistence import recover_test
from relive.testing import walks
from relive.testing import zoo

step_of = token_episode_test.step_of


def exact(**settings: Any) -> relive.PrioritizedSampler:
    """Return a sampler whose probabilities are exact quotients of sums of small integers."""
    defaults: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "epsilon": 0.0}
    return relive.PrioritizedSampler(**(defaults | settings))


def made(sampler: relive.Sampler | None, max_tokens: int = 300, **settings: Any) -> relive.TokenReplayBuffer:
    return relive.TokenReplayBuffer(max_tokens, sampler=sampler, seed=0, **settings)


def fill(buffer: relive.TokenReplayBuffer, count: int, tokens: int = 2) -> list[int]:
    """Add episodes of one sequence, of the versions 0, 1, .. in this order, and return the keys."""
    keys = []
    for version in range(count):
        step = step_of([1] * (tokens - 1), [2], policy_version=version, reward=version)
        keys += buffer.add_episode([step], agent_id="a").tolist()
    return keys


class Recorder(relive.Sampler):
    """Knows each eligible sequence by its slot, from what it was told alone; with `_attached` or without."""

    def __init__(self, is_prepared_once: bool = False) -> None:
        self.is_prepared_once = is_prepared_once
        self.told: dict[int, int] = {}

    def _attached(self, capacity: int) -> None:
        if not self.is_prepared_once:
            self.told = {}

    def _added(self, slots: arrays_lib.Slots) -> None:
        assert not self.told.keys() & {*slots.tolist()}
        versions = self.anchors.read(slots, ["oldest_version"])["oldest_version"]
        self.told |= dict(zip(slots.tolist(), versions.tolist(), strict=True))

    def _removed(self, slots: arrays_lib.Slots) -> None:
        for slot in slots.tolist():
            del self.told[slot]

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return relive.Draw(rng.choice(sorted(self.told), size), np.full(size, 1 / len(self.told)))


class Newest(relive.Sampler):
    """Draws uniformly among the newest anchors."""

    def __init__(self, window: int) -> None:
        self.window = window

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        slots = self.anchors.slots()
        newest = slots[np.argsort(self.anchors.keys(slots))[-self.window :]]
        return relive.Draw(rng.choice(newest, size), np.full(size, 1 / len(newest)))


class PrioritiesMachine(walks.Machine):
    """A buffer with priorities, and a dict of priorities of its sequences.

    One without a token to be trained on is never drawn. Until it is rated its priority is that of a new one, as for a
    step of a column buffer that cannot be drawn yet.
    """

    often: ClassVar = {"add": 4, "rate": 3, "draw": 3}
    least: ClassVar = {
        "a key that left is rated": 50,
        "a key is rated twice at once": 15,
        "nothing to draw": 20,
        "a draw within a lag leaves some out": 20,
        "a sequence never drawn": 50,
    }

    @walks.initialize(max_tokens=walks.sampled_from([12, 90]))
    def start(self, max_tokens: int) -> None:
        self.buffer = made(exact(stratified=False), max_tokens)
        self.priorities: dict[int, float | None] = {}
        self.versions: dict[int, int] = {}
        self.largest, self.stale = 1.0, 0

    @walks.rule(steps=token_buffer_test.some_steps)
    def add(self, steps: list[relive.TokenStep]) -> None:
        try:
            keys = self.buffer.add_episode(steps, agent_id="a")
        except errors.ArgumentError:
            return
        batch = self.buffer.read(keys)
        for key, mask, versions in zip(keys.tolist(), batch.loss_mask, batch.policy_versions, strict=True):
            self.priorities[key] = self.largest if mask.any() else None
            self.reached["a sequence never drawn"] += not mask.any()
            if mask.any():
                self.versions[key] = min(versions[mask].tolist())
        self._forget_evicted()

    def _forget_evicted(self) -> None:
        first = self.buffer.get_stats().appended - self.buffer.get_stats().sequences
        for named in (self.priorities, self.versions):
            for key in [key for key in named if key < first]:
                del named[key]

    @walks.rule(data=walks.generator)
    def rate(self, data: random.Random) -> None:
        appended = self.buffer.get_stats().appended
        keys = [data.randrange(appended) for _ in range(data.randint(0, 4))] if appended else []
        given_ = [data.randint(0, 5) for _ in keys]
        alive = [key for key in keys if key in self.priorities]
        assert self.buffer.update_priorities(keys, given_) == len(alive)
        self.stale += len(keys) - len(alive)
        self.reached["a key that left is rated"] += len(keys) - len(alive)
        self.reached["a key is rated twice at once"] += len(set(alive)) < len(alive)
        last = {key: float(priority) for key, priority in zip(keys, given_, strict=True) if key in self.priorities}
        self.priorities |= last
        self.largest = max([self.largest, *last.values()])

    @walks.rule(size=walks.integers(1, 9), lag=walks.maybe(walks.integers(0, 4)), version=walks.integers(0, 3))
    def draw(self, size: int, lag: int | None, version: int) -> None:
        self.buffer.set_policy_version(max(version, self.buffer.policy_version or 0))
        oldest = -1 if lag is None else (self.buffer.policy_version or 0) - lag
        drawable = {key: self.priorities[key] or 0.0 for key in self.versions if self.versions[key] >= oldest}
        self.reached["a draw within a lag leaves some out"] += 0 < len(drawable) < len(self.versions)
        total = sum(drawable.values())
        if not total:
            self.reached["nothing to draw"] += 1
            with pytest.raises(errors.NotReadyError):
                self.buffer.sample(size, max_lag=lag)
            return
        batch = self.buffer.sample(size, max_lag=lag)
        shares = [drawable[key] / total for key in batch.keys.tolist()]
        assert batch.probabilities.tolist() == shares
        assert min(shares) > 0
        relative = len(drawable) * np.array(shares) / (len(drawable) * min(shares))
        assert np.allclose(batch.weights, relative**-1.0, 1e-12, 0)

    @walks.rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.priorities.clear()
        self.versions.clear()

    @walks.rule(how=walks.sampled_from([copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]))
    def copy(self, how: Any) -> None:
        self.buffer = how(self.buffer)

    @walks.rule()
    def load(self) -> None:
        state = self.buffer.state_dict()
        self.buffer = relive.TokenReplayBuffer.from_state(state)
        other, sampler = made(exact(stratified=False), self.buffer.capacity), None
        sampler = other.sampler
        other.load_state_dict(state)
        assert other.sampler is sampler
        other.check()

    @walks.invariant(every=5)
    def agrees(self) -> None:
        self.buffer.check()
        keys = list(self.priorities)
        assert self.buffer.get_priorities(keys).tolist() == [
            self.largest if priority is None else priority for priority in self.priorities.values()
        ]
        assert self.buffer.eligible_keys().tolist() == list(self.versions)
        assert self.buffer.get_stats().stale_keys == self.stale
        drawable = {key: self.priorities[key] or 0.0 for key in self.versions}
        total = sum(drawable.values())
        assert self.buffer.can_sample(3) == bool(total)
        if keys:
            shares = [drawable.get(key, 0.0) / (total or 1.0) for key in keys]
            assert self.buffer.read(keys).probabilities.tolist() == shares


TestPriorities = walks.tests_of(PrioritiesMachine)


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("lag", [None, 12])
def test_sequences_are_drawn_as_often_as_their_priority(stratified: bool, lag: int | None) -> None:
    buffer = made(exact(stratified=stratified))
    keys = fill(buffer, 20)
    buffer.set_policy_version(20)
    buffer.update_priorities(keys, [key % 5 for key in keys])
    drawable = [key for key in keys if key % 5 and (lag is None or key >= 20 - lag)]
    total = sum(key % 5 for key in drawable)
    counts = collections.Counter[int]()
    for _ in range(300):
        counts.update(buffer.sample(20, max_lag=lag).keys.tolist())
    assert counts.keys() <= {*drawable}
    testing.assert_frequencies([counts[key] for key in drawable], [key % 5 / total for key in drawable])


@pytest.mark.parametrize("sampler", [None, relive.UniformSampler()])
def test_uniform_draws_have_a_share_each_and_weights_of_one(sampler: relive.Sampler | None) -> None:
    buffer = made(sampler)
    keys = fill(buffer, 20)
    untrained = buffer.add_episode([step_of([1], [2], loss_mask=[False], policy_version=0)], agent_id="a")
    buffer.set_policy_version(20)
    for lag, count in ((None, 20), (5, 5)):
        batch = buffer.sample(9, max_lag=lag)
        assert (batch.probabilities.tolist(), batch.weights.tolist()) == ([1 / count] * 9, [1.0] * 9)
    batch = buffer.read([*untrained, keys[0]])
    assert (batch.probabilities.tolist(), batch.weights.tolist()) == ([0.0, 1 / 20], [1.0, 1.0])
    counts = np.zeros(20, np.int64)
    for _ in range(300):
        np.add.at(counts, buffer.sample(20).keys, 1)
    testing.assert_frequencies(counts.tolist(), [1 / 20] * 20)


def test_weights_are_those_of_a_column_buffer() -> None:
    for normalization in ("batch", "buffer", "none"):
        settings: Any = {"alpha": 0.6, "beta": 0.4, "weight_normalization": normalization}
        buffer = made(exact(**settings))
        columns = relive.PrioritizedReplayBuffer(20, epsilon=0.0, seed=0, **settings)
        keys = columns.add_episode(range(11), range(10), range(10), terminated=True)
        assert fill(buffer, 10) == keys.tolist()
        for each in (buffer, columns):
            assert each.update_priorities(keys, keys + 1.0) == 10
        ours, theirs = buffer.read(keys), columns.read(keys)
        assert ours.probabilities.tolist() == pytest.approx(theirs.probabilities.tolist(), rel=1e-12)
        assert ours.weights.tolist() == pytest.approx(theirs.weights.tolist(), rel=1e-12)
        assert buffer.sample(30, beta=0.0).weights.tolist() == [1.0] * 30


def test_weights_of_priorities_that_are_far_apart_are_finite() -> None:
    buffer = made(exact(alpha=1.0, beta=0.25, weight_normalization="buffer"))
    keys = fill(buffer, 3)
    buffer.update_priorities(keys, [1e-200, 1.0, 1e200])
    assert buffer.read(keys).weights.tolist() == pytest.approx([1.0, 1e-50, 1e-100], rel=1e-12)
    assert set(buffer.sample(4).weights.tolist()) == {buffer.read(keys[2:]).weights.item()}


def test_the_newest_are_drawn_from_columns_and_tokens_alike() -> None:
    buffer, columns = made(Newest(3), 60), relive.RingReplayBuffer(30, sampler=Newest(3), seed=0)
    fill(buffer, 100)
    columns.add_episode(range(31), range(30), [0.0] * 30, terminated=True)
    for each, newest in ((buffer, 99), (columns, 29)):
        batch = each.sample(200)
        assert {*batch.keys.tolist()} == {newest - 2, newest - 1, newest}
        assert batch.probabilities.tolist() == [1 / 3] * 200
    buffer.set_policy_version(100)
    assert {*buffer.sample(50, max_lag=2).keys.tolist()} == {98, 99}


@pytest.mark.parametrize("is_prepared_once", [False, True])
@hypothesis.given(st.lists(st.sampled_from(["one", "long", "untrained", "sample", "clear"]), max_size=60))
@hypothesis.settings(max_examples=30, deadline=None)
def test_hooks_tell_of_every_sequence_once(is_prepared_once: bool, calls: list[str]) -> None:
    sampler = Recorder(is_prepared_once)
    buffer = made(sampler, 60)
    for number, call in enumerate(["one"] * 9 + calls):
        buffer.set_policy_version(number)
        if call == "clear":
            buffer.clear()
        elif call == "sample" and len(buffer.eligible_keys(max_lag=7)):
            keys = buffer.sample(3, max_lag=7).keys
            assert np.isin(keys, buffer.eligible_keys(max_lag=7)).all()
        elif call != "sample":
            steps = [step_of([1], [2], loss_mask=[call != "untrained"], policy_version=number)]
            buffer.add_episode(steps * (12 if call == "long" else 1), agent_id="a")
        keys = buffer.eligible_keys()
        versions = sampler.anchors.read(keys % sampler.anchors.capacity, ["oldest_version"])["oldest_version"]
        assert sampler.told == dict(zip((keys % sampler.anchors.capacity).tolist(), versions.tolist(), strict=True))
        buffer.check()


@pytest.mark.parametrize("is_prepared_once", [False, True])
def test_hooks_are_told_of_evictions_that_come_with_growth(is_prepared_once: bool) -> None:
    sampler = Recorder(is_prepared_once)
    buffer = made(sampler, 20)
    fill(buffer, 8)
    buffer.add_episode([step_of([1], [2], policy_version=9)] * 9, agent_id="a")
    assert buffer.eligible_keys().tolist() == list(range(7, 17))
    assert sampler.anchors.capacity == 20
    assert sampler.told == {7: 7, **dict.fromkeys(range(8, 17), 9)}


def test_growth_is_as_if_saved_and_loaded() -> None:
    buffer = made(exact(beta=relive.LinearSchedule(0.0, 1.0, 9)))
    fill(buffer, 8)
    buffer.update_priorities([3, 4], [0.25, 7.0])
    buffer.sample(2)
    sampler, before = buffer.sampler, buffer.get_priorities(range(8)).tolist()
    assert isinstance(sampler, relive.PrioritizedSampler)
    fill(buffer, 1)
    assert sampler is buffer.sampler
    assert sampler.anchors.capacity == 18
    assert buffer.get_priorities(range(9)).tolist() == [*before, 7.0]
    assert sampler.beta == 1 / 9
    assert buffer.add_episode([step_of([1], [2])] * 99, agent_id="a").tolist() == list(range(9, 108))
    buffer.check()


def test_slots_are_few_and_do_not_shrink() -> None:
    buffer = made(exact(), 10**7)
    fill(buffer, 100)
    assert buffer.sampler is not None
    assert buffer.sampler.anchors.capacity < 200
    buffer.clear()
    loaded = relive.TokenReplayBuffer.from_state(buffer.state_dict())
    fill(loaded, 1)
    assert loaded.sampler is not None
    assert loaded.sampler.anchors.capacity == buffer.sampler.anchors.capacity


def test_a_sampler_reads_what_is_stored_of_sequences() -> None:
    buffer = made(relive.UniformSampler(), sequence_extras={"temperature": relive.Field((), float)})
    sampler = buffer.sampler
    assert sampler is not None
    with pytest.raises(errors.NotReadyError, match="^read has no sequence yet: add an episode first$"):
        sampler.anchors.read(np.array([0]))
    buffer.add_episode([step_of([1], [2], reward=3.0, policy_version=4)], agent_id="a", temperature=0.5)
    read = {name: column.tolist() for name, column in sampler.anchors.read(np.array([0])).items()}
    sharing = {"parents": [-1], "shared": [0]}
    counts = {"returns": [3.0], "is_exact": [True], "trained": [1], "oldest_version": [4], "temperature": [0.5]}
    assert read == counts | sharing
    with pytest.raises(errors.ArgumentError, match="^fields must be among returns, .*, got 'reward'$"):
        sampler.anchors.read(np.array([0]), ["reward"])
    with pytest.raises(errors.UnknownKeyError, match="^key 1 not found"):
        sampler.anchors.read(np.array([1]))


def test_wrong_samplers_and_priorities_are_refused() -> None:
    buffer = made(exact())
    keys = fill(buffer, 3)
    with pytest.raises(errors.ArgumentError, match="^sampler must belong to one buffer alone"):
        made(buffer.sampler)
    wrong: Any = "uniform"
    with pytest.raises(errors.ArgumentTypeError, match="^sampler must be an instance of Sampler, got 'uniform'$"):
        made(wrong)
    for priority in (-1.0, np.nan, np.inf):
        rule = f"priority of row 1 must be a finite number of at least 0, got {priority}"
        with pytest.raises(errors.ArgumentError, match=f"^{rule}$"):
            buffer.update_priorities(keys[:2], [5.0, priority])
    with pytest.raises(errors.ArgumentError, match="^keys must be those of batches, below 3, the number of sequences"):
        buffer.update_priorities([0, 3], [5.0, 5.0])
    with pytest.raises(errors.UnknownKeyError, match="^key 3 not found"):
        buffer.get_priorities([3])
    with pytest.raises(errors.ArgumentError, match="^beta must be at least 0, got -1$"):
        buffer.sample(1, beta=-1)
    assert buffer.get_priorities(keys).tolist() == [1.0] * 3
    for name, other in (("None", made(None)), ("UniformSampler", made(relive.UniformSampler()))):
        fill(other, 1)
        for call in (lambda: other.update_priorities([0], [1.0]), lambda: other.get_priorities([0])):  # noqa: B023
            with pytest.raises(errors.ArgumentError, match=f"_priorities needs a PrioritizedSampler, got {name}$"):
                call()
        with pytest.raises(errors.ArgumentError, match="^beta must be left out without priorities, got 0.5$"):
            other.sample(1, beta=0.5)


def test_a_draw_that_fails_leaves_no_trace() -> None:
    class Astray(relive.Sampler):
        def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
            return relive.Draw(rng.integers(5, 8, size), np.ones(size))

    buffer = made(Astray())
    fill(buffer, 3)
    buffer.set_policy_version(3)
    state = copy.deepcopy(buffer.rng.bit_generator.state)
    with pytest.raises(errors.SamplerError, match="^_draw must return eligible anchors, got slot"):
        buffer.sample(2, max_lag=1)
    assert buffer.rng.bit_generator.state == state
    assert buffer.get_stats().sampled == 0
    assert buffer.sampler is not None
    assert len(buffer.sampler.anchors) == 3
    buffer.check()


def test_a_draw_that_cannot_be_read_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, twin = (made(relive.PrioritizedSampler(beta=relive.LinearSchedule(0.0, 1.0, 4))) for _ in range(2))
    for each in (buffer, twin):
        each.update_priorities(fill(each, 3), [1, 2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(buffer, "_read", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            buffer.sample(2)
    for _ in range(3):
        assert buffer.sample(4).weights.tolist() == twin.sample(4).weights.tolist()


def test_a_buffer_is_saved_and_loaded_with_its_priorities(tmp_path: pathlib.Path) -> None:
    buffer = zoo.worked(zoo.KINDS["tokens with priorities"].make)
    buffer.save(tmp_path / "saved")
    zoo.assert_same(relive.load(tmp_path / "saved"), buffer)
    state = buffer.state_dict()
    with pytest.raises(errors.CheckpointError, match="^settings/sampler must be"):
        made(relive.UniformSampler(), 150).load_state_dict(state)
    with pytest.raises(errors.CheckpointError, match="^sampler is missing$"):
        relive.TokenReplayBuffer.from_state(made(None).state_dict(), sampler=exact())
    for slots in (buffer.get_stats().sequences - 1, 301, 8.0):
        state["sampler"]["slots"] = slots
        with pytest.raises(errors.CheckpointError, match=r"^sampler/slots must be an integer in \["):
            relive.TokenReplayBuffer.from_state(state)


def test_check_finds_anchors_that_are_no_sequences() -> None:
    buffer = made(exact())
    fill(buffer, 3)
    assert buffer.sampler is not None
    buffer.sampler.anchors.flags[1] = append.BARRED | append.READABLE
    with pytest.raises(errors.CorruptionError, match="^the anchors must be the sequences with a token to train on$"):
        buffer.check()


@pytest.mark.parametrize("priorities", [True, False])
def test_priorities_are_recovered_where_they_are_journaled(tmp_path: pathlib.Path, priorities: bool) -> None:
    buffer = made(exact())
    with relive.Journal(tmp_path / "log") as journal:
        buffer.attach(journal, priorities=priorities)
        keys = fill(buffer, 20)
        buffer.update_priorities([*keys, 3], [*keys, 9.0])
        with pytest.raises(errors.ArgumentError, match="^priority of row 0 must be smaller"):
            buffer.update_priorities([0], [1e308])
        fill(buffer, 1)
    recovered: Any = relive.recover(tmp_path / "log")
    recovered.check()
    expected = buffer.get_priorities(range(21)).tolist() if priorities else [1.0] * 21
    assert recovered.get_priorities(range(21)).tolist() == expected
    assert recover_test.content(recovered) == recover_test.content(buffer)


def test_priorities_of_rows_that_left_count_for_new_ones(tmp_path: pathlib.Path) -> None:
    """The journal has their priorities, but no longer the sequences."""
    buffer = made(exact())
    with relive.Journal(tmp_path / "log") as journal:
        buffer.attach(journal)
        fill(buffer, 1)
        buffer._journal.write(token_journal.PRIORITIES, np.array([5, 5]), np.array([99.0, 9.0]))
    recovered: Any = relive.recover(tmp_path / "log")
    assert recovered.get_priorities(fill(recovered, 1)).tolist() == [9.0]


def test_priorities_are_journaled_only_where_there_are_any(tmp_path: pathlib.Path) -> None:
    rule = "^attach with priorities=True needs a PrioritizedSampler, got None$"
    with relive.Journal(tmp_path / "log") as journal, pytest.raises(errors.ArgumentError, match=rule):
        made(None).attach(journal, priorities=True)


@pytest.mark.parametrize(
    ("sampler", "keys", "priorities", "text"),
    [
        (exact(), np.zeros(1), np.ones(1), "sets priorities of something that is not a sequence$"),
        (exact(), np.zeros(1, np.int64), np.ones(1, np.float32), "sets priorities of something that is not"),
        (exact(), np.zeros(1, np.int64), np.ones(2), "sets priorities of something that is not a sequence$"),
        (exact(), np.zeros((), np.int64), np.ones(()), "sets priorities of something that is not a sequence$"),
        (exact(), np.zeros((1, 1), np.int64), np.ones((1, 1)), "sets priorities of something that is not"),
        (
            exact(),
            np.zeros(1, np.int64),
            -np.ones(1),
            "sets invalid priorities: priority of row 0 must be a fin",
        ),
        (None, np.zeros(1, np.int64), np.ones(1), "sets invalid priorities: a journal of priorities needs"),
    ],
)
def test_forged_records_of_priorities_are_refused(
    sampler: Any, keys: Any, priorities: Any, text: str, tmp_path: pathlib.Path
) -> None:
    buffer = made(copy.deepcopy(sampler))
    with relive.Journal(tmp_path / "log") as journal:
        buffer.attach(journal)
        fill(buffer, 1)
        buffer._journal.write(token_journal.PRIORITIES, keys, priorities)
    with pytest.raises(errors.CheckpointError, match=text):
        relive.recover(tmp_path / "log")
