"""Sessions: which batches are known, which leases have run out, and what a new process learns from notes."""

import pytest

import relive
from relive.fleet import sessions as sessions_lib


def test_the_batches_a_writer_waits_for_are_known() -> None:
    session = sessions_lib.Session(0.0, seen={3: 0, 5: 2}, refusals={5: ValueError()})
    assert [session.has(number) for number in range(7)] == [False] * 3 + [True, False, True, False]
    session.acknowledge(5)
    assert [session.has(number) for number in range(7)] == [True] * 4 + [True, True, False]
    assert (session.seen, list(session.refusals)) == ({5: 2}, [5])
    session.acknowledge(2)
    assert session.oldest == 5
    session.acknowledge(6)
    assert (session.seen, session.refusals) == ({}, {})


def test_a_lease_expires_and_is_renewed_until_it_is_closed() -> None:
    sessions = sessions_lib.Sessions(10.0)
    first, second = sessions.renew(b"w", 0.0), sessions.renew(b"v", 5.0)
    assert (sessions.num_leases, sessions.silent(10.0)) == (2, {})
    assert sessions.silent(10.5) == {b"w": first}
    first.has_lease = False
    assert (sessions.num_leases, sessions.silent(100.0)) == (1, {b"v": second})
    assert sessions.renew(b"w", 11.0) is first
    assert sessions.silent(20.0) == {b"v": second}


def test_the_newest_sessions_are_known_after_any_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_lib, "_MOST", 3)
    sessions = sessions_lib.Sessions(10.0)
    first, second = sessions.renew(b"a", 0.0), sessions.renew(b"b", 0.0)
    first.has_lease = second.has_lease = False
    for name in (b"a", b"c"):
        sessions.renew(name, 1e9).has_lease = False
    sessions.renew(b"d", 2e9)
    assert sessions.renew(b"a", 3e9) is first
    assert sessions.renew(b"b", 3e9) is not second
    for name in (b"e", b"f", b"g"):
        sessions.renew(name, 3e9)
    assert sessions.num_leases == 6  # Those that hold a lease are not forgotten.


def test_a_new_process_knows_what_the_notes_say() -> None:
    old, new = sessions_lib.Sessions(1.0), sessions_lib.Sessions(1.0)
    old.lost = 7
    for writer in (b"w", b"v"):
        for number, oldest in ((0, 0), (3, 0), (4, 3)):
            session = old.renew(writer, 0.0)
            session.acknowledge(oldest)
            session.seen[number] = number
            new.learn(old.note([writer], number), 9.0)
    newest = sessions_lib.Sessions(1.0)
    newest.learn(old.note(), 9.0)
    for each in (new, newest):
        assert (each.lost, each.num_leases) == (7, 0)
        for writer in (b"w", b"v"):
            session = each.renew(writer, 9.0)
            assert (session.oldest, session.seen) == (3, {3: 3, 4: 4})


@pytest.mark.parametrize("value", [3, (0, [1]), (0, [(b"w", 0, 5)]), ("a", []), (0, [(b"w", "a", {})])])
def test_a_note_that_is_not_of_a_shard_is_refused(value: object) -> None:
    with pytest.raises(relive.CheckpointError, match="^has a note that is not of a shard: "):
        sessions_lib.Sessions(1.0).learn(relive.PlainCodec().encode(value), 0.0)
