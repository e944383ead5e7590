"""What a cluster does not let us follow is told once for each reason, and told when it is over."""

from structlog.testing import capture_logs

from tensile.errors import Denied
from tensile.kube.health import REWORDED, Denials
from tensile.kube.limits import AT_ONCE
from tensile.objects import ROLE


def denied(words: str = "roles is forbidden", doing: str = "list Role", cluster: str = "lower-a") -> Denied:
    """Make a denial as the client gives it."""
    return Denied(words, cluster=cluster, doing=doing, status=403)


def test_other_words_are_told_too() -> None:
    """The list was granted meanwhile and the watch was not; two reasons at a time are two lines, and no more."""
    denials = Denials("lower-a")
    with capture_logs() as logs:
        denials.meet("one", ROLE, denied())
        denials.meet("one", ROLE, denied(doing="watch Role"))
        for _ in range(3):
            denials.meet("one", ROLE, denied(doing="watch Role"))
            denials.meet("two", ROLE, denied("another"))
    assert [entry["error"].removeprefix("lower-a: ") for entry in logs] == [
        "list Role: denied: roles is forbidden",
        "watch Role: denied: roles is forbidden",
        "list Role: denied: another",
    ]
    assert denials.words == "lower-a: list Role: denied: another; lower-a: watch Role: denied: roles is forbidden"


def test_the_end_is_told_when_nobody_meets_it_any_more() -> None:
    """Once; who never met one ends nothing."""
    denials = Denials("lower-a")
    for who in ("one", "two"):
        denials.meet(who, ROLE, denied())
    with capture_logs() as logs:
        for who in ("one", "two", "two", "three"):
            denials.end(who, ROLE)
    assert logs == [{"event": "permission granted again", "log_level": "info", "cluster": "lower-a", "kind": "Role"}]
    assert (denials.words, denials.of("one")) == ("", None)
    with capture_logs() as logs:
        denials.meet("one", ROLE, denied())
    assert len(logs) == 1


def test_who_follows_no_more_is_forgotten_without_a_word() -> None:
    """It is not allowed by that."""
    denials = Denials("lower-a")
    denials.meet("one", ROLE, denied())
    with capture_logs() as logs:
        denials.forget("one")
        denials.forget("two")
    assert (logs, denials.words) == ([], "")


def test_ever_other_words_of_one_denial_are_the_first() -> None:
    """A cluster that words it anew each time is heard once a minute, and its node says no other each time."""
    now = [0.0]
    denials = Denials("lower-a", lambda: now[0])
    with capture_logs() as logs:
        for number in range(100):
            denials.meet("one", ROLE, denied(f"no {number}"))
    assert [entry["error"] for entry in logs] == ["lower-a: list Role: denied: no 0"]
    assert denials.words == "lower-a: list Role: denied: no 0"
    now[0] = REWORDED
    denials.meet("one", ROLE, denied("no 100"))
    assert denials.words == "lower-a: list Role: denied: no 100"


def test_granting_and_denying_by_turns_fills_no_log() -> None:
    """So many lines at once, and then one in a while."""
    denials = Denials("lower-a", lambda: 0.0)
    with capture_logs() as logs:
        for number in range(1_000):
            denials.meet("one", ROLE, denied(f"no {number}"))
            denials.end("one", ROLE)
    assert len(logs) == AT_ONCE
