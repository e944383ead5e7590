"""Tests of which pods are not mirrored, and of which pods are known to have been excluded before they were mirrored."""

from typing import Any

import pytest
from podviewkit import is_kept_out
from worldkit import make_upper_pod

from tensile.kubelet.pods.rule import excluded
from tensile.objects import Manifest

HIDDEN = ("kube-system", "default")


def owned(kind: str, *, controller: bool = True, **meta: Any) -> Manifest:
    """Return a pod with an owner of some kind."""
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "agent", "uid": "o", "controller": controller}
    return make_upper_pod(ownerReferences=[owner], **meta)


def pod_with_condition(pod: Manifest, reason: str, status: str = "False") -> Manifest:
    """Return the pod with the Mirrored condition."""
    condition = {"type": "tensile-kube.io/Mirrored", "status": status, "reason": reason}
    return {**pod, "status": {**pod["status"], "conditions": [condition]}}


def test_pods_without_an_owner_and_of_a_replica_set_are_mirrored() -> None:
    """Only the controller kind DaemonSet excludes a pod."""
    assert excluded(make_upper_pod(), ()) is None
    assert excluded(owned("ReplicaSet"), ()) is None


def test_a_daemon_sets_pods_are_mirrored_only_with_the_label() -> None:
    """The label must have the exact value that the message names."""
    problem = excluded(owned("DaemonSet"), ())
    assert problem is not None
    assert problem.reason == "DaemonSetNotMirrored"
    assert 'virtual-pod: "true"' in problem.message
    assert excluded(owned("DaemonSet", labels={"virtual-pod": "true"}), ()) is None
    assert excluded(owned("DaemonSet", labels={"virtual-pod": "yes"}), ()) is not None


def test_a_daemon_set_that_is_not_the_controller_excludes_no_pod() -> None:
    """Only the controller created the pod."""
    assert excluded(owned("DaemonSet", controller=False), ()) is None


def test_the_label_does_not_override_an_excluded_namespace() -> None:
    """The topology has precedence over a pod's label."""
    assert excluded(owned("DaemonSet", labels={"virtual-pod": "true"}), HIDDEN) is not None


@pytest.mark.parametrize(
    ("pod", "namespaces", "kept"),
    [
        (pod_with_condition(make_upper_pod(), "NamespaceExcluded"), HIDDEN, True),
        (pod_with_condition(owned("DaemonSet"), "DaemonSetNotMirrored"), (), True),
        (make_upper_pod(), HIDDEN, False),
        (pod_with_condition(make_upper_pod(), "NamespaceExcluded"), (), False),
        (pod_with_condition(make_upper_pod(), "NameConflict"), HIDDEN, False),
        (pod_with_condition(make_upper_pod(), "NamespaceExcluded", "True"), HIDDEN, False),
    ],
    ids=["marked", "marked, of a DaemonSet", "not marked yet", "no longer excluded", "another reason", "mirrored"],
)
def test_a_pod_is_kept_out_if_its_status_reports_its_present_exclusion(
    pod: Manifest, namespaces: tuple[str, ...], *, kept: bool
) -> None:
    """Any other pod may have been mirrored before it was excluded."""
    assert is_kept_out(pod, namespaces) is kept
