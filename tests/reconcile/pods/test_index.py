"""What is taken out of a pod once, when it comes, and by what it is found."""

import json
import tracemalloc
from typing import Any

import orjson
import pytest
from worldkit import OWNER_HERE, A, put, referring, twin, upper_pod, world

from tensile.kube.store import packed
from tensile.names import FIELD_MANAGER
from tensile.objects import Manifest
from tensile.reconcile.pods.index import digest_above, digest_below, facts_of, lives_below
from tensile.reconcile.pods.references import Reference


def disrupted(reason: str, status: str = "True") -> Manifest:
    """Make the status of a pod that Kubernetes ended, for a reason."""
    return {"conditions": [{"type": "Ready", "status": "False"}, _target(reason, status)]}


def _target(reason: str, status: str) -> Manifest:
    return {"type": "DisruptionTarget", "status": status, "reason": reason}


def test_a_digest_keeps_the_bytes_and_the_facts() -> None:
    """The bytes are decoded again only by who needs more."""
    raw = orjson.dumps(upper_pod())
    for digest in (digest_above, digest_below):
        kept = digest(raw)
        assert kept.raw == raw
        assert kept.facts == facts_of(upper_pod())


def test_what_is_kept_takes_no_more_room_than_it_has_bytes() -> None:
    """Ten thousand pods are kept: no work buffer hangs on to each."""
    kept = digest_below(orjson.dumps(upper_pod(annotations={"note": "x" * 3000})))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    again = [packed(orjson.loads(kept.raw)) for _ in range(100)]
    taken = (tracemalloc.get_traced_memory()[0] - before) / len(again)
    tracemalloc.stop()
    assert len(kept.raw) < taken < 2 * len(kept.raw)


def test_of_the_book_keeping_only_what_is_asked_is_kept() -> None:
    """Above nothing; below which metadata we wrote, and which metadata and parts of the spec other clients did."""
    both = {"f:metadata": {"f:labels": {}}, "f:spec": {"f:containers": {}}}
    books = [
        {"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": both},
        {"manager": "kubectl", "operation": "Update", "fieldsV1": {**both, "f:kind": {}}},
        {"manager": "kubectl", "operation": "Update", "subresource": "resize", "fieldsV1": both},
        {"manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
    ]
    raw = orjson.dumps(upper_pod(managedFields=books))
    assert "managedFields" not in orjson.loads(digest_above(raw).raw)["metadata"]
    ours, theirs, resized = orjson.loads(digest_below(raw).raw)["metadata"]["managedFields"]
    assert ours == {**books[0], "fieldsV1": {"f:metadata": both["f:metadata"]}}
    assert theirs == {**books[1], "fieldsV1": both}
    assert resized == books[2]


def test_an_upper_pod_has_no_marks() -> None:
    """And a young one nothing else either."""
    facts = facts_of(upper_pod())
    assert (facts.owner, facts.upper_uid) == ("", "")
    assert (facts.terminal, facts.terminating, facts.unasked, facts.ran) == (False, False, False, False)


def test_a_lower_pod_tells_whose_it_is_and_for_which_upper_pod() -> None:
    """By its label and its annotation."""
    facts = facts_of(twin(upper_pod(uid="one")))
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
def test_a_phase_tells_whether_it_ended_and_whether_it_ran(phase: str, terminal: bool, ran: bool) -> None:  # noqa: FBT001 - parameters
    """Only the two last phases are never left again."""
    facts = facts_of(upper_pod(status={"phase": phase}))
    assert (facts.terminal, facts.ran) == (terminal, ran)


def test_a_pending_pod_with_a_container_ran() -> None:
    """Its image may be being pulled below: it must not be made a second time."""
    assert facts_of(upper_pod(status={"containerStatuses": [{"name": "main"}]})).ran


def test_a_pod_without_a_status_is_pending() -> None:
    """As it is before anybody wrote one."""
    pod = upper_pod()
    del pod["status"]
    assert not facts_of(pod).ran


def test_a_deleted_pod_is_terminating() -> None:
    """Whatever its phase says."""
    assert facts_of(upper_pod(deletionTimestamp="2026-03-01T12:00:00Z")).terminating


@pytest.mark.parametrize(
    ("status", "unasked"),
    [
        (disrupted("DeletionByTaintManager"), True),
        (disrupted("DeletionByPodGC"), True),
        (disrupted("DeletionByPodGC", "False"), False),
        (disrupted("EvictionByEvictionAPI"), False),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, False),
        ({}, False),
    ],
)
def test_what_kubernetes_ended_for_its_nodes_sake_was_not_asked_for(status: Manifest, unasked: bool) -> None:  # noqa: FBT001 - a parameter
    """Taint manager and pod garbage collection act on a node; an eviction is somebody's decision."""
    assert facts_of(upper_pod(status=status)).unasked is unasked


def test_pods_are_found_by_what_they_refer_to() -> None:
    """By kind, namespace and name; a pod that goes is not found any more."""
    cache = world().lowers[A].upper_pods
    spec = referring(config_maps=["settings"], secrets=["password"])
    put(cache, upper_pod("one", spec), upper_pod("two", spec, namespace="other"), upper_pod("three"))
    assert [one.name for one in cache.select("reference", ("ConfigMap", "default", "settings"))] == ["one"]
    assert [one.name for one in cache.select("reference", ("Secret", "other", "password"))] == ["two"]
    cache.remove(json.dumps(_gone(upper_pod("one", spec))).encode())
    assert cache.select("reference", ("ConfigMap", "default", "settings")) == ()


def _gone(pod: Manifest) -> Manifest:
    return {**pod, "metadata": {**pod["metadata"], "resourceVersion": "99"}}


def test_pods_are_found_by_namespace() -> None:
    """Whatever they refer to."""
    cache = world().lowers[A].upper_pods
    put(cache, upper_pod("one"), upper_pod("two", namespace="other"), upper_pod("three"))
    assert sorted(one.name for one in cache.select("namespace", "default")) == ["one", "three"]


def test_living_pods_are_counted_by_namespace() -> None:
    """Those that ended, or are not mirrored, need nothing where they run."""
    cache = world().lowers[A].upper_pods
    ended = upper_pod("ended", status={"phase": "Failed"})
    put(cache, upper_pod("one"), ended, of_a("DaemonSet"), upper_pod("two", namespace="other"))
    assert (cache.count("living", "default"), cache.count("living", "other")) == (1, 1)


def of_a(kind: str, label: str = "", *, controller: bool = True) -> Manifest:
    """Make a pod owned by something, with a value of the label virtual-pod."""
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "agent", "uid": "d", "controller": controller}
    return upper_pod(ownerReferences=[owner], labels={"virtual-pod": label})


@pytest.mark.parametrize(
    ("owners", "bare"), [([], True), ([{"kind": "Job", "controller": True}], False), ([{"kind": "ConfigMap"}], True)]
)
def test_a_pod_without_a_controller_is_told_apart(owners: list[Manifest], *, bare: bool) -> None:
    """An owner that does not control it would not make it again."""
    assert facts_of(upper_pod(ownerReferences=owners)).bare is bare


@pytest.mark.parametrize(
    ("pod", "daemon"),
    [
        (of_a("DaemonSet"), True),
        (of_a("DaemonSet", "false"), True),
        (of_a("DaemonSet", "true"), False),
        (of_a("DaemonSet", controller=False), False),
        (of_a("ReplicaSet"), False),
        (upper_pod(), False),
    ],
)
def test_a_pod_of_a_daemon_set_is_one_unless_its_author_asked(pod: Manifest, daemon: bool) -> None:  # noqa: FBT001 - a parameter
    """A DaemonSet that tolerates everything lands on every node; the label says that it was meant."""
    assert facts_of(pod).daemon is daemon


@pytest.mark.parametrize(
    ("pod", "lives"),
    [
        (upper_pod(), True),
        (upper_pod(deletionTimestamp="2026-03-01T12:00:00Z"), True),
        (upper_pod(status={"phase": "Failed"}), False),
        (upper_pod(namespace="kube-system"), False),
        (of_a("DaemonSet"), False),
    ],
    ids=["any", "being deleted", "ended", "excluded", "of a DaemonSet"],
)
def test_what_lives_below_needs_something_there(pod: Manifest, lives: bool) -> None:  # noqa: FBT001 - a parameter
    """Until it ended; what is not mirrored never does."""
    entry = put(world().lowers[A].upper_pods, pod)
    assert lives_below(entry, ["kube-system"]) is lives


@pytest.mark.parametrize("optional", [False, True])
def test_facts_hold_the_references(optional: Any) -> None:
    """With whether the pod starts without the object."""
    facts = facts_of(upper_pod(spec=referring(secrets=["password"], optional=optional)))
    assert facts.references == {Reference("Secret", "password", optional)}
