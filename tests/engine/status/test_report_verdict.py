"""What became of the topology's text, one state after another."""

from statuskit import LATER, NOW, accepted, bad, good, waiting

from tensile.engine.status.report import TopologyStatus
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.errors import TensileError


def test_before_the_first_text_it_is_pending() -> None:
    """And says nothing else."""
    assert TopologyStatus().document() == {"state": "Pending"}


def test_a_good_text_is_in_force_since_it_came() -> None:
    """Told by hash, version and time."""
    assert TopologyStatus().after(good(), NOW).document() == {
        "state": "Accepted",
        "accepted": {"sha256": "aa", "resourceVersion": "7", "time": "2026-03-01T12:00:00Z"},
    }


def test_a_file_has_no_version() -> None:
    """Only a ConfigMap has."""
    verdict = TopologyStatus().after(good()._replace(text=TopologyText(3, "aa")), NOW)
    assert verdict.document()["accepted"] == {"sha256": "aa", "time": "2026-03-01T12:00:00Z"}


def test_a_bad_text_is_told_beside_the_last_good_one() -> None:
    """With its words, and what stays in force untouched."""
    document = accepted(bad()).document()
    assert document["state"] == "Rejected"
    assert document["accepted"] == accepted().document()["accepted"]
    assert document["rejected"] == {
        "error": "topo:3:5: lowerz: unknown key",
        "sha256": "bb",
        "resourceVersion": "8",
        "time": "2026-03-01T12:05:00Z",
    }


def test_a_text_that_is_gone_has_no_hash() -> None:
    """Only words and a time."""
    document = accepted(TopologyUpdate(TopologyText(), error=TensileError("gone"))).document()
    assert document["rejected"] == {"error": "gone", "time": "2026-03-01T12:05:00Z"}


def test_the_next_good_text_takes_the_bad_one_away() -> None:
    """With the time at which it came."""
    verdict = accepted(bad(), good("cc", "9"))
    assert (verdict.state, verdict.rejected) == ("Accepted", None)
    assert verdict.accepted is not None
    assert (verdict.accepted.text.sha256, verdict.accepted.time) == ("cc", LATER)


def test_the_same_text_keeps_its_time() -> None:
    """Put back after a bad one, or touched without a change: it was in force all the time."""
    for readings in ((bad(), good(version="9", changed=False)), (good(version="9", changed=False),)):
        verdict = accepted(*readings)
        assert verdict.rejected is None
        assert verdict.accepted is not None
        assert (verdict.accepted.time, verdict.accepted.text.version) == (NOW, "9")


def test_what_needs_a_restart_is_told() -> None:
    """Until a text comes that needs none."""
    verdict = accepted().after(good("cc"), LATER, ("name: a -> b: restart needed",))
    assert verdict.document()["accepted"]["restartNeeded"] == ["name: a -> b: restart needed"]
    assert "restartNeeded" not in verdict.after(good("dd"), LATER).document()["accepted"]


def test_what_has_to_wait_is_told_as_long_as_it_does() -> None:
    """Of the text in force, beside what needs a restart; while there is none nothing can wait."""
    verdict = accepted().after(good("cc"), LATER, ("name: a -> b: restart needed",))
    words = "lowers[a].node.name: a -> b: waits until no pods are mirrored"
    told = verdict.pending((words,)).document()["accepted"]
    assert (told["pending"], told["restartNeeded"]) == ([words], ["name: a -> b: restart needed"])
    assert verdict.pending((words,)).pending(()) == verdict
    assert "pending" not in verdict.document()["accepted"]
    assert TopologyStatus().pending((words,)) == TopologyStatus()


def test_a_very_long_error_is_cut() -> None:
    """It has to fit into a ConfigMap."""
    error = accepted(bad("x" * 2_000_000)).document()["rejected"]["error"]
    assert len(error) == 16 * 1024
    assert error.endswith("x\n...")


def test_an_edit_that_waits_for_an_approval_is_told_beside_the_last_good_one() -> None:
    """With how many pods it affects, the limit, what it changes and the command; nothing is in force of it."""
    document = accepted().waiting(waiting()).document()
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


def test_the_next_text_takes_the_place_of_one_that_waits() -> None:
    """Be it good or bad; and one that waits that of a bad one."""
    held = accepted().waiting(waiting())
    assert held.after(good("cc", "9"), LATER).approval is None
    assert held.after(bad(), LATER).approval is None
    assert accepted(bad()).waiting(waiting()).rejected is None
