"""Tests of which changes count as drift by another client, and that each is reported once."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from loopkit import ONE, LoopUnderTest, copy, present
from virtualtime import in_virtual_time
from worldkit import (
    NOW,
    A,
    B,
    config_map,
    delete_observed,
    make_lower_pod,
    make_namespace,
    make_upper_pod,
    put,
    spec_with_references,
    stored_bytes,
    with_owner_marks,
)

from tensile.errors import Unreachable
from tensile.kube.cluster import Patch
from tensile.names import FIELD_MANAGER, WRITTEN_KEYS
from tensile.objects import CONFIG_MAP, EVENT, NODE, POD, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, Present
from tensile.reconcile.drift import (
    AGAIN,
    DELETED,
    MOST_KEPT,
    Drift,
    DriftDetector,
    DriftLog,
    RecentDrift,
    drifted,
    pointer,
)
from tensile.reconcile.plan import Step

REF = Ref(A, CONFIG_MAP, "default", "one")


def wanted(data: dict[str, str]) -> Decision:
    """Return a decision that wants the copy with this data."""
    found = present(data=data)
    return Decision((Present(REF, found.manifest, "because", found.sections, replaceable=True),))


def book(manager: str, time: str, **fields: Any) -> Manifest:
    """Return an entry of managedFields with the data keys that a manager owns."""
    keys = {f"f:{key}": {} for key in fields}
    return {"manager": manager, "operation": "Update", "time": f"2026-03-01T{time}:00Z", "fieldsV1": {"f:data": keys}}


def edited(one: Manifest) -> None:
    """Change the data as another client does."""
    one["data"] = {"key": "edited"}


def emptied(one: Manifest) -> None:
    """Remove the data. Its remover owns no field, so managedFields does not name it."""
    one["data"] = {}


def edit(bench: LoopUnderTest, change: Callable[[Manifest], None]) -> None:
    """Change the copy as another client after the engine's write, and deliver the watch event."""
    copies = bench.world.lowers[A].config_maps
    entry = copies.get("default", "one")
    assert entry is not None
    manifest = deepcopy(entry.manifest())
    change(manifest)
    copies.put(stored_bytes(manifest, entry.version + 1))


def events(bench: LoopUnderTest) -> list[str]:
    """Return the messages of the Events about drift."""
    bodies = [call.payload for call in bench.clusters[UPPER].calls if call.ref.kind == EVENT]
    return [body["message"] for body in bodies if body["reason"] == "DriftReverted"]


async def made(bench: LoopUnderTest) -> None:
    """Create the copy, with the response that the cluster returns."""
    await bench.run(wanted({"key": "value"}))
    assert bench.observer.verbs() == ["create one"]
    assert bench.loop.drift.counts == {}


def put_back(what: str) -> str:
    """Return the message of the Event about a change of the copy."""
    return (
        f"another client changed ConfigMap default/one in lower cluster {A} ({what}): "
        "the engine puts it back; change the upper ConfigMap instead"
    )


@pytest.mark.parametrize(("change", "field"), [(edited, "data.key"), (emptied, "data.key")])
@in_virtual_time
async def test_a_change_of_a_copy_by_another_client_is_counted_and_recorded_as_event(change: Any, field: str) -> None:
    """One Event about the upper object is created before the change is reverted."""
    bench = LoopUnderTest()
    await made(bench)
    edit(bench, change)
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert bench.loop.drift.counts == {(A, "ConfigMap"): 1}
    assert events(bench) == [put_back(field)]
    (event_call,) = [call for call in bench.clusters[UPPER].calls if call.ref.kind == EVENT]
    about = event_call.payload["involvedObject"]
    assert (about["kind"], about["namespace"], about["name"], about["uid"]) == ("ConfigMap", "default", "one", "above")
    assert [step.verb for step in bench.observer.steps] == ["create", "create", "patch"]
    await bench.close()


@in_virtual_time
async def test_the_deletion_of_a_copy_by_another_client_is_counted() -> None:
    """A deletion by the engine itself is not counted."""
    bench = LoopUnderTest()
    await made(bench)
    copies = bench.world.lowers[A].config_maps
    delete_observed(copies, "one")
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert bench.loop.drift.counts == {(A, "ConfigMap"): 1}
    assert events(bench) == [put_back("deleted")]
    entry = copies.get("default", "one")
    assert entry is not None
    await bench.run(Decision((Absent(REF, entry.uid, "nothing needs it"),)))
    await bench.run(wanted({"key": "value"}))
    assert copies.get("default", "one") is not None
    assert bench.loop.drift.counts == {(A, "ConfigMap"): 1}
    await bench.close()


@in_virtual_time
async def test_an_edit_of_the_upper_object_is_no_drift() -> None:
    """The copy differs from the upper object, but no other client wrote the copy."""
    bench = LoopUnderTest()
    await made(bench)
    await bench.run(wanted({"key": "new", "more": "value"}))
    assert bench.observer.verbs()[-1] == "patch one"
    assert (bench.loop.drift.counts, events(bench)) == ({}, [])
    await bench.close()


@in_virtual_time
async def test_a_mutation_by_admission_of_the_engines_own_write_is_no_drift() -> None:
    """A webhook that changes each request is no client that changed the copy afterwards."""
    bench = LoopUnderTest()
    mutated = copy(data={"key": "mutated"})
    mutated["metadata"] |= {"namespace": "default", "uid": "made-one"}
    answers = [{**mutated, "metadata": {**mutated["metadata"], "resourceVersion": str(n)}} for n in range(101, 105)]
    bench.lower.queue_responses("create", answers[0])
    bench.lower.queue_responses("patch", *answers[1:])
    await bench.run(wanted({"key": "value"}))
    for _ in answers[1:]:
        bench.loop.add(ONE)
        await bench.loop.wait_idle()
    assert [step.verb for step in bench.observer.steps] == ["create", "patch", "patch", "patch"]
    edit(bench, lambda one: one["metadata"]["labels"].update({"theirs": "yes"}))
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert (bench.loop.drift.counts, events(bench)) == ({}, [])
    await bench.close()


@in_virtual_time
async def test_a_failed_event_does_not_prevent_the_revert() -> None:
    """The copy is patched even if the upper cluster does not respond."""
    bench = LoopUnderTest()
    await made(bench)
    edit(bench, edited)
    bench.clusters[UPPER].queue_responses("create", Unreachable("no answer"))
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert bench.observer.verbs()[-1] == "patch one"
    await bench.close()


def patch(value: str) -> Step:
    """Return a step that sets a key of the copy."""
    operations: tuple[dict[str, Any], ...] = ({"op": "replace", "path": "/data/key", "value": value},)
    return Step("patch", REF, "because", patch=Patch("json-patch", list(operations)), operations=operations)


OURS = book(FIELD_MANAGER, "12:00", other={})


def found_in(seen: Manifest, then: Manifest, original: Manifest | None = None, ref: Ref = REF) -> list[tuple[str, str]]:
    """Return the path and the manager of each field that another client changed."""
    return [(pointer(one.field.path), one.manager) for one in drifted(seen, then, ref, original)]


@pytest.mark.parametrize(
    ("books", "found"),
    [
        pytest.param([book(FIELD_MANAGER, "12:00", key={})], [], id="ours"),
        pytest.param([OURS, book("kubectl-edit", "12:01", key={})], [("/data/key", "kubectl-edit")], id="other-client"),
        pytest.param([OURS, book("kubectl-edit", "12:00", key={})], [("/data/key", "kubectl-edit")], id="same-second"),
        pytest.param([OURS, book("virtual-kubelet", "11:00", key={})], [], id="before-the-adoption"),
        pytest.param([OURS, book("kubectl-edit", "12:01", another={})], [], id="another-field"),
        pytest.param([OURS, {**book("x", "12:01", key={}), "subresource": "status"}], [], id="a-status"),
        pytest.param([book(FIELD_MANAGER, "12:00", key={}), book("x", "12:01", key={})], [], id="shared-with-us"),
        pytest.param(
            [OURS, book("x", "12:01", key={}), book("y", "12:02", key={})], [("/data/key", "y")], id="the-last"
        ),
        pytest.param(
            [{**book(FIELD_MANAGER, "12:00"), "fieldsV1": {"f:data": {}}}, book("kubectl-patch", "12:01", key={})],
            [("/data/key", "kubectl-patch")],
            id="no-data-key-is-ours",
        ),
        pytest.param([OURS, {**book("x", "12:01"), "fieldsV1": {"f:data": 5}}], [], id="malformed"),
        pytest.param([OURS, {**book("x", "12:01"), "fieldsV1": {"f:data": {}}}], [("/data/key", "x")], id="as-a-whole"),
    ],
)
def test_managed_fields_show_drift_without_earlier_state(books: list[Manifest], found: list[tuple[str, str]]) -> None:
    """After a restart, a field is drift if another client owns it and wrote it after the engine."""
    seen = copy(data={"key": "edited"})
    seen["metadata"]["managedFields"] = books
    assert found_in(seen, {**seen, "data": {"key": "value"}}) == found


@pytest.mark.parametrize(
    ("born", "is_drift"),
    [
        pytest.param("11:59", True, id="before our last write"),
        pytest.param("12:00", True, id="in the same second"),
        pytest.param("12:01", False, id="after it"),
    ],
)
def test_the_time_of_an_upper_field_shows_whether_its_absence_below_is_drift(born: str, *, is_drift: bool) -> None:
    """A client that removes a field owns nothing.

    But the engine's last write contained what the upper object had before it.
    """
    seen, original = {**copy(), "data": {}}, config_map("one")
    seen["metadata"]["managedFields"] = [OURS]
    original["metadata"]["managedFields"] = [book("kubectl", born, key={})]
    then = {**seen, "data": {"key": "value"}}
    assert found_in(seen, then, original) == ([("/data/key", "")] if is_drift else [])
    assert found_in(seen, then) == [], "without the upper object it is unknown"
    drifted_fields = drifted(seen, then, REF, original, ties=False)
    assert bool(drifted_fields) is (born < "12:00"), "an engine that runs may have to carry down an edit of that second"


def test_the_written_keys_annotation_of_a_pod_shows_removed_keys() -> None:
    """A missing label that the engine wrote was removed in the lower cluster, and one that it never wrote is new."""
    seen = make_lower_pod(make_upper_pod(labels={"app": "web"}, annotations={"team": "one"}))
    then = make_lower_pod(make_upper_pod(labels={"app": "web", "new": "yes"}, annotations={"team": "one"}))
    del seen["metadata"]["labels"]["app"], seen["metadata"]["annotations"]["team"]
    pod = Ref(A, POD, "default", "web")
    assert found_in(seen, then, ref=pod) == [("/metadata/annotations/team", ""), ("/metadata/labels/app", "")]
    del seen["metadata"]["annotations"][WRITTEN_KEYS]
    assert found_in(seen, then, ref=pod) == [], "without the note it is unknown"


def test_list_elements_are_matched_by_their_keys() -> None:
    """Containers match by name, and ports of a Service by port and protocol; the path contains the index."""
    container = {"f:containers": {'k:{"name":"side"}': {"f:image": {}}}}
    seen = make_lower_pod(
        make_upper_pod(spec={"containers": [{"name": "main", "image": "a:1"}, {"name": "side", "image": "b:2"}]})
    )
    seen["metadata"]["managedFields"] = [{**book("kubectl", "12:01"), "fieldsV1": {"f:spec": container}}]
    then = {**seen, "spec": {"containers": [{"name": "main", "image": "a:2"}, {"name": "side", "image": "b:1"}]}}
    assert found_in(seen, then) == [("/spec/containers/1/image", "kubectl")]
    port = {'k:{"port":81,"protocol":"TCP"}': {".": {}, "f:port": {}, "f:protocol": {}}}
    service = {"metadata": {"managedFields": [{**book("x", "12:01"), "fieldsV1": {"f:spec": {"f:ports": port}}}]}}
    ports = [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]
    seen, then = {**service, "spec": {"ports": ports}}, {**service, "spec": {"ports": ports[:1]}}
    assert found_in(seen, then) == [("/spec/ports/1", "x")]
    wanted = {**service, "spec": {"ports": [{"port": 80, "protocol": "TCP"}]}}
    assert found_in({**service, "spec": {"ports": ports[1:]}}, wanted) == [("/spec/ports/0/port", "x")]


def test_taints_of_a_node_are_no_drift() -> None:
    """ManagedFields has them as one list, which the node lifecycle controller writes too."""
    node = {"metadata": {"managedFields": [{**book("x", "12:01"), "fieldsV1": {"f:spec": {"f:taints": {}}}}]}}
    seen, then = {**node, "spec": {"taints": []}}, {**node, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    assert found_in(seen, then, ref=Ref(UPPER, NODE, "", "a")) == []


def test_the_same_drift_counts_once_within_a_period() -> None:
    """A controller may repeat its change all the time.

    Another change counts at once, and so does the same change much later.
    """
    world = LoopUnderTest().world
    seen = with_owner_marks(config_map("one"), "above")
    seen["metadata"]["managedFields"].append(book("kubectl-edit", "12:01", key={}))
    entry, detector = put(world.lowers[A].config_maps, seen), DriftDetector()
    found = Drift(("data.key",), ("kubectl-edit",))
    again = patch(value="again")
    assert detector.find(again, entry, world, 0.0) == found
    assert detector.find(again, entry, world, AGAIN - 1) is None
    other = patch(value="other")
    assert detector.find(other, entry, world, AGAIN - 1) == found
    assert detector.find(other, entry, world, 2 * AGAIN) == found
    detector.forget(B)
    assert detector.find(other, entry, world, 2 * AGAIN) is None
    detector.forget(A)
    assert detector.find(other, entry, world, 2 * AGAIN) == found


def test_the_drift_detector_keeps_no_content() -> None:
    """A Secret may contain 1 MiB of data, and thousands of objects may have drift."""
    world = LoopUnderTest().world
    seen = with_owner_marks(config_map("one"), "above")
    seen["metadata"]["managedFields"].append(book("kubectl-edit", "12:01", key={}))
    entry, detector = put(world.lowers[A].config_maps, seen), DriftDetector()
    large = "x" * 2**20
    assert detector.find(patch(value=large), entry, world, 0.0)
    assert len(pickle.dumps(detector)) < 1000
    assert detector.find(patch(value=large), entry, world, 1.0) is None
    assert detector.find(patch(value=f"{large}y"), entry, world, 1.0)


@pytest.mark.parametrize("pod_first", [False, True], ids=["before the pod", "after the pod"])
def test_a_missing_copy_counts_as_deleted_if_a_newer_pod_refers_to_it(*, pod_first: bool) -> None:
    """After a restart, a pod that is newer than the upper object proves that the copy existed.

    An older pod proves nothing.
    """
    world, times = LoopUnderTest().world, ["2026-03-01T11:00:00Z", "2026-03-01T11:00:05Z"]
    made, started = reversed(times) if pod_first else times
    put(world.upper.namespaces, make_namespace())
    upper_object = make_upper_pod(spec=spec_with_references(config_maps=["one"]), creationTimestamp=started)
    put(world.lowers[A].upper_pods, upper_object)
    put(world.upper.config_maps, config_map("one", creationTimestamp=made))
    step = Step("create", REF, "because", body=with_owner_marks(config_map("one"), "ConfigMap-one"), content=7)
    assert DriftDetector().find(step, None, world, 0.0) is None, "no lower pod refers to it"
    put(world.lowers[A].pods, make_lower_pod(upper_object))
    expected = None if pod_first else Drift((DELETED,))
    assert DriftDetector().find(step, None, world, 0.0) == expected
    detector = DriftDetector()
    detector.note(Step("delete", REF, "it is immutable", uid="x"), None)
    assert detector.find(step, None, world, 0.0) is None, "we deleted it ourselves"


def test_the_last_drifts_are_kept_and_all_are_counted() -> None:
    """The log keeps the last 50 drifts, with the latest first."""
    log = DriftLog()
    for number in range(MOST_KEPT + 2):
        log.add(A, RecentDrift(NOW, REF._replace(name=str(number)), Drift(("data.key",))))
    assert log.counts == {(A, "ConfigMap"): MOST_KEPT + 2}
    assert (log.of_lower(A), log.of_lower(B)) == (MOST_KEPT + 2, 0)
    assert [one.ref.name for one in log] == [str(number) for number in range(MOST_KEPT + 1, 1, -1)]
