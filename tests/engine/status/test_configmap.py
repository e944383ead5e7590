"""Tests of the ConfigMap NAME-status: what the engine has to write to it, and what it must not change."""

from typing import Any

import orjson
import pytest
from statuskit import LATER, NOW, OWNER, PLACE, accepted, invalid_update, pending_edit, valid_update

from tensile.engine.status.configmap import (
    NameTaken,
    StatusWrite,
    in_force,
    is_reported,
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
    """Return the status as the API returns it if the engine wrote it, with `meta` laid over its metadata."""
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


def status_configmap(verdict: TopologyStatus) -> Manifest:
    """Return the status ConfigMap that describes a verdict."""
    document = verdict.document()
    parts = {key: orjson.dumps(document[key]).decode() for key in OPTIONAL if key in document}
    return seen({"state": document["state"], "topology": "demo", **parts})


def test_the_status_config_map_has_the_namespace_and_the_name_with_status() -> None:
    """The status of ConfigMap ops/topo is ConfigMap ops/topo-status in the upper cluster."""
    assert Ref(UPPER, CONFIG_MAP, "ops", "topo-status") == REF


def test_the_owner_of_the_status_depends_on_the_cluster_and_the_config_map() -> None:
    """A status from another cluster, or of another topology's ConfigMap, thus has another owner."""
    other = PLACE._replace(name="other")
    marks = {status_owner(uid, configmap_key).mark for uid in ("1", "2") for configmap_key in (PLACE, other)}
    assert len(marks) == 4


def test_a_missing_status_is_created_with_the_owner_marks() -> None:
    """Its list of lowers is empty if no lowers are known."""
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


def test_an_unchanged_status_is_not_written() -> None:
    """Keys that another client added make no difference, nor does a list of lowers that is not known."""
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


def test_a_status_patch_has_the_differences_and_uid_and_resource_version() -> None:
    """A rejection that is over is removed, and keys of other clients are not changed."""
    before = seen({**DATA, "rejected": "{}", "note": "theirs"})
    found = write(before, {**DATA, "state": "Rejected", "accepted": "{}"}, REF, OWNER, "map-1")
    assert body(found) == {
        "metadata": {"uid": "status-1", "resourceVersion": "40"},
        "data": {"state": "Rejected", "accepted": "{}", "rejected": None},
    }


def test_status_keys_that_this_engine_does_not_know_are_not_changed() -> None:
    """Another engine may lead, which wrote the active topology, its time and the state of the lowers."""
    before = status_configmap(accepted())
    found = write(before, {"state": "Rejected", "rejected": "{}"}, REF, OWNER, "map-1")
    assert body(found)["data"] == {"state": "Rejected", "rejected": "{}"}
    assert write(before, {"state": "Accepted"}, REF, OWNER, "map-1") is None


def test_a_new_status_has_empty_values_for_unknown_keys() -> None:
    """Every required key thus exists when the status is read back."""
    found = write(None, {"state": "Rejected", "rejected": "{}"}, REF, OWNER, "map-1")
    assert found is not None
    assert found.create is not None
    assert found.create["data"] == {"state": "Rejected", "rejected": "{}", "topology": "", "lowers": "[]"}


def test_in_force_returns_the_hash_of_the_accepted_text_in_an_own_status() -> None:
    """It is empty if the status is missing, cannot be read, or belongs to another owner."""
    assert in_force(status_configmap(accepted(invalid_update())), OWNER) == valid_update().text.sha256
    for other in (None, seen({}), seen({"accepted": "1"}), seen({"accepted": "{"}), seen({"accepted": "{}"})):
        assert in_force(other, OWNER) == ""
    assert in_force({**status_configmap(accepted()), "metadata": seen(labels={})["metadata"]}, OWNER) == ""


def test_the_uid_of_a_recreated_topology_config_map_is_recorded() -> None:
    """A new ConfigMap of the same name has another UID, and the status records it as an annotation."""
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
    ids=["no label", "another owner", "no annotation", "no manager", "copied"],
)
def test_a_status_config_map_of_another_owner_is_not_written(meta: dict[str, Any]) -> None:
    """The error states the remedy: to delete or rename that ConfigMap."""
    with pytest.raises(NameTaken, match="ConfigMap ops/topo-status belongs to another owner") as refusal:
        write(seen(**meta), DATA, REF, OWNER, "map-1")
    assert "delete or rename it" in str(refusal.value)


def test_a_restart_with_the_same_text_keeps_the_time_of_its_acceptance() -> None:
    """The time is taken from a readable status of this owner; any other status has no effect."""
    late = TopologyStatus().after(valid_update(), LATER)
    assert resumed(late, status_configmap(accepted()), OWNER) == accepted()
    for other in (None, seen({}), seen({"accepted": "1"}), seen({"accepted": "{"}), seen({"accepted": "{}"})):
        assert resumed(late, other, OWNER) == late
    assert resumed(late, {**status_configmap(accepted()), "metadata": seen(labels={})["metadata"]}, OWNER) == late
    assert resumed(TopologyStatus(), status_configmap(accepted()), OWNER) == TopologyStatus()


def test_a_restart_with_another_text_sets_a_new_time() -> None:
    """The status has no time for that text."""
    other = TopologyStatus().after(valid_update("cc"), LATER)
    assert resumed(other, status_configmap(accepted()), OWNER) == other


def test_a_restart_with_the_same_rejected_first_text_keeps_its_time() -> None:
    """An engine that restarts repeatedly with it thus reports nothing new."""
    bad_first = TopologyStatus().after(invalid_update(), NOW)
    assert resumed(TopologyStatus().after(invalid_update(), LATER), status_configmap(bad_first), OWNER) == bad_first


def test_a_result_is_already_reported_if_text_and_version_match_the_latest_state() -> None:
    """An accepted text that was followed by a rejected one is not the latest state."""
    assert is_reported(status_configmap(accepted()), OWNER, valid_update())
    assert is_reported(status_configmap(accepted(invalid_update())), OWNER, invalid_update())
    assert not is_reported(status_configmap(accepted()), OWNER, valid_update(version="9"))
    assert not is_reported(status_configmap(accepted()), OWNER, valid_update("cc"))
    assert not is_reported(status_configmap(accepted(invalid_update())), OWNER, valid_update())
    assert not is_reported(None, OWNER, valid_update())


def stated(verdict: TopologyStatus) -> Manifest:
    """Return the status as an engine has written it."""
    return seen(StatusReport("demo", verdict).data())


def patched(before: Manifest, verdict: TopologyStatus, spent: str = "") -> Manifest:
    """Return the body of the patch that updates the status to a verdict."""
    found = write(before, StatusReport("demo", verdict).data(), REF, OWNER, "map-1", used_approval=spent)
    assert found is not None
    assert found.patch is not None
    body: Manifest = found.patch.body
    return body


def test_a_pending_approval_is_removed_by_an_engine_with_an_active_topology() -> None:
    """An engine that does not start keeps it, because the leader may still wait for the approval."""
    held = stated(accepted().waiting(pending_edit()))
    assert patched(held, accepted(valid_update("dd", "9")))["data"]["pendingApproval"] is None
    assert "pendingApproval" not in patched(held, TopologyStatus().after(invalid_update(), LATER))["data"]


def test_a_pending_approval_from_before_a_restart_stays_until_the_text_is_decided() -> None:
    """A leader writes the status before it has decided about the text of its source."""
    held = stated(accepted().waiting(pending_edit()))
    data = StatusReport("demo", accepted()).data()
    assert write(held, data, REF, OWNER, "map-1", decided=False) is None
    assert write(stated(accepted(invalid_update())), data, REF, OWNER, "map-1", decided=False) is not None


def test_a_used_approval_is_removed_from_the_status() -> None:
    """Only the approval that was read is removed, because a user may have given another one since."""
    marks = stated(accepted())["metadata"]["annotations"]
    given = {
        **stated(accepted()),
        "metadata": {**stated(accepted())["metadata"], "annotations": {**marks, APPROVED: "dd"}},
    }
    assert patched(given, accepted(), "dd")["metadata"]["annotations"] == {APPROVED: None}
    assert write(given, StatusReport("demo", accepted()).data(), REF, OWNER, "map-1", used_approval="ee") is None


def test_a_pending_edit_keeps_its_time_and_is_reported_once_across_a_restart() -> None:
    """It is recognized by text and version in the status of the former run."""
    held, again = stated(accepted().waiting(pending_edit())), pending_edit()._replace(time=NOW)
    assert resumed(accepted().waiting(again), held, OWNER).approval == pending_edit()
    assert is_reported(held, OWNER, valid_update("dd", "9"), waits=True)
    assert not is_reported(held, OWNER, valid_update("ee", "9"), waits=True)
    assert not is_reported(stated(accepted()), OWNER, valid_update("aa", "7"), waits=True)
