"""What counts as silence of a cluster, and when it has to prove which one it is."""

import pytest
from scripted import access_to

from tensile.errors import Unreachable
from tensile.kube.health import AccessProblem, ClusterIdentity, Health, SharedCluster, WrongCluster


def test_a_cluster_is_silent_until_its_first_answer() -> None:
    """Before that the time since the beginning counts, never below zero; contact clears trouble and is remembered."""
    health = Health(100.0)
    assert (health.unreachable_for(130.0), health.unreachable_for(90.0)) == (30.0, 0.0)
    assert (health.last_contact, health.error) == (None, "not contacted yet")
    health.silence(110.0, "refused")
    health.contact(120.0)
    assert (health.unreachable_for(500.0), health.error, health.last_contact) == (0.0, "", 120.0)


def test_silence_counts_from_the_first_failure() -> None:
    """More failures do not begin it anew, the last one's words are shown, and quiet before was no silence."""
    health = Health(0.0)
    health.contact(10.0)
    health.silence(400.0, "first")
    health.silence(420.0, "second")
    assert health.unreachable_for(440.0) == 40.0
    assert health.error == "second"
    assert health.last_contact == 10.0


def test_another_cluster_in_its_place_is_silence_until_it_is_back() -> None:
    """Answers of the wrong cluster end nothing."""
    health = Health(0.0)
    health.contact(1.0)
    health.refuse(10.0, "another")
    health.contact(20.0)
    assert health.wrong
    assert health.unreachable_for(30.0) == 20.0
    assert health.error == "another"
    health.accept(40.0)
    assert not health.wrong
    assert health.unreachable_for(50.0) == 0.0


def test_a_cluster_that_shuts_us_out_is_silent_until_it_accepts_us() -> None:
    """What an old watch goes on telling shows that it is there, and not that anything can be done there."""
    health = Health(0.0)
    health.contact(1.0)
    health.shut(10.0, "credential")
    health.hear(20.0)
    assert health.shut_out
    assert (health.unreachable_for(30.0), health.error, health.last_contact) == (20.0, "credential", 20.0)
    health.contact(40.0)
    assert not health.shut_out
    assert (health.unreachable_for(50.0), health.error) == (0.0, "")


def test_a_cluster_without_new_connections_is_silent_until_it_responds() -> None:
    """An apiserver that shuts down serves its open watches for a while. A slow one responds with them."""
    health = Health(0.0)
    health.contact(1.0)
    health.silence(10.0, "refused", unconnected=True)
    health.hear(20.0)
    assert (health.unreachable_for(30.0), health.error, health.last_contact) == (20.0, "refused", 20.0)
    health.silence(31.0, "slow")
    health.hear(32.0)
    assert health.unreachable_for(33.0) == 0.0
    health.silence(40.0, "refused", unconnected=True)
    health.contact(41.0)
    assert (health.unreachable_for(42.0), health.error) == (0.0, "")


def test_a_word_of_a_watch_ends_other_silence() -> None:
    """An event is as good as an answer after a lost connection, and not while another cluster answers."""
    health = Health(0.0)
    health.silence(5.0, "lost")
    health.hear(6.0)
    assert health.unreachable_for(9.0) == 0.0
    health.refuse(10.0, "another")
    health.hear(11.0)
    assert health.unreachable_for(20.0) == 10.0


def test_a_cluster_that_goes_by_another_name_is_wrong_in_a_way_of_its_own() -> None:
    """What is refused for another reason next, or accepted, is not shared any more."""
    health = Health(0.0)
    health.refuse(1.0, "the same", shared=True)
    assert (health.wrong, health.shared) == (True, True)
    health.refuse(2.0, "another")
    assert (health.wrong, health.shared) == (True, False)
    health.refuse(3.0, "the same", shared=True)
    health.accept(4.0)
    assert (health.wrong, health.shared) == (False, False)


def test_a_wrong_cluster_is_treated_like_one_that_is_away() -> None:
    """What waits for a cluster to come back waits for the right one, too."""
    error = WrongCluster("words", cluster="a", doing="read x")
    assert isinstance(error, Unreachable)
    assert str(error) == "a: read x: refused: words"


def test_another_way_there_is_as_good_as_untried() -> None:
    """The silence goes on, since nobody has answered; how long that way was gone counts from when it was taken."""
    health = Health(100.0)
    assert health.tried_for(130.0) == 30.0
    health.silence(140.0, "no answer")
    health.turn(200.0)
    assert (health.tried_for(205.0), health.unreachable_for(205.0)) == (5.0, 105.0)
    health.contact(206.0)
    assert health.tried_for(210.0) == 10.0


def identity(pin: str = "", taken: str = "") -> tuple[ClusterIdentity, Health]:
    """Return the identity of lower `a`, and its health; the cluster with the UID `taken` has another name already."""
    health = Health(0.0)
    problem = AccessProblem("the same cluster as lower b")
    found = ClusterIdentity(
        "a", health, pin=pin, admit=lambda uid: problem if uid == taken else None, clock=lambda: 1.0
    )
    return found, health


def test_until_a_cluster_is_pinned_any_server_is_its_own() -> None:
    """From the proof on, only servers whose certificates were shown with that identity are."""
    found, _ = identity()
    assert (found.in_doubt, found.vouches(b"one")) == (False, True)
    found.verify("u", b"one", access_to(1), is_current=True)
    assert (found.pin, found.vouches(b"one"), found.vouches(b"other")) == ("u", True, False)


def test_what_was_proven_with_another_access_leaves_the_doubt() -> None:
    """The access was exchanged while the cluster was asked: the new one has to show the cluster itself."""
    found, _ = identity("u")
    assert found.in_doubt
    found.verify("u", b"one", access_to(1), is_current=False)
    assert found.in_doubt
    found.verify("u", b"one", access_to(1), is_current=True)
    assert not found.in_doubt


def test_another_cluster_makes_no_server_trusted() -> None:
    """Not even those that were: which of them is the right one has to be shown anew."""
    found, health = identity("u")
    found.verify("u", b"one", access_to(1), is_current=True)
    with pytest.raises(WrongCluster, match="a different cluster responds"):
        found.verify("v", b"one", access_to(1), is_current=True)
    assert (found.pin, found.in_doubt, found.vouches(b"one"), health.wrong) == ("u", True, False, True)


def test_a_refused_cluster_stays_in_doubt_whatever_happens_to_its_connection() -> None:
    """Without a pin, too: nothing is sent before a cluster was accepted."""
    found, health = identity(taken="u")
    with pytest.raises(SharedCluster, match="lower b"):
        found.verify("u", b"one", access_to(1), is_current=True)
    found.doubt()
    assert (found.pin, found.in_doubt, health.shared) == ("", True, True)
    found.verify("v", b"one", access_to(1), is_current=True)
    assert (found.pin, found.in_doubt, health.wrong) == ("v", False, False)


def test_whose_credential_was_rejected_is_known_until_the_next_error_or_response() -> None:
    """A user has to renew only a credential of ours."""
    health = Health(0.0)
    health.shut(1.0, "Unauthorized", ours=True)
    assert (health.shut_out, health.rejected) == (True, True)
    health.silence(2.0, "refused")
    assert (health.shut_out, health.rejected) == (True, False)
    health.shut(3.0, "a certificate of nobody")
    assert (health.shut_out, health.rejected) == (True, False)
    health.shut(4.0, "Unauthorized", ours=True)
    health.contact(5.0)
    assert (health.shut_out, health.rejected) == (False, False)
