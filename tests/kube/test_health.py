"""Tests of the health of a cluster: what counts as silence, and when the cluster must prove its identity."""

import pytest
from scripted import access_to

from tensile.errors import Unreachable
from tensile.kube.health import AccessProblem, ClusterIdentity, Health, SharedCluster, WrongCluster


def test_a_cluster_is_unreachable_until_its_first_response() -> None:
    """Before that, the time since the start counts and is never negative; a response clears the error."""
    health = Health(100.0)
    assert (health.unreachable_for(130.0), health.unreachable_for(90.0)) == (30.0, 0.0)
    assert (health.last_contact, health.error) == (None, "not contacted yet")
    health.record_failure(110.0, "refused")
    health.record_response(120.0)
    assert (health.unreachable_for(500.0), health.error, health.last_contact) == (0.0, "", 120.0)


def test_unreachable_time_counts_from_the_first_failure() -> None:
    """Later failures only replace the error, and time without requests before does not count."""
    health = Health(0.0)
    health.record_response(10.0)
    health.record_failure(400.0, "first")
    health.record_failure(420.0, "second")
    assert health.unreachable_for(440.0) == 40.0
    assert health.error == "second"
    assert health.last_contact == 10.0


def test_a_wrong_cluster_counts_as_unreachable_until_the_right_one_responds() -> None:
    """Responses of the wrong cluster do not end the silence."""
    health = Health(0.0)
    health.record_response(1.0)
    health.record_wrong_cluster(10.0, "another")
    health.record_response(20.0)
    assert health.wrong
    assert health.unreachable_for(30.0) == 20.0
    assert health.error == "another"
    health.record_accepted(40.0)
    assert not health.wrong
    assert health.unreachable_for(50.0) == 0.0


def test_a_cluster_that_rejects_the_credential_is_unreachable_until_it_accepts_one() -> None:
    """Events of an older watch are contact, but do not show that requests succeed."""
    health = Health(0.0)
    health.record_response(1.0)
    health.record_rejection(10.0, "credential")
    health.record_event(20.0)
    assert health.is_locked_out
    assert (health.unreachable_for(30.0), health.error, health.last_contact) == (20.0, "credential", 20.0)
    health.record_response(40.0)
    assert not health.is_locked_out
    assert (health.unreachable_for(50.0), health.error) == (0.0, "")


def test_a_watch_event_does_not_end_silence_while_no_connection_can_be_opened() -> None:
    """An apiserver that shuts down serves its open watches for a while.

    If the last failure was a slow response, a watch event ends the silence.
    """
    health = Health(0.0)
    health.record_response(1.0)
    health.record_failure(10.0, "refused", unconnected=True)
    health.record_event(20.0)
    assert (health.unreachable_for(30.0), health.error, health.last_contact) == (20.0, "refused", 20.0)
    health.record_failure(31.0, "slow")
    health.record_event(32.0)
    assert health.unreachable_for(33.0) == 0.0
    health.record_failure(40.0, "refused", unconnected=True)
    health.record_response(41.0)
    assert (health.unreachable_for(42.0), health.error) == (0.0, "")


def test_a_watch_event_ends_silence_unless_a_wrong_cluster_responds() -> None:
    """After a lost connection, an event is as good as a response."""
    health = Health(0.0)
    health.record_failure(5.0, "lost")
    health.record_event(6.0)
    assert health.unreachable_for(9.0) == 0.0
    health.record_wrong_cluster(10.0, "another")
    health.record_event(11.0)
    assert health.unreachable_for(20.0) == 10.0


def test_a_shared_cluster_is_wrong_and_marked_as_shared() -> None:
    """The mark is removed if the cluster is refused for another reason or accepted."""
    health = Health(0.0)
    health.record_wrong_cluster(1.0, "the same", shared=True)
    assert (health.wrong, health.shared) == (True, True)
    health.record_wrong_cluster(2.0, "another")
    assert (health.wrong, health.shared) == (True, False)
    health.record_wrong_cluster(3.0, "the same", shared=True)
    health.record_accepted(4.0)
    assert (health.wrong, health.shared) == (False, False)


def test_wrong_cluster_is_an_unreachable_error() -> None:
    """Code that waits for a cluster to respond again then also waits for the right cluster."""
    error = WrongCluster("words", cluster="a", doing="read x")
    assert isinstance(error, Unreachable)
    assert str(error) == "a: read x: refused: words"


def test_a_changed_access_restarts_the_time_of_its_use_but_not_the_silence() -> None:
    """No response was received with the new access, so the silence continues."""
    health = Health(100.0)
    assert health.tried_for(130.0) == 30.0
    health.record_failure(140.0, "no answer")
    health.record_access_change(200.0)
    assert (health.tried_for(205.0), health.unreachable_for(205.0)) == (5.0, 105.0)
    health.record_response(206.0)
    assert health.tried_for(210.0) == 10.0


def identity(pin: str = "", taken: str = "") -> tuple[ClusterIdentity, Health]:
    """Return the identity of lower `a` and its health; the cluster with the UID `taken` has another name already."""
    health = Health(0.0)
    problem = AccessProblem("the same cluster as lower b")
    found = ClusterIdentity(
        "a", health, pin=pin, admit=lambda uid: problem if uid == taken else None, clock=lambda: 1.0
    )
    return found, health


def test_any_server_certificate_is_accepted_until_the_cluster_is_pinned() -> None:
    """Afterwards only servers are accepted whose certificates were used when the identity was proved."""
    found, _ = identity()
    assert (found.in_doubt, found.is_proven(b"one")) == (False, True)
    found.verify("u", b"one", access_to(1), is_current=True)
    assert (found.pin, found.is_proven(b"one"), found.is_proven(b"other")) == ("u", True, False)


def test_an_identity_read_with_an_old_access_leaves_the_cluster_in_doubt() -> None:
    """The access changed during the request, so the cluster must prove its identity with the new one."""
    found, _ = identity("u")
    assert found.in_doubt
    found.verify("u", b"one", access_to(1), is_current=False)
    assert found.in_doubt
    found.verify("u", b"one", access_to(1), is_current=True)
    assert not found.in_doubt


def test_a_different_cluster_removes_all_trusted_server_certificates() -> None:
    """Each server must prove again that it belongs to the pinned cluster."""
    found, health = identity("u")
    found.verify("u", b"one", access_to(1), is_current=True)
    with pytest.raises(WrongCluster, match="a different cluster responds"):
        found.verify("v", b"one", access_to(1), is_current=True)
    assert (found.pin, found.in_doubt, found.is_proven(b"one"), health.wrong) == ("u", True, False, True)


def test_a_refused_cluster_stays_in_doubt_until_a_cluster_is_accepted() -> None:
    """This applies also if no identity is pinned, and a lost connection does not change it."""
    found, health = identity(taken="u")
    with pytest.raises(SharedCluster, match="lower b"):
        found.verify("u", b"one", access_to(1), is_current=True)
    found.require_proof()
    assert (found.pin, found.in_doubt, health.shared) == ("", True, True)
    found.verify("v", b"one", access_to(1), is_current=True)
    assert (found.pin, found.in_doubt, health.wrong) == ("v", False, False)


def test_health_knows_whether_our_credential_was_rejected_until_the_next_error() -> None:
    """A user only has to renew our own credential, and not that of the cluster; a response clears it too."""
    health = Health(0.0)
    health.record_rejection(1.0, "Unauthorized", ours=True)
    assert (health.is_locked_out, health.rejected) == (True, True)
    health.record_failure(2.0, "refused")
    assert (health.is_locked_out, health.rejected) == (True, False)
    health.record_rejection(3.0, "an untrusted certificate")
    assert (health.is_locked_out, health.rejected) == (True, False)
    health.record_rejection(4.0, "Unauthorized", ours=True)
    health.record_response(5.0)
    assert (health.is_locked_out, health.rejected) == (False, False)
