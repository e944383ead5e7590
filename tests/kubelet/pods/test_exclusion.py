"""Which pods are not mirrored, and when it is certain that nothing of them is below."""

from typing import Any

import pytest
from podviewkit import is_kept_out
from worldkit import upper_pod

from tensile.kubelet.pods.rule import excluded
from tensile.objects import Manifest

HIDDEN = ("kube-system", "default")


def owned(kind: str, *, controller: bool = True, **meta: Any) -> Manifest:
    """Make a pod with an owner of some kind."""
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "agent", "uid": "o", "controller": controller}
    return upper_pod(ownerReferences=[owner], **meta)


def told(pod: Manifest, reason: str, status: str = "False") -> Manifest:
    """Set the condition that says whether a pod is mirrored."""
    said = {"type": "tensile-kube.io/Mirrored", "status": status, "reason": reason}
    return {**pod, "status": {**pod["status"], "conditions": [said]}}


def test_pods_are_mirrored() -> None:
    """Those of nobody, and of every controller but one."""
    assert excluded(upper_pod(), ()) is None
    assert excluded(owned("ReplicaSet"), ()) is None


def test_a_daemon_sets_pods_are_mirrored_with_the_label_only() -> None:
    """Its author says so, by the very word."""
    problem = excluded(owned("DaemonSet"), ())
    assert problem is not None
    assert problem.reason == "DaemonSetNotMirrored"
    assert 'virtual-pod: "true"' in problem.message
    assert excluded(owned("DaemonSet", labels={"virtual-pod": "true"}), ()) is None
    assert excluded(owned("DaemonSet", labels={"virtual-pod": "yes"}), ()) is not None


def test_an_owner_that_does_not_control_a_pod_says_nothing() -> None:
    """Only the controller put it there."""
    assert excluded(owned("DaemonSet", controller=False), ()) is None


def test_the_label_opens_no_excluded_namespace() -> None:
    """The topology's word is above a pod's."""
    assert excluded(owned("DaemonSet", labels={"virtual-pod": "true"}), HIDDEN) is not None


@pytest.mark.parametrize(
    ("pod", "namespaces", "kept"),
    [
        (told(upper_pod(), "NamespaceExcluded"), HIDDEN, True),
        (told(owned("DaemonSet"), "DaemonSetNotMirrored"), (), True),
        (upper_pod(), HIDDEN, False),
        (told(upper_pod(), "NamespaceExcluded"), (), False),
        (told(upper_pod(), "NameConflict"), HIDDEN, False),
        (told(upper_pod(), "NamespaceExcluded", "True"), HIDDEN, False),
    ],
    ids=["told", "told of a DaemonSet", "not told yet", "not excluded any more", "told something else", "mirrored"],
)
def test_what_was_told_that_it_is_not_mirrored_is_kept_out(
    pod: Manifest, namespaces: tuple[str, ...], *, kept: bool
) -> None:
    """Anything else may have been mirrored before it was excluded."""
    assert is_kept_out(pod, namespaces) is kept
