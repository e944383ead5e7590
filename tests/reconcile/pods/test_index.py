"""Tests of the facts that are extracted from a pod when it is cached, and of its indexes."""

import json
import tracemalloc
from typing import Any

import orjson
import pytest
from worldkit import OWNER_HERE, A, make_lower_pod, make_upper_pod, make_world, put, spec_with_references

from tensile.kube.store import packed
from tensile.names import FIELD_MANAGER
from tensile.objects import Manifest
from tensile.reconcile.pods.index import facts_of, needs_lower_pod, transform_lower_pod, transform_upper_pod
from tensile.reconcile.pods.references import Reference


def disrupted(reason: str, status: str = "True") -> Manifest:
    """Return the status of a pod that Kubernetes disrupted for a reason."""
    return {"conditions": [{"type": "Ready", "status": "False"}, _target(reason, status)]}


def _target(reason: str, status: str) -> Manifest:
    return {"type": "DisruptionTarget", "status": status, "reason": reason}


def test_a_digest_has_the_pods_bytes_and_its_facts() -> None:
    """The bytes are only decoded again by code that needs more than the facts."""
    raw = orjson.dumps(make_upper_pod())
    for digest in (transform_upper_pod, transform_lower_pod):
        kept = digest(raw)
        assert kept.raw == raw
        assert kept.facts == facts_of(make_upper_pod())


def test_a_cached_pod_uses_little_more_memory_than_its_bytes() -> None:
    """Ten thousand pods are cached, so none may keep a work buffer alive."""
    kept = transform_lower_pod(orjson.dumps(make_upper_pod(annotations={"note": "x" * 3000})))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    again = [packed(orjson.loads(kept.raw)) for _ in range(100)]
    taken = (tracemalloc.get_traced_memory()[0] - before) / len(again)
    tracemalloc.stop()
    assert len(kept.raw) < taken < 2 * len(kept.raw)


def test_only_the_needed_managed_fields_are_cached() -> None:
    """None are needed of an upper pod.

    Of a lower pod, the metadata that this engine wrote is needed, and the metadata and spec fields that other clients
    wrote.
    """
    both = {"f:metadata": {"f:labels": {}}, "f:spec": {"f:containers": {}}}
    books = [
        {"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": both},
        {"manager": "kubectl", "operation": "Update", "fieldsV1": {**both, "f:kind": {}}},
        {"manager": "kubectl", "operation": "Update", "subresource": "resize", "fieldsV1": both},
        {"manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
    ]
    raw = orjson.dumps(make_upper_pod(managedFields=books))
    assert "managedFields" not in orjson.loads(transform_upper_pod(raw).raw)["metadata"]
    ours, theirs, resized = orjson.loads(transform_lower_pod(raw).raw)["metadata"]["managedFields"]
    assert ours == {**books[0], "fieldsV1": {"f:metadata": both["f:metadata"]}}
    assert theirs == {**books[1], "fieldsV1": both}
    assert resized == books[2]


def test_an_upper_pod_has_no_marks() -> None:
    """A new pod has no other facts either."""
    facts = facts_of(make_upper_pod())
    assert (facts.owner, facts.upper_uid) == ("", "")
    assert (facts.terminal, facts.terminating, facts.unrequested, facts.ran) == (False, False, False, False)


def test_the_facts_of_a_lower_pod_have_its_owner_and_its_upper_uid() -> None:
    """They are in its label and its annotation."""
    facts = facts_of(make_lower_pod(make_upper_pod(uid="one")))
    assert (facts.owner, facts.upper_uid) == (OWNER_HERE.mark, "one")


@pytest.mark.parametrize(
    ("phase", "terminal", "ran"),
    [
        ("Pending", False, False),
        ("Running", False, True),
        ("Unknown", False, True),
        ("Succeeded", True, True),
        ("Failed", True, True),
    ],
)
def test_the_phase_determines_whether_a_pod_is_terminal_and_has_run(phase: str, terminal: bool, ran: bool) -> None:  # noqa: FBT001 - parameters
    """Only Succeeded and Failed are terminal."""
    facts = facts_of(make_upper_pod(status={"phase": phase}))
    assert (facts.terminal, facts.ran) == (terminal, ran)


def test_a_pending_pod_with_a_container_status_counts_as_run() -> None:
    """The lower cluster may be pulling its image, so it must not be created a second time."""
    assert facts_of(make_upper_pod(status={"containerStatuses": [{"name": "main"}]})).ran


def test_a_pod_without_a_status_has_not_run() -> None:
    """No client has written a status yet, so the pod counts as pending."""
    pod = make_upper_pod()
    del pod["status"]
    assert not facts_of(pod).ran


def test_a_pod_with_a_deletion_timestamp_is_terminating() -> None:
    """Its phase does not matter."""
    assert facts_of(make_upper_pod(deletionTimestamp="2026-03-01T12:00:00Z")).terminating


@pytest.mark.parametrize(
    ("status", "unrequested"),
    [
        (disrupted("DeletionByTaintManager"), True),
        (disrupted("DeletionByPodGC"), True),
        (disrupted("DeletionByPodGC", "False"), False),
        (disrupted("EvictionByEvictionAPI"), False),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, False),
        ({}, False),
    ],
)
def test_a_deletion_by_kubernetes_because_of_the_node_was_not_requested(status: Manifest, unrequested: bool) -> None:  # noqa: FBT001 - a parameter
    """Taint manager and pod garbage collector react to a node, but a client decides about an eviction."""
    assert facts_of(make_upper_pod(status=status)).unrequested is unrequested


def test_pods_are_indexed_by_their_references() -> None:
    """The index has kind, namespace and name, and a deleted pod is removed from it."""
    cache = make_world().lowers[A].upper_pods
    spec = spec_with_references(config_maps=["settings"], secrets=["password"])
    put(cache, make_upper_pod("one", spec), make_upper_pod("two", spec, namespace="other"), make_upper_pod("three"))
    assert [one.name for one in cache.select("reference", ("ConfigMap", "default", "settings"))] == ["one"]
    assert [one.name for one in cache.select("reference", ("Secret", "other", "password"))] == ["two"]
    cache.remove(json.dumps(_gone(make_upper_pod("one", spec))).encode())
    assert cache.select("reference", ("ConfigMap", "default", "settings")) == ()


def _gone(pod: Manifest) -> Manifest:
    return {**pod, "metadata": {**pod["metadata"], "resourceVersion": "99"}}


def test_pods_are_indexed_by_namespace() -> None:
    """Their references do not matter."""
    cache = make_world().lowers[A].upper_pods
    put(cache, make_upper_pod("one"), make_upper_pod("two", namespace="other"), make_upper_pod("three"))
    assert sorted(one.name for one in cache.select("namespace", "default")) == ["one", "three"]


def test_living_pods_are_counted_by_namespace() -> None:
    """Pods that ended or are not mirrored need no objects in the lower cluster."""
    cache = make_world().lowers[A].upper_pods
    ended = make_upper_pod("ended", status={"phase": "Failed"})
    put(cache, make_upper_pod("one"), ended, of_a("DaemonSet"), make_upper_pod("two", namespace="other"))
    assert (cache.count("living", "default"), cache.count("living", "other")) == (1, 1)


def of_a(kind: str, label: str = "", *, controller: bool = True) -> Manifest:
    """Return a pod with an owner of a kind and a value of the label virtual-pod."""
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "agent", "uid": "d", "controller": controller}
    return make_upper_pod(ownerReferences=[owner], labels={"virtual-pod": label})


@pytest.mark.parametrize(
    ("owners", "bare"), [([], True), ([{"kind": "Job", "controller": True}], False), ([{"kind": "ConfigMap"}], True)]
)
def test_a_pod_without_a_controller_is_bare(owners: list[Manifest], *, bare: bool) -> None:
    """An owner that is no controller would not create the pod again."""
    assert facts_of(make_upper_pod(ownerReferences=owners)).bare is bare


@pytest.mark.parametrize(
    ("pod", "daemon"),
    [
        (of_a("DaemonSet"), True),
        (of_a("DaemonSet", "false"), True),
        (of_a("DaemonSet", "true"), False),
        (of_a("DaemonSet", controller=False), False),
        (of_a("ReplicaSet"), False),
        (make_upper_pod(), False),
    ],
)
def test_a_daemon_sets_pod_is_a_daemon_pod_unless_its_label_requests_mirroring(pod: Manifest, daemon: bool) -> None:  # noqa: FBT001 - a parameter
    """A DaemonSet that tolerates everything is scheduled to every node, so a pod needs the label to be mirrored."""
    assert facts_of(pod).daemon is daemon


@pytest.mark.parametrize(
    ("pod", "lives"),
    [
        (make_upper_pod(), True),
        (make_upper_pod(deletionTimestamp="2026-03-01T12:00:00Z"), True),
        (make_upper_pod(status={"phase": "Failed"}), False),
        (make_upper_pod(namespace="kube-system"), False),
        (of_a("DaemonSet"), False),
    ],
    ids=["any", "being deleted", "ended", "excluded", "of a DaemonSet"],
)
def test_a_mirrored_pod_lives_in_the_lower_cluster_until_it_ends(pod: Manifest, lives: bool) -> None:  # noqa: FBT001 - a parameter
    """A pod of an excluded namespace or of a DaemonSet is not mirrored."""
    entry = put(make_world().lowers[A].upper_pods, pod)
    assert needs_lower_pod(entry, ["kube-system"]) is lives


@pytest.mark.parametrize("optional", [False, True])
def test_the_facts_have_the_pods_references(optional: Any) -> None:
    """Each reference has whether the pod starts without the object."""
    facts = facts_of(make_upper_pod(spec=spec_with_references(secrets=["password"], optional=optional)))
    assert facts.references == {Reference("Secret", "password", optional)}
