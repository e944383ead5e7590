"""Tests of irreversible changes of a lower pod: those of other clients are reported, those of admission are not."""

from copy import deepcopy
from typing import Any

import pytest
from podviewkit import lasting_change_condition
from podviewkit import sync_pod as sync
from worldkit import NOW, OWNER_HERE, A, make_lower_pod, make_upper_pod, make_world, put

from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.update import MODIFIED_IN_LOWER, drift
from tensile.names import FIELD_MANAGER, SYNCED
from tensile.objects import Manifest
from tensile.reconcile.desired import Decision, EmitEvent, Patched
from tensile.reconcile.world import Key

PLACE = LowerContext(OWNER_HERE, A, "default", "below-default")
GPU = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
TOLERANT = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
    for name in ("not-ready", "unreachable")
]


def changed_lower_pod(upper: Manifest, hand: str = "kubectl-edit", **fields: Any) -> Manifest:
    """Return the lower pod of an upper pod, with these fields of its spec written by a manager."""
    pod = deepcopy(make_lower_pod(upper, {"phase": "Running"}))
    pod["spec"] |= fields
    book = {"manager": hand, "operation": "Update", "fieldsV1": {"f:spec": {f"f:{field}": {} for field in fields}}}
    pod["metadata"]["managedFields"].append(book)
    return pod


@pytest.mark.parametrize(
    ("above", "fields", "message"),
    [
        ({}, {"activeDeadlineSeconds": 60}, "activeDeadlineSeconds is 60"),
        ({"activeDeadlineSeconds": 90}, {"activeDeadlineSeconds": 60}, "activeDeadlineSeconds is 60"),
        ({}, {"tolerations": [GPU]}, "toleration of gpu added"),
        ({}, {"tolerations": [{"operator": "Exists"}]}, "toleration of everything added"),
        ({}, {"ephemeralContainers": [{"name": "debugger"}]}, "ephemeral container debugger added"),
        (
            {},
            {"activeDeadlineSeconds": 1, "ephemeralContainers": [{"name": "d"}]},
            "activeDeadlineSeconds is 1, ephemeral container d added",
        ),
    ],
)
def test_irreversible_changes_of_another_client_are_described(above: Manifest, fields: Manifest, message: str) -> None:
    """All of them are in one sentence."""
    upper = make_upper_pod(spec=above)
    assert drift(upper, changed_lower_pod(upper, **fields), PLACE) == message


@pytest.mark.parametrize(
    ("above", "fields", "hand"),
    [
        ({}, {"activeDeadlineSeconds": 60}, FIELD_MANAGER),
        ({"activeDeadlineSeconds": 60}, {"activeDeadlineSeconds": 60}, "kubectl-edit"),
        ({"activeDeadlineSeconds": 60}, {"activeDeadlineSeconds": 90}, "kubectl-edit"),
        ({}, {"tolerations": [GPU]}, FIELD_MANAGER),
        ({"tolerations": [GPU]}, {"tolerations": [GPU]}, "kubectl-edit"),
        ({}, {"tolerations": TOLERANT}, "kubectl-edit"),
        ({"ephemeralContainers": [{"name": "d"}]}, {"ephemeralContainers": [{"name": "d"}]}, "kubectl-edit"),
    ],
    ids=["a deadline by admission", "the same deadline", "a later one, which is restored", "a toleration by admission",
         "the same toleration", "those that Kubernetes adds", "the same debug container"],
)  # fmt: skip
def test_expected_and_reversible_differences_are_not_described(above: Manifest, fields: Manifest, hand: str) -> None:
    """This includes fields that the engine's own writes contain, also if admission added them."""
    upper = make_upper_pod(spec=above)
    assert drift(upper, changed_lower_pod(upper, hand, **fields), PLACE) == ""


def kept(upper: Manifest, lower_pod: Manifest) -> Decision:
    """Decide about a pod and its lower pod."""
    world = make_world()
    lower = world.lowers[A]
    put(lower.upper_pods, upper)
    return sync(Key("pod", A, "default", "web"), upper, put(lower.pods, lower_pod), lower, world)


def test_an_irreversible_change_is_reported_by_the_sync_condition_and_one_event() -> None:
    """The condition is that of unapplied changes, and nothing is written once it is set."""
    upper = make_upper_pod(spec={"tolerations": TOLERANT})
    changed = changed_lower_pod(upper, activeDeadlineSeconds=60)
    written, event = kept(upper, changed).wanted
    assert isinstance(written, Patched)
    assert isinstance(event, EmitEvent)
    sync_condition = next(one for one in written.patch.body["status"]["conditions"] if one["type"] == SYNCED)
    assert sync_condition == lasting_change_condition(upper, "activeDeadlineSeconds is 60", A, NOW)
    assert (sync_condition["status"], sync_condition["reason"], event.reason) == (
        "False",
        MODIFIED_IN_LOWER,
        MODIFIED_IN_LOWER,
    )
    assert event.message == sync_condition["message"]
    assert "another client changed the pod in lower cluster lower-a" in sync_condition["message"]
    again = {**upper, "status": {**upper["status"], **written.patch.body["status"]}}
    assert kept(again, changed).wanted == ()


def test_an_irreversible_change_of_an_ended_pod_is_not_reported() -> None:
    """No action of a user would help any more."""
    upper = make_upper_pod(spec={"tolerations": TOLERANT})
    ended = {**changed_lower_pod(upper, activeDeadlineSeconds=60), "status": {"phase": "Failed"}}
    (written,) = kept(upper, ended).wanted
    assert isinstance(written, Patched)
    assert SYNCED not in {one["type"] for one in written.patch.body["status"].get("conditions", ())}
