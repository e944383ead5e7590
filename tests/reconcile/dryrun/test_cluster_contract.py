"""Tests of the responses of a cluster, which are the same in memory and on a real apiserver."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from dryrunkit import FINALIZER, ROOM, STRANGER, TIME, ClusterUnderTest, decoded, error_fields, version_of

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Patch, Selection
from tensile.objects import CLAIM, CONFIG_MAP, EVENT, NAMESPACE, NODE, POD, SERVICE_ACCOUNT, VOLUME, Kind
from tensile.reconcile.apply import _is_gone
from tensile.reconcile.ownership import our_keys

INVALID_UID = (422, "Invalid", ("FieldValueInvalid", "FieldValueInvalid"))


def conditions(*types: str, status: str = "True") -> list[dict[str, Any]]:
    """Return conditions of a status."""
    return [{"type": one, "status": status} for one in types]


async def test_a_created_object_has_the_servers_fields(cluster_under_test: ClusterUnderTest) -> None:
    """Kind, namespace, UID and creation time are set by the server, and a UID in the request is ignored."""
    first = await cluster_under_test.create(
        cluster_under_test.ref("a"), {"uid": STRANGER, "deletionTimestamp": "2020-01-01T00:00:00Z"}
    )
    second = await cluster_under_test.create(cluster_under_test.ref("b"), data={"k": "v"})
    assert (first["apiVersion"], first["kind"], first["metadata"]["namespace"]) == (
        "v1",
        "ConfigMap",
        cluster_under_test.namespace,
    )
    assert len({STRANGER, first["metadata"]["uid"], second["metadata"]["uid"]}) == 3
    assert int(version_of(second)) > int(version_of(first))
    assert "deletionTimestamp" not in first["metadata"]
    datetime.strptime(first["metadata"]["creationTimestamp"], TIME).replace(tzinfo=UTC)
    assert await cluster_under_test.read(cluster_under_test.ref("b")) == second


async def test_a_created_pod_is_pending_whatever_its_request_contains(cluster_under_test: ClusterUnderTest) -> None:
    """Only the kubelet writes its status, and its generation starts at 1."""
    pod = await cluster_under_test.create(
        cluster_under_test.ref("p", POD),
        spec={"containers": [{"name": "c", "image": "i"}], "nodeName": cluster_under_test.node},
        status={"phase": "Running", "podIP": "10.0.0.1"},
    )
    assert pod["status"]["phase"] == "Pending"
    assert "podIP" not in pod["status"]
    assert pod["metadata"]["generation"] == 1


async def test_a_created_node_keeps_its_status(cluster_under_test: ClusterUnderTest) -> None:
    """A virtual node has capacity from the start in this way."""
    ref = cluster_under_test.ref(f"{cluster_under_test.node}-2", NODE)
    node = await cluster_under_test.create(ref, status={"capacity": {"cpu": "3"}})
    await cluster_under_test.delete(node, ref)
    assert node["status"]["capacity"] == {"cpu": "3"}


async def test_a_created_namespace_gets_its_label_and_its_default_service_account(
    cluster_under_test: ClusterUnderTest,
) -> None:
    """ManagedFields names the creator as the writer of the label, although the request did not contain it."""
    space = await cluster_under_test.read(cluster_under_test.ref(cluster_under_test.namespace, NAMESPACE))
    label = {"kubernetes.io/metadata.name": cluster_under_test.namespace}
    assert space["metadata"]["labels"] == label
    assert our_keys(space, "labels") == label.keys()
    assert (space["spec"], space["status"]["phase"]) == ({"finalizers": ["kubernetes"]}, "Active")
    account = await cluster_under_test.read(cluster_under_test.ref("default", SERVICE_ACCOUNT))
    assert account["metadata"]["name"] == "default"


async def test_the_name_label_of_a_namespace_cannot_be_removed(cluster_under_test: ClusterUnderTest) -> None:
    """The server restores it at once, so nothing is written."""
    ref = cluster_under_test.ref(cluster_under_test.namespace, NAMESPACE)
    space = await cluster_under_test.read(ref)
    again = await cluster_under_test.json_patch(space, ref, {"op": "remove", "path": "/metadata/labels"})
    assert again == space


async def test_a_second_create_of_a_name_is_refused(cluster_under_test: ClusterUnderTest) -> None:
    """The error is AlreadyExists, and the first object is not changed."""
    first = await cluster_under_test.create(cluster_under_test.ref("a"), data={"k": "1"})
    with pytest.raises(AlreadyExists) as error:
        await cluster_under_test.create(cluster_under_test.ref("a"), data={"k": "2"})
    assert error_fields(error.value) == (409, "AlreadyExists", ())
    assert error.value.doing == f"create ConfigMap {cluster_under_test.namespace}/a"
    assert error.value.message == 'configmaps "a" already exists'
    assert await cluster_under_test.read(cluster_under_test.ref("a")) == first


@pytest.mark.parametrize(
    ("body", "sort", "expected"),
    [
        ({"metadata": {}}, Denied, (422, "Invalid", ("FieldValueRequired",))),
        ({"metadata": {"name": "a", "namespace": "another"}}, Denied, (400, "BadRequest", ())),
        ({"metadata": {"name": "a", "resourceVersion": "5"}}, Unreachable, (500, "", ())),
    ],
)
async def test_a_create_with_an_invalid_body_is_refused(
    cluster_under_test: ClusterUnderTest,
    body: dict[str, Any],
    sort: type[ClusterError],
    expected: tuple[int, str, tuple[str, ...]],
) -> None:
    """The body has no name, another namespace, or a resourceVersion."""
    with pytest.raises(sort) as error:
        await cluster_under_test.cluster.create(cluster_under_test.ref("a"), body)
    assert error_fields(error.value) == expected
    assert await cluster_under_test.is_deleted(cluster_under_test.ref("a"))


async def test_an_invalid_namespace_is_reported_before_an_invalid_object(
    cluster_under_test: ClusterUnderTest,
) -> None:
    """The body has no name, and its namespace does not exist."""
    with pytest.raises(NotFound) as error:
        await cluster_under_test.cluster.create(
            cluster_under_test.ref("a", namespace="rehearsal-of-nothing"), {"metadata": {}}
        )
    assert error_fields(error.value) == (404, "NotFound", ())


async def test_the_namespace_of_a_cluster_scoped_object_is_ignored(cluster_under_test: ClusterUnderTest) -> None:
    """The stored Node has no namespace."""
    ref = cluster_under_test.ref(f"{cluster_under_test.node}-3", NODE)
    node = await cluster_under_test.create(ref, {"namespace": "another"})
    await cluster_under_test.delete(node, ref)
    assert "namespace" not in node["metadata"]


async def test_a_create_in_a_missing_namespace_is_not_found(cluster_under_test: ClusterUnderTest) -> None:
    """The message names the namespace."""
    with pytest.raises(NotFound) as error:
        await cluster_under_test.create(cluster_under_test.ref("a", namespace="rehearsal-of-nothing"))
    assert error_fields(error.value) == (404, "NotFound", ())
    assert error.value.message == 'namespaces "rehearsal-of-nothing" not found'


async def test_a_pod_with_a_missing_service_account_is_denied(cluster_under_test: ClusterUnderTest) -> None:
    """This includes the account `default` of a new namespace."""
    with pytest.raises(Denied) as error:
        await cluster_under_test.pod("p", serviceAccountName="nobody")
    assert error_fields(error.value) == (403, "Forbidden", ())


async def test_a_token_is_issued_for_the_requested_time(cluster_under_test: ClusterUnderTest) -> None:
    """The response is the request with its result, and nothing is stored."""
    ref = cluster_under_test.ref("default", SERVICE_ACCOUNT)
    before = await cluster_under_test.read(ref)
    token_request = decoded(await cluster_under_test.cluster.issue(ref, {"spec": {"expirationSeconds": 700}}))
    assert token_request["spec"]["expirationSeconds"] == 700
    assert token_request["status"].keys() == {"token", "expirationTimestamp"}
    without = decoded(await cluster_under_test.cluster.issue(ref, {"spec": {}}))
    assert without["spec"]["expirationSeconds"] == 3600
    assert await cluster_under_test.read(ref) == before


async def test_a_token_of_a_missing_service_account_is_not_found(cluster_under_test: ClusterUnderTest) -> None:
    """The error names the ServiceAccount."""
    ref = cluster_under_test.ref("nobody", SERVICE_ACCOUNT)
    with pytest.raises(NotFound) as error:
        await cluster_under_test.cluster.issue(ref, {"spec": {}})
    assert error_fields(error.value) == (404, "NotFound", ())
    assert error.value.doing == f"create ServiceAccount {cluster_under_test.namespace}/nobody token"


async def test_a_terminating_namespace_accepts_no_new_objects(cluster_under_test: ClusterUnderTest) -> None:
    """An existing name makes no difference, and existing objects can still be changed."""
    ref = cluster_under_test.ref(f"{cluster_under_test.namespace}-2", NAMESPACE)
    space = await cluster_under_test.create(ref)
    held = cluster_under_test.ref("held", namespace=ref.name)
    kept = await cluster_under_test.create(held, {"finalizers": [FINALIZER]})
    answer = await cluster_under_test.delete(space, ref)
    for name in ("new", "held"):
        with pytest.raises(Denied) as error:
            await cluster_under_test.create(cluster_under_test.ref(name, namespace=ref.name))
        assert error_fields(error.value) == (403, "Forbidden", ("NamespaceTerminating",))
    assert answer["status"]["phase"] == "Terminating"
    assert "deletionGracePeriodSeconds" not in answer["metadata"]
    assert not _is_gone(answer, None)
    await cluster_under_test.delete(space, ref)
    await cluster_under_test.strategic_merge_patch(kept, held, metadata={"finalizers": None})


async def test_a_missing_object_cannot_be_read_patched_or_deleted(cluster_under_test: ClusterUnderTest) -> None:
    """Each request returns NotFound, whether the namespace exists or not."""
    for ref in (cluster_under_test.ref("a"), cluster_under_test.ref("a", namespace="rehearsal-of-nothing")):
        for ask in (
            partial(cluster_under_test.cluster.read, ref),
            partial(cluster_under_test.cluster.patch, ref, Patch("merge-patch", {"data": {"a": "1"}})),
            partial(cluster_under_test.cluster.delete, ref, uid=STRANGER),
        ):
            with pytest.raises(NotFound) as error:
                await ask()
            assert error_fields(error.value) == (404, "NotFound", ())
            assert error.value.message == 'configmaps "a" not found'


def fences(field: str, value: str) -> list[Patch]:
    """Return a patch of each type with a precondition."""
    body = {"metadata": {field: value}, "data": {"k": "2"}}
    change = {"op": "replace", "path": "/data/k", "value": "2"}
    operations = [{"op": "replace", "path": f"/metadata/{field}", "value": value}, change]
    return [Patch("merge-patch", body), Patch("strategic-merge-patch", body), Patch("json-patch", operations)]


@pytest.mark.parametrize("media", [0, 1, 2], ids=["merge", "strategic", "json"])
async def test_a_patch_with_another_uid_is_a_conflict(cluster_under_test: ClusterUnderTest, media: int) -> None:
    """The UID in the body is a precondition, and a patch with the right one succeeds."""
    stored = await cluster_under_test.create(cluster_under_test.ref("a"), data={"k": "1"})
    with pytest.raises(Conflict) as error:
        await cluster_under_test.cluster.patch(cluster_under_test.ref("a"), fences("uid", STRANGER)[media])
    assert error_fields(error.value) == INVALID_UID
    assert error.value.doing == f"patch ConfigMap {cluster_under_test.namespace}/a"
    assert await cluster_under_test.read(cluster_under_test.ref("a")) == stored
    await cluster_under_test.cluster.patch(cluster_under_test.ref("a"), fences("uid", stored["metadata"]["uid"])[media])
    assert (await cluster_under_test.read(cluster_under_test.ref("a")))["data"] == {"k": "2"}


@pytest.mark.parametrize("media", [0, 1, 2], ids=["merge", "strategic", "json"])
async def test_a_patch_with_an_outdated_resource_version_is_a_conflict(
    cluster_under_test: ClusterUnderTest, media: int
) -> None:
    """The resourceVersion in the body is a precondition, and a patch with the current one succeeds."""
    stored = await cluster_under_test.create(cluster_under_test.ref("a"), data={"k": "1"})
    changed = await cluster_under_test.json_patch(
        stored, cluster_under_test.ref("a"), {"op": "add", "path": "/data/more", "value": "1"}
    )
    with pytest.raises(Conflict) as error:
        await cluster_under_test.cluster.patch(
            cluster_under_test.ref("a"), fences("resourceVersion", version_of(stored))[media]
        )
    assert error_fields(error.value) == (409, "Conflict", ())
    assert await cluster_under_test.read(cluster_under_test.ref("a")) == changed
    await cluster_under_test.cluster.patch(
        cluster_under_test.ref("a"), fences("resourceVersion", version_of(changed))[media]
    )
    assert (await cluster_under_test.read(cluster_under_test.ref("a")))["data"] == {"k": "2", "more": "1"}


async def test_a_patch_without_a_change_writes_nothing(cluster_under_test: ClusterUnderTest) -> None:
    """The resourceVersion stays, so no watch reports an event."""
    ref = cluster_under_test.ref("a")
    stored = await cluster_under_test.create(ref, {"labels": {"l": "1"}}, data={"k": "1"})
    assert await cluster_under_test.strategic_merge_patch(stored, ref, data={"k": "1", "absent": None}) == stored
    assert (
        await cluster_under_test.json_patch(stored, ref, {"op": "replace", "path": "/metadata/labels/l", "value": "1"})
        == stored
    )
    empty = {"op": "add", "path": "/metadata/annotations", "value": {}}
    assert await cluster_under_test.json_patch(stored, ref, empty) == stored


async def test_a_json_patch_can_replace_a_missing_key(cluster_under_test: ClusterUnderTest) -> None:
    """Kubernetes adds the key."""
    ref = cluster_under_test.ref("a")
    stored = await cluster_under_test.create(ref, data={"k": "1"})
    changed = await cluster_under_test.json_patch(stored, ref, {"op": "replace", "path": "/data/new", "value": "2"})
    assert changed["data"] == {"k": "1", "new": "2"}


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "test", "path": "/data/k", "value": "another"}], (422, "Invalid", ())),
        ([{"op": "add", "path": "/absent/k", "value": "1"}], (422, "Invalid", ())),
        ([{"op": "replace", "path": "/metadata/labels/l", "value": "1"}], (422, "Invalid", ())),
        ([{"op": "remove", "path": "/data/absent"}], (422, "Invalid", ())),
        ([{"op": "remove", "path": "/metadata/labels"}], (422, "Invalid", ())),
        ({"op": "add"}, (400, "BadRequest", ())),
    ],
)
async def test_a_json_patch_that_cannot_be_applied_is_denied(
    cluster_under_test: ClusterUnderTest, operations: Any, expected: tuple[int, str, tuple[str, ...]]
) -> None:
    """A test fails, a path is missing, a field is removed already, or the body is no list of operations."""
    await cluster_under_test.create(cluster_under_test.ref("a"), data={"k": "1"})
    with pytest.raises(Denied) as error:
        await cluster_under_test.cluster.patch(cluster_under_test.ref("a"), Patch("json-patch", operations))
    assert error_fields(error.value) == expected


async def test_labels_and_annotations_are_recorded_in_managed_fields(cluster_under_test: ClusterUnderTest) -> None:
    """They are those of the creation, and after a JSON patch those that it added, without the removed ones."""
    ref = cluster_under_test.ref("a")
    stored = await cluster_under_test.create(ref, {"labels": {"l": "1", "m": "1"}, "annotations": {"x/y": "1"}})
    assert our_keys(stored, "labels") == {"l", "m"}
    assert our_keys(stored, "annotations") == {"x/y"}
    changed = await cluster_under_test.json_patch(
        stored,
        ref,
        {"op": "remove", "path": "/metadata/labels/l"},
        {"op": "add", "path": "/metadata/labels/n", "value": "1"},
        {"op": "remove", "path": "/metadata/annotations"},
    )
    assert our_keys(changed, "labels") == {"m", "n"}
    assert our_keys(changed, "annotations") == set()


async def test_a_label_that_a_status_patch_writes_belongs_to_the_status_entry(
    cluster_under_test: ClusterUnderTest,
) -> None:
    """ManagedFields has a separate entry for the subresource.

    It takes the label over, and owner references are ignored.
    """
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p", meta={"labels": {"l": "1", "m": "1"}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": cluster_under_test.node, "uid": STRANGER}
    meta = {"labels": {"l": "2", "n": "1"}, "ownerReferences": [owner]}
    changed = await cluster_under_test.strategic_merge_patch(pod, ref, "status", metadata=meta)
    assert "ownerReferences" not in changed["metadata"]
    assert changed["metadata"]["labels"] == {"l": "2", "m": "1", "n": "1"}
    assert our_keys(changed, "labels") == {"m"}


async def test_conditions_merge_by_type(cluster_under_test: ClusterUnderTest) -> None:
    """Conditions that are not named stay, named ones are changed or deleted, and a new one comes first."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p")
    first = await cluster_under_test.strategic_merge_patch(
        pod, ref, "status", status={"conditions": conditions("Ready", "Gate", "Old")}
    )
    patch = [*conditions("New"), {"type": "Old", "$patch": "delete"}, *conditions("Gate", status="False")]
    second = await cluster_under_test.strategic_merge_patch(
        first, ref, "status", status={"phase": "Running", "conditions": patch}
    )
    found = [(one["type"], one["status"]) for one in second["status"]["conditions"]]
    assert found == [("New", "True"), ("Ready", "True"), ("Gate", "False")]
    assert second["status"]["phase"] == "Running"


async def test_addresses_of_a_pod_are_replaced_by_a_directive(cluster_under_test: ClusterUnderTest) -> None:
    """Null removes them all, and container statuses are always replaced as a whole."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p")
    named = [
        {"name": one, "image": "i", "imageID": "", "ready": True, "restartCount": 0, "state": {}, "lastState": {}}
        for one in ("main", "side")
    ]
    status = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": named}
    first = await cluster_under_test.strategic_merge_patch(pod, ref, "status", status=status)
    change = {"podIP": "10.0.0.2", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]}
    second = await cluster_under_test.strategic_merge_patch(
        first, ref, "status", status={**change, "containerStatuses": named[1:]}
    )
    assert second["status"]["podIPs"] == [{"ip": "10.0.0.2"}]
    assert second["status"]["containerStatuses"] == named[1:]
    third = await cluster_under_test.strategic_merge_patch(
        second, ref, "status", status={"podIP": None, "podIPs": None}
    )
    assert third["status"].keys().isdisjoint({"podIP", "podIPs"})


async def test_maps_are_merged_or_replaced(cluster_under_test: ClusterUnderTest) -> None:
    """Amounts that are not named stay unless the map has a directive to replace it."""
    ref = cluster_under_test.ref(cluster_under_test.node, NODE)
    node = await cluster_under_test.read(ref)
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "h"}]
    status = {"capacity": {"memory": "1Gi"}, "addresses": addresses}
    first = await cluster_under_test.strategic_merge_patch(node, ref, "status", status=status)
    change = {"capacity": {"gpu/x": "1"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}
    second = await cluster_under_test.strategic_merge_patch(first, ref, "status", status=change)
    assert second["status"]["capacity"] == {**ROOM, "memory": "1Gi", "gpu/x": "1"}
    assert second["status"]["addresses"] == [{"type": "InternalIP", "address": "10.0.0.2"}, addresses[1]]
    third = await cluster_under_test.strategic_merge_patch(
        second, ref, "status", status={"capacity": {"cpu": "1", "$patch": "replace"}}
    )
    assert third["status"]["capacity"] == {"cpu": "1"}


async def test_status_and_spec_are_written_by_separate_requests(cluster_under_test: ClusterUnderTest) -> None:
    """Each request ignores the fields of the other one, and writes nothing if no field is left."""
    ref = cluster_under_test.ref("p", POD)
    pod = await cluster_under_test.pod("p")
    assert await cluster_under_test.strategic_merge_patch(pod, ref, status={"phase": "Running"}) == pod
    image = [{"name": "main", "image": "main:2"}]
    assert await cluster_under_test.strategic_merge_patch(pod, ref, "status", spec={"containers": image}) == pod
    running = await cluster_under_test.strategic_merge_patch(pod, ref, "status", status={"phase": "Running"})
    assert running["metadata"]["generation"] == 1
    changed = await cluster_under_test.strategic_merge_patch(running, ref, spec={"containers": image})
    assert [one["image"] for one in changed["spec"]["containers"]] == ["main:2", "side:1"]
    assert (changed["status"]["phase"], changed["metadata"]["generation"]) == ("Running", 2)


@pytest.mark.parametrize("subresource", ["status", "resize", "ephemeralcontainers"])
async def test_a_patch_of_a_subresource_with_another_uid_is_a_conflict(
    cluster_under_test: ClusterUnderTest, subresource: str
) -> None:
    """The UID is a precondition for every subresource."""
    await cluster_under_test.pod("p")
    body = {"metadata": {"uid": STRANGER}, "status": {"phase": "Failed"}}
    with pytest.raises(Conflict) as error:
        await cluster_under_test.cluster.patch(
            cluster_under_test.ref("p", POD), Patch("strategic-merge-patch", body), subresource
        )
    assert error_fields(error.value) == INVALID_UID
    assert error.value.doing == f"patch Pod {cluster_under_test.namespace}/p {subresource}"


async def test_a_patch_of_an_event_with_another_uid_is_a_conflict(cluster_under_test: ClusterUnderTest) -> None:
    """Events have fewer validation rules, so there is one cause where other kinds have two."""
    await cluster_under_test.create(
        cluster_under_test.ref("e", EVENT), involvedObject={"namespace": cluster_under_test.namespace}
    )
    with pytest.raises(Conflict) as error:
        await cluster_under_test.cluster.patch(cluster_under_test.ref("e", EVENT), fences("uid", STRANGER)[0])
    assert error_fields(error.value) == (422, "Invalid", ("FieldValueInvalid",))


async def test_a_patch_of_an_unknown_subresource_is_not_found(cluster_under_test: ClusterUnderTest) -> None:
    """A ConfigMap has no status, for example.

    This is reported before any other error.
    """
    await cluster_under_test.create(cluster_under_test.ref("a"))
    await cluster_under_test.pod("p")
    for ref, subresource in ((cluster_under_test.ref("a"), "status"), (cluster_under_test.ref("p", POD), "unheard")):
        body = {"metadata": {"uid": STRANGER}, "status": {}}
        with pytest.raises(NotFound) as error:
            await cluster_under_test.cluster.patch(ref, Patch("merge-patch", body), subresource)
        assert error_fields(error.value) == (404, "NotFound", ())


async def test_a_list_has_the_selected_objects_sorted_by_name(cluster_under_test: ClusterUnderTest) -> None:
    """Selectors are by label, by an absent label and by field."""
    await cluster_under_test.create(cluster_under_test.ref("b"), {"labels": {"app": "web", "tier": "x"}})
    await cluster_under_test.create(cluster_under_test.ref("a"), {"labels": {"app": "web"}})
    await cluster_under_test.create(cluster_under_test.ref("c"), {"labels": {"app": "db"}})
    expected = {
        "app=web": ["a", "b"],
        "app==web,tier=x": ["b"],
        "app!=web,app": ["c"],
        "tier": ["b"],
        "!tier,app": ["a", "c"],
        "tier!=x,app": ["a", "c"],
    }
    for labels, names in expected.items():
        assert await names_of(cluster_under_test, CONFIG_MAP, Selection(cluster_under_test.namespace, labels)) == names
    assert await names_of(
        cluster_under_test, CONFIG_MAP, Selection(cluster_under_test.namespace, fields="metadata.name=c")
    ) == ["c"]
    await cluster_under_test.pod("bound")
    await cluster_under_test.pod("free", bound=False)
    assert await names_of(
        cluster_under_test, POD, Selection("", fields=f"spec.nodeName={cluster_under_test.node}")
    ) == ["bound"]
    unbound = Selection(cluster_under_test.namespace, fields="spec.nodeName=,metadata.name!=other")
    assert await names_of(cluster_under_test, POD, unbound) == ["free"]


async def names_of(cluster_under_test: ClusterUnderTest, kind: Kind, selection: Selection) -> list[str]:
    """Return the names of the listed objects."""
    listing = await cluster_under_test.cluster.list(kind, selection)
    return [decoded(raw)["metadata"]["name"] for raw in listing.items]


async def test_selecting_by_an_unknown_field_is_denied(cluster_under_test: ClusterUnderTest) -> None:
    """Otherwise it would seem that no object matches."""
    await cluster_under_test.pod("p")
    with pytest.raises(Denied) as error:
        await cluster_under_test.cluster.list(POD, Selection(cluster_under_test.namespace, fields="spec.unheard=1"))
    assert error_fields(error.value) == (400, "BadRequest", ())


CLAIM_SPEC = {
    "accessModes": ["ReadWriteOnce"],
    "storageClassName": "rehearsal",
    "resources": {"requests": {"storage": "1Gi"}},
}


async def test_a_created_claim_is_pending_and_protected(cluster_under_test: ClusterUnderTest) -> None:
    """The status in the request is ignored.

    The status is patched by its subresource, with the UID as precondition.
    """
    ref = cluster_under_test.ref("c", CLAIM)
    claim = await cluster_under_test.create(
        ref, spec=CLAIM_SPEC, status={"phase": "Bound", "capacity": {"storage": "1Gi"}}
    )
    assert claim["status"] == {"phase": "Pending"}
    assert claim["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    body = {"metadata": {"uid": claim["metadata"]["uid"]}, "status": {"capacity": {"storage": "2Gi"}}}
    assert "capacity" not in decoded(await cluster_under_test.cluster.patch(ref, Patch("merge-patch", body)))["status"]
    written = decoded(await cluster_under_test.cluster.patch(ref, Patch("merge-patch", body), "status"))
    assert written["status"]["capacity"] == {"storage": "2Gi"}
    body["metadata"] = {"uid": STRANGER}
    with pytest.raises(Conflict) as error:
        await cluster_under_test.cluster.patch(ref, Patch("merge-patch", body), "status")
    assert error_fields(error.value) == INVALID_UID


async def test_an_annotation_of_a_claim_can_be_removed_at_its_current_version_only(
    cluster_under_test: ClusterUnderTest,
) -> None:
    """A claim is returned to the scheduler in this way."""
    ref = cluster_under_test.ref("c", CLAIM)
    claim = await cluster_under_test.create(ref, {"annotations": {"chosen": "node", "kept": "yes"}}, spec=CLAIM_SPEC)
    fence = {field: claim["metadata"][field] for field in ("uid", "resourceVersion")}
    patch = Patch("merge-patch", {"metadata": {**fence, "annotations": {"chosen": None}}})
    changed = decoded(await cluster_under_test.cluster.patch(ref, patch))
    assert changed["metadata"]["annotations"] == {"kept": "yes"}
    with pytest.raises(Conflict) as error:
        await cluster_under_test.cluster.patch(ref, patch)
    assert error_fields(error.value) == (409, "Conflict", ())


async def test_a_deleted_claim_is_protected_first(cluster_under_test: ClusterUnderTest) -> None:
    """The response is the terminating claim, because a controller has to check that no pod uses it."""
    ref = cluster_under_test.ref("c", CLAIM)
    answer = await cluster_under_test.delete(await cluster_under_test.create(ref, spec=CLAIM_SPEC), ref)
    assert answer["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert "deletionTimestamp" in answer["metadata"]
    assert not _is_gone(answer, None)


async def test_the_capacity_of_a_volume_can_be_changed_and_a_volume_is_protected(
    cluster_under_test: ClusterUnderTest,
) -> None:
    """Capacity is one of the few mutable fields of a volume."""
    name = f"{cluster_under_test.namespace}-v"
    ref = cluster_under_test.ref(name, VOLUME)
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/rehearsal"}}
    volume = await cluster_under_test.create(ref, spec={**spec, "storageClassName": "rehearsal"})
    assert volume["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    assert volume["status"]["phase"] == "Pending"
    size = {"op": "replace", "path": "/spec/capacity/storage", "value": "2Gi"}
    grown = await cluster_under_test.json_patch(volume, ref, size)
    assert grown["spec"]["capacity"] == {"storage": "2Gi"}
    await cluster_under_test.delete(volume, ref)
