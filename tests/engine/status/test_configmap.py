"""ConfigMap NAME-status: what has to be written, and what must not be."""

from typing import Any

import orjson
import pytest
from statuskit import LATER, NOW, OWNER, PLACE, accepted, bad, good, waiting

from tensile.engine.status.configmap import (
    NameTaken,
    StatusWrite,
    in_force,
    is_told,
    resumed,
    status_owner,
    status_ref,
    write,
)
from tensile.engine.status.report import OPTIONAL, StatusReport, TopologyStatus
from tensile.names import APPROVED, FIELD_MANAGER, OWNER_NAME, UPPER_UID
from tensile.names import OWNER as OWNER_LABEL
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref

REF = status_ref(PLACE)
DATA = {"state": "Accepted", "topology": "demo", "lowers": "[]"}


def seen(data: dict[str, str] | None = None, **meta: Any) -> Manifest:
    """Return the status as the API does, written by us; `meta` is laid over its metadata."""
    fields = {"f:metadata": {"f:annotations": {f"f:{UPPER_UID}": {}, f"f:{OWNER_NAME}": {}}}}
    whole = {
        "name": REF.name,
        "namespace": REF.namespace,
        "uid": "status-1",
        "resourceVersion": "40",
        "labels": {OWNER_LABEL: OWNER.mark},
        "annotations": {OWNER_NAME: "ops/topo", UPPER_UID: "map-1"},
        "managedFields": [{"manager": FIELD_MANAGER, "fieldsV1": fields}],
    }
    return {"metadata": {**whole, **meta}, "data": DATA if data is None else data}


def told(verdict: TopologyStatus) -> Manifest:
    """Return the status as it tells of a verdict."""
    document = verdict.document()
    parts = {key: orjson.dumps(document[key]).decode() for key in OPTIONAL if key in document}
    return seen({"state": document["state"], "topology": "demo", **parts})


def test_it_stands_beside_the_config_map() -> None:
    """By the name with -status."""
    assert Ref(UPPER, CONFIG_MAP, "ops", "topo-status") == REF


def test_it_is_the_config_maps_in_this_cluster_only() -> None:
    """A copy in another cluster, or of another topology, is not ours."""
    other = PLACE._replace(name="other")
    marks = {status_owner(uid, place).mark for uid in ("1", "2") for place in (PLACE, other)}
    assert len(marks) == 4


def test_where_there_is_none_it_is_made_with_our_marks() -> None:
    """And with lowers, be it none."""
    found = write(None, {"state": "Accepted", "topology": "demo"}, REF, OWNER, "map-1")
    assert found is not None
    assert found.create == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "topo-status",
            "namespace": "ops",
            "labels": {OWNER_LABEL: OWNER.mark},
            "annotations": {OWNER_NAME: "ops/topo", UPPER_UID: "map-1"},
        },
        "data": {"state": "Accepted", "topology": "demo", "lowers": "[]"},
    }


def test_what_is_right_is_not_written() -> None:
    """Neither where it has keys of somebody else's beside ours."""
    assert write(seen(), DATA, REF, OWNER, "map-1") is None
    assert write(seen({**DATA, "note": "theirs"}), DATA, REF, OWNER, "map-1") is None
    assert write(seen(), {"state": "Accepted", "topology": "demo"}, REF, OWNER, "map-1") is None


def body(found: StatusWrite | None) -> Manifest:
    """Return the body of a merge patch."""
    assert found is not None
    assert found.patch is not None
    assert found.patch.media == "merge-patch"
    changed: Manifest = found.patch.body
    return changed


def test_a_change_carries_what_differs_and_which_object_it_is_for() -> None:
    """What is no longer true is taken away, and nothing of anybody else's."""
    before = seen({**DATA, "rejected": "{}", "note": "theirs"})
    found = write(before, {**DATA, "state": "Rejected", "accepted": "{}"}, REF, OWNER, "map-1")
    assert body(found) == {
        "metadata": {"uid": "status-1", "resourceVersion": "40"},
        "data": {"state": "Rejected", "accepted": "{}", "rejected": None},
    }


def test_what_is_not_known_here_stays_as_it_is_told() -> None:
    """Which topology is in force, since when, and how the lowers are: another engine may drive."""
    before = told(accepted())
    found = write(before, {"state": "Rejected", "rejected": "{}"}, REF, OWNER, "map-1")
    assert body(found)["data"] == {"state": "Rejected", "rejected": "{}"}
    assert write(before, {"state": "Accepted"}, REF, OWNER, "map-1") is None


def test_where_there_is_none_what_is_not_known_is_empty() -> None:
    """So that it can be read back whole."""
    found = write(None, {"state": "Rejected", "rejected": "{}"}, REF, OWNER, "map-1")
    assert found is not None
    assert found.create is not None
    assert found.create["data"] == {"state": "Rejected", "rejected": "{}", "topology": "", "lowers": "[]"}


def test_what_a_status_tells_to_be_in_force_is_known_by_its_hash() -> None:
    """Of a status of ours that can be read, and no other."""
    assert in_force(told(accepted(bad())), OWNER) == good().text.sha256
    for other in (None, seen({}), seen({"accepted": "1"}), seen({"accepted": "{"}), seen({"accepted": "{}"})):
        assert in_force(other, OWNER) == ""
    assert in_force({**told(accepted()), "metadata": seen(labels={})["metadata"]}, OWNER) == ""


def test_a_new_config_map_of_the_name_is_noted() -> None:
    """It has another UID."""
    found = write(seen(), DATA, REF, OWNER, "map-2")
    assert body(found)["metadata"]["annotations"] == {UPPER_UID: "map-2"}


@pytest.mark.parametrize(
    "meta",
    [
        {"labels": {}},
        {"labels": {OWNER_LABEL: "0123456789abcdef"}},
        {"annotations": {}},
        {"managedFields": []},
        {
            "managedFields": [
                {"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:annotations": {f"f:{UPPER_UID}": {}}}}}
            ]
        },
    ],
    ids=["no label", "another owner", "no annotation", "nobody wrote it", "copied"],
)
def test_anothers_is_left_alone(meta: dict[str, Any]) -> None:
    """Whatever is in it; who it may concern is told what to do."""
    with pytest.raises(NameTaken, match="ConfigMap ops/topo-status belongs to another owner") as refusal:
        write(seen(**meta), DATA, REF, OWNER, "map-1")
    assert "delete or rename it" in str(refusal.value)


def test_a_restart_on_the_same_text_goes_on() -> None:
    """It came into force when it did, as far as the status tells."""
    late = TopologyStatus().after(good(), LATER)
    assert resumed(late, told(accepted()), OWNER) == accepted()
    for other in (None, seen({}), seen({"accepted": "1"}), seen({"accepted": "{"}), seen({"accepted": "{}"})):
        assert resumed(late, other, OWNER) == late
    assert resumed(late, {**told(accepted()), "metadata": seen(labels={})["metadata"]}, OWNER) == late
    assert resumed(TopologyStatus(), told(accepted()), OWNER) == TopologyStatus()


def test_a_restart_on_another_text_does_not() -> None:
    """That one is new."""
    other = TopologyStatus().after(good("cc"), LATER)
    assert resumed(other, told(accepted()), OWNER) == other


def test_a_bad_first_text_that_was_told_keeps_its_time_too() -> None:
    """An engine that is started again and again on it says nothing new."""
    bad_first = TopologyStatus().after(bad(), NOW)
    assert resumed(TopologyStatus().after(bad(), LATER), told(bad_first), OWNER) == bad_first


def test_what_is_told_already_is_known_by_text_and_version() -> None:
    """And by being the last word."""
    assert is_told(told(accepted()), OWNER, good())
    assert is_told(told(accepted(bad())), OWNER, bad())
    assert not is_told(told(accepted()), OWNER, good(version="9"))
    assert not is_told(told(accepted()), OWNER, good("cc"))
    assert not is_told(told(accepted(bad())), OWNER, good())
    assert not is_told(None, OWNER, good())


def stated(verdict: TopologyStatus) -> Manifest:
    """Return the status as an engine has written it."""
    return seen(StatusReport("demo", verdict).data())


def patched(before: Manifest, verdict: TopologyStatus, spent: str = "") -> Manifest:
    """Return the body of the patch after which a status tells of a verdict."""
    found = write(before, StatusReport("demo", verdict).data(), REF, OWNER, "map-1", spent=spent)
    assert found is not None
    assert found.patch is not None
    body: Manifest = found.patch.body
    return body


def test_an_edit_that_no_longer_waits_is_taken_out() -> None:
    """By an engine that has a topology in force; one that does not start leaves it to that one."""
    held = stated(accepted().waiting(waiting()))
    assert patched(held, accepted(good("dd", "9")))["data"]["pendingApproval"] is None
    assert "pendingApproval" not in patched(held, TopologyStatus().after(bad(), LATER))["data"]


def test_an_edit_that_waited_before_a_restart_stays_until_it_is_decided() -> None:
    """An engine that leads writes what it knows, before it has decided about the text of its source."""
    held = stated(accepted().waiting(waiting()))
    data = StatusReport("demo", accepted()).data()
    assert write(held, data, REF, OWNER, "map-1", decided=False) is None
    assert write(stated(accepted(bad())), data, REF, OWNER, "map-1", decided=False) is not None


def test_an_approval_is_taken_out_once_it_is_used() -> None:
    """Only the one that was read: a user may have given another one since."""
    marks = stated(accepted())["metadata"]["annotations"]
    given = {
        **stated(accepted()),
        "metadata": {**stated(accepted())["metadata"], "annotations": {**marks, APPROVED: "dd"}},
    }
    assert patched(given, accepted(), "dd")["metadata"]["annotations"] == {APPROVED: None}
    assert write(given, StatusReport("demo", accepted()).data(), REF, OWNER, "map-1", spent="ee") is None


def test_an_edit_that_waits_keeps_its_time_and_is_told_once() -> None:
    """Over a restart."""
    held, again = stated(accepted().waiting(waiting())), waiting()._replace(time=NOW)
    assert resumed(accepted().waiting(again), held, OWNER).approval == waiting()
    assert is_told(held, OWNER, good("dd", "9"), waits=True)
    assert not is_told(held, OWNER, good("ee", "9"), waits=True)
    assert not is_told(stated(accepted()), OWNER, good("aa", "7"), waits=True)
