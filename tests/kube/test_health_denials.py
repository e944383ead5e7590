"""Tests of denied permissions: each is logged once per reason, and its end is logged too."""

from structlog.testing import capture_logs

from tensile.errors import Denied
from tensile.kube.health import REWORDED_SECONDS, Denials
from tensile.kube.limits import AT_ONCE
from tensile.objects import ROLE


def denied(message: str = "roles is forbidden", doing: str = "list Role", cluster: str = "lower-a") -> Denied:
    """Return a denial as the client raises it."""
    return Denied(message, cluster=cluster, doing=doing, status=403)


def test_a_denial_of_another_request_or_with_another_message_is_logged_too() -> None:
    """If the list is granted and the watch is denied, that is another line; repeated denials add no lines."""
    denials = Denials("lower-a")
    with capture_logs() as logs:
        denials.record("one", ROLE, denied())
        denials.record("one", ROLE, denied(doing="watch Role"))
        for _ in range(3):
            denials.record("one", ROLE, denied(doing="watch Role"))
            denials.record("two", ROLE, denied("another"))
    assert [entry["error"].removeprefix("lower-a: ") for entry in logs] == [
        "list Role: denied: roles is forbidden",
        "watch Role: denied: roles is forbidden",
        "list Role: denied: another",
    ]
    assert denials.text == "lower-a: list Role: denied: another; lower-a: watch Role: denied: roles is forbidden"


def test_the_end_of_a_denial_is_logged_when_no_informer_has_it() -> None:
    """It is logged once, and an informer that had no denial ends none."""
    denials = Denials("lower-a")
    for who in ("one", "two"):
        denials.record(who, ROLE, denied())
    with capture_logs() as logs:
        for who in ("one", "two", "two", "three"):
            denials.end(who, ROLE)
    assert logs == [{"event": "permission granted again", "log_level": "info", "cluster": "lower-a", "kind": "Role"}]
    assert (denials.text, denials.of("one")) == ("", None)
    with capture_logs() as logs:
        denials.record("one", ROLE, denied())
    assert len(logs) == 1


def test_the_denial_of_an_ended_informer_is_removed_without_a_log_line() -> None:
    """The end of the informer does not mean that the permission was granted."""
    denials = Denials("lower-a")
    denials.record("one", ROLE, denied())
    with capture_logs() as logs:
        denials.forget("one")
        denials.forget("two")
    assert (logs, denials.text) == ([], "")


def test_the_first_message_of_a_denial_is_kept_for_a_minute() -> None:
    """A cluster may change its message each time; neither the log nor the node condition follows each change."""
    now = [0.0]
    denials = Denials("lower-a", lambda: now[0])
    with capture_logs() as logs:
        for number in range(100):
            denials.record("one", ROLE, denied(f"no {number}"))
    assert [entry["error"] for entry in logs] == ["lower-a: list Role: denied: no 0"]
    assert denials.text == "lower-a: list Role: denied: no 0"
    now[0] = REWORDED_SECONDS
    denials.record("one", ROLE, denied("no 100"))
    assert denials.text == "lower-a: list Role: denied: no 100"


def test_log_lines_are_limited_if_a_permission_is_granted_and_denied_alternately() -> None:
    """After a burst of lines, only one line per interval is logged."""
    denials = Denials("lower-a", lambda: 0.0)
    with capture_logs() as logs:
        for number in range(1_000):
            denials.record("one", ROLE, denied(f"no {number}"))
            denials.end("one", ROLE)
    assert len(logs) == AT_ONCE
