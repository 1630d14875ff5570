"""Sessions: leases, and names that nothing more is stored under."""

from relive.fleet import sessions

W, V = b"w" * 16, b"v" * 16


def test_a_new_session_goes_on_after_the_acknowledged_batch() -> None:
    session = sessions.Session(0.0)
    session.acknowledge(57)
    assert session.next == 57
    session.acknowledge(3)
    assert session.next == 57


def test_refusals_are_known_until_they_were_acknowledged() -> None:
    session = sessions.Session(0.0)
    session.refusals = {3: (1, None), 4: (2, None)}
    session.acknowledge(4)
    assert session.refusals == {4: (2, None)}


def test_a_lease_expires_and_is_renewed_until_it_is_closed() -> None:
    found = sessions.Sessions(lease=10.0, memory=100.0, names=[])
    session = found.renew(W, 0.0)
    found.renew(V, 0.0)
    assert found.num_leases == 2
    assert found.silent(10.0) == {}
    found.renew(V, 10.0)
    assert found.silent(10.5) == {W: session}
    session.has_lease = False
    assert found.silent(10.5) == {}
    assert found.num_leases == 1
    assert found.renew(W, 10.5) is session
    assert session.has_lease
    session.close()
    assert not found.renew(W, 10.5).has_lease
    assert found.num_leases == 1


def test_sent_batches_are_known_longer_than_a_lease() -> None:
    found = sessions.Sessions(lease=10.0, memory=100.0, names=[W])
    found.renew(V, 0.0).next = 7
    # The last call of those of an earlier incarnation is unknown: they count from the first look.
    assert found.forget(50.0) == []
    assert found.forget(110.0) == []
    assert found.renew(V, 110.0).next == 7
    assert found.forget(165.0) == [W]
    assert found.forget(225.0) == [V]
    assert found.renew(V, 225.0).next == 0
    assert found.forget(225.0) == []
