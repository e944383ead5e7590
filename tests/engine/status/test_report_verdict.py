"""Tests of the status of the topology's text, from one state to the next."""

from statuskit import LATER, NOW, accepted, invalid_update, pending_edit, valid_update

from tensile.engine.status.report import TopologyStatus
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.errors import TensileError


def test_the_state_is_pending_before_the_first_text() -> None:
    """The document has no other field."""
    assert TopologyStatus().document() == {"state": "Pending"}


def test_a_valid_text_is_accepted_with_hash_version_and_time() -> None:
    """The time is that at which the engine read it."""
    assert TopologyStatus().after(valid_update(), NOW).document() == {
        "state": "Accepted",
        "accepted": {"sha256": "aa", "resourceVersion": "7", "time": "2026-03-01T12:00:00Z"},
    }


def test_the_accepted_text_of_a_file_has_no_resource_version() -> None:
    """Only a ConfigMap has one."""
    verdict = TopologyStatus().after(valid_update()._replace(text=TopologyText(3, "aa")), NOW)
    assert verdict.document()["accepted"] == {"sha256": "aa", "time": "2026-03-01T12:00:00Z"}


def test_an_invalid_text_is_reported_beside_the_last_valid_one() -> None:
    """It is reported with its error, and the accepted text stays as it is."""
    document = accepted(invalid_update()).document()
    assert document["state"] == "Rejected"
    assert document["accepted"] == accepted().document()["accepted"]
    assert document["rejected"] == {
        "error": "topo:3:5: lowerz: unknown key",
        "sha256": "bb",
        "resourceVersion": "8",
        "time": "2026-03-01T12:05:00Z",
    }


def test_the_rejection_of_a_deleted_text_has_no_hash() -> None:
    """It has only an error and a time."""
    document = accepted(TopologyUpdate(TopologyText(), error=TensileError("gone"))).document()
    assert document["rejected"] == {"error": "gone", "time": "2026-03-01T12:05:00Z"}


def test_the_next_valid_text_removes_the_rejection() -> None:
    """Its time is that at which it was read."""
    verdict = accepted(invalid_update(), valid_update("cc", "9"))
    assert (verdict.state, verdict.rejected) == ("Accepted", None)
    assert verdict.accepted is not None
    assert (verdict.accepted.text.sha256, verdict.accepted.time) == ("cc", LATER)


def test_an_unchanged_valid_text_keeps_its_time() -> None:
    """It was active all the time, even if an invalid text was in between or its version is new."""
    for readings in (
        (invalid_update(), valid_update(version="9", changed=False)),
        (valid_update(version="9", changed=False),),
    ):
        verdict = accepted(*readings)
        assert verdict.rejected is None
        assert verdict.accepted is not None
        assert (verdict.accepted.time, verdict.accepted.text.version) == (NOW, "9")


def test_changes_that_need_a_restart_are_reported() -> None:
    """They are reported until a text without such changes is accepted."""
    verdict = accepted().after(valid_update("cc"), LATER, ("name: a -> b: restart needed",))
    assert verdict.document()["accepted"]["restartNeeded"] == ["name: a -> b: restart needed"]
    assert "restartNeeded" not in verdict.after(valid_update("dd"), LATER).document()["accepted"]


def test_changes_that_wait_are_reported_while_they_wait() -> None:
    """They are part of the accepted text, beside those that need a restart; without an accepted text, none can wait."""
    verdict = accepted().after(valid_update("cc"), LATER, ("name: a -> b: restart needed",))
    message = "lowers[a].node.name: a -> b: waits until no pods are mirrored"
    accepted_status = verdict.pending((message,)).document()["accepted"]
    assert (accepted_status["pending"], accepted_status["restartNeeded"]) == (
        [message],
        ["name: a -> b: restart needed"],
    )
    assert verdict.pending((message,)).pending(()) == verdict
    assert "pending" not in verdict.document()["accepted"]
    assert TopologyStatus().pending((message,)) == TopologyStatus()


def test_a_very_long_error_is_truncated() -> None:
    """It has to fit into a ConfigMap."""
    error = accepted(invalid_update("x" * 2_000_000)).document()["rejected"]["error"]
    assert len(error) == 16 * 1024
    assert error.endswith("x\n...")


def test_an_edit_that_waits_for_an_approval_is_reported_beside_the_accepted_text() -> None:
    """It has the number of affected pods, the limit, the changes and the command, and none of it is active."""
    document = accepted().waiting(pending_edit()).document()
    assert document["state"] == "Pending"
    assert document["accepted"] == accepted().document()["accepted"]
    assert document["pendingApproval"] == {
        "sha256": "dd",
        "resourceVersion": "9",
        "time": "2026-03-01T12:05:00Z",
        "pods": 3,
        "approveOver": 1,
        "affected": ["shop/web-0 (lower-a)", "shop/web-1 (lower-a)"],
        "changes": ["lowers[lower-a].maintenance: none -> drain"],
        "command": "tensile approve dd --configmap ops/topo",
    }


def test_the_next_text_replaces_an_edit_that_waits_for_an_approval() -> None:
    """The next text may be valid or invalid, and an edit that waits replaces a rejection."""
    held = accepted().waiting(pending_edit())
    assert held.after(valid_update("cc", "9"), LATER).approval is None
    assert held.after(invalid_update(), LATER).approval is None
    assert accepted(invalid_update()).waiting(pending_edit()).rejected is None
