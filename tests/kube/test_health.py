"""What counts as silence of a cluster."""

from tensile.errors import Unreachable
from tensile.kube.health import Health, WrongCluster


def test_a_cluster_is_silent_until_its_first_answer() -> None:
    """Before anything was heard the time since the beginning counts."""
    health = Health(100.0)
    assert health.unreachable_for(130.0) == 30.0
    assert health.last_contact is None
    assert health.error == "not contacted yet"


def test_an_answer_ends_the_silence() -> None:
    """Contact clears trouble and is remembered."""
    health = Health(100.0)
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


def test_a_clock_that_steps_back_makes_no_negative_silence() -> None:
    """The time is never below zero."""
    health = Health(100.0)
    assert health.unreachable_for(90.0) == 0.0


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
