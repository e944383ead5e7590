"""Tests of the responses of a cluster, which are the same in memory and on a real apiserver."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from rehearsal_ground import FINALIZER, ROOM, STRANGER, TIME, ClusterUnderTest, decoded, told, version_of

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Patch, Selection
from tensile.objects import CLAIM, CONFIG_MAP, EVENT, NAMESPACE, NODE, POD, SERVICE_ACCOUNT, VOLUME, Kind
from tensile.reconcile.apply import _is_gone
from tensile.reconcile.ownership import our_keys

INVALID_UID = (422, "Invalid", ("FieldValueInvalid", "FieldValueInvalid"))


def conditions(*types: str, status: str = "True") -> list[dict[str, Any]]:
    """Return conditions of a status."""
    return [{"type": one, "status": status} for one in types]


async def test_a_created_object_has_the_servers_fields(ground: ClusterUnderTest) -> None:
    """Kind, namespace, UID and creation time are set by the server, and a UID in the request is ignored."""
    first = await ground.made(ground.at("a"), {"uid": STRANGER, "deletionTimestamp": "2020-01-01T00:00:00Z"})
    second = await ground.made(ground.at("b"), data={"k": "v"})
    assert (first["apiVersion"], first["kind"], first["metadata"]["namespace"]) == ("v1", "ConfigMap", ground.namespace)
    assert len({STRANGER, first["metadata"]["uid"], second["metadata"]["uid"]}) == 3
    assert int(version_of(second)) > int(version_of(first))
    assert "deletionTimestamp" not in first["metadata"]
    datetime.strptime(first["metadata"]["creationTimestamp"], TIME).replace(tzinfo=UTC)
    assert await ground.read(ground.at("b")) == second


async def test_a_created_pod_is_pending_whatever_its_request_contains(ground: ClusterUnderTest) -> None:
    """Only the kubelet writes its status, and its generation starts at 1."""
    pod = await ground.made(
        ground.at("p", POD),
        spec={"containers": [{"name": "c", "image": "i"}], "nodeName": ground.node},
        status={"phase": "Running", "podIP": "10.0.0.1"},
    )
    assert pod["status"]["phase"] == "Pending"
    assert "podIP" not in pod["status"]
    assert pod["metadata"]["generation"] == 1


async def test_a_created_node_keeps_its_status(ground: ClusterUnderTest) -> None:
    """A virtual node has capacity from the start in this way."""
    ref = ground.at(f"{ground.node}-2", NODE)
    node = await ground.made(ref, status={"capacity": {"cpu": "3"}})
    await ground.deleted(node, ref)
    assert node["status"]["capacity"] == {"cpu": "3"}


async def test_a_created_namespace_gets_its_label_and_its_default_service_account(ground: ClusterUnderTest) -> None:
    """ManagedFields names the creator as the writer of the label, although the request did not contain it."""
    space = await ground.read(ground.at(ground.namespace, NAMESPACE))
    label = {"kubernetes.io/metadata.name": ground.namespace}
    assert space["metadata"]["labels"] == label
    assert our_keys(space, "labels") == label.keys()
    assert (space["spec"], space["status"]["phase"]) == ({"finalizers": ["kubernetes"]}, "Active")
    account = await ground.read(ground.at("default", SERVICE_ACCOUNT))
    assert account["metadata"]["name"] == "default"


async def test_the_name_label_of_a_namespace_cannot_be_removed(ground: ClusterUnderTest) -> None:
    """The server restores it at once, so nothing is written."""
    ref = ground.at(ground.namespace, NAMESPACE)
    space = await ground.read(ref)
    again = await ground.operated(space, ref, {"op": "remove", "path": "/metadata/labels"})
    assert again == space


async def test_a_second_create_of_a_name_is_refused(ground: ClusterUnderTest) -> None:
    """The error is AlreadyExists, and the first object is not changed."""
    first = await ground.made(ground.at("a"), data={"k": "1"})
    with pytest.raises(AlreadyExists) as error:
        await ground.made(ground.at("a"), data={"k": "2"})
    assert told(error.value) == (409, "AlreadyExists", ())
    assert error.value.doing == f"create ConfigMap {ground.namespace}/a"
    assert error.value.message == 'configmaps "a" already exists'
    assert await ground.read(ground.at("a")) == first


@pytest.mark.parametrize(
    ("body", "sort", "expected"),
    [
        ({"metadata": {}}, Denied, (422, "Invalid", ("FieldValueRequired",))),
        ({"metadata": {"name": "a", "namespace": "another"}}, Denied, (400, "BadRequest", ())),
        ({"metadata": {"name": "a", "resourceVersion": "5"}}, Unreachable, (500, "", ())),
    ],
)
async def test_a_create_with_an_invalid_body_is_refused(
    ground: ClusterUnderTest, body: dict[str, Any], sort: type[ClusterError], expected: tuple[int, str, tuple[str, ...]]
) -> None:
    """The body has no name, another namespace, or a resourceVersion."""
    with pytest.raises(sort) as error:
        await ground.cluster.create(ground.at("a"), body)
    assert told(error.value) == expected
    assert await ground.is_deleted(ground.at("a"))


async def test_an_invalid_namespace_is_reported_before_an_invalid_object(
    ground: ClusterUnderTest,
) -> None:
    """The body has no name, and its namespace does not exist."""
    with pytest.raises(NotFound) as error:
        await ground.cluster.create(ground.at("a", namespace="rehearsal-of-nothing"), {"metadata": {}})
    assert told(error.value) == (404, "NotFound", ())


async def test_the_namespace_of_a_cluster_scoped_object_is_ignored(ground: ClusterUnderTest) -> None:
    """The stored Node has no namespace."""
    ref = ground.at(f"{ground.node}-3", NODE)
    node = await ground.made(ref, {"namespace": "another"})
    await ground.deleted(node, ref)
    assert "namespace" not in node["metadata"]


async def test_a_create_in_a_missing_namespace_is_not_found(ground: ClusterUnderTest) -> None:
    """The message names the namespace."""
    with pytest.raises(NotFound) as error:
        await ground.made(ground.at("a", namespace="rehearsal-of-nothing"))
    assert told(error.value) == (404, "NotFound", ())
    assert error.value.message == 'namespaces "rehearsal-of-nothing" not found'


async def test_a_pod_with_a_missing_service_account_is_denied(ground: ClusterUnderTest) -> None:
    """This includes the account `default` of a new namespace."""
    with pytest.raises(Denied) as error:
        await ground.pod("p", serviceAccountName="nobody")
    assert told(error.value) == (403, "Forbidden", ())


async def test_a_token_is_issued_for_the_requested_time(ground: ClusterUnderTest) -> None:
    """The response is the request with its result, and nothing is stored."""
    ref = ground.at("default", SERVICE_ACCOUNT)
    before = await ground.read(ref)
    asked = decoded(await ground.cluster.issue(ref, {"spec": {"expirationSeconds": 700}}))
    assert asked["spec"]["expirationSeconds"] == 700
    assert asked["status"].keys() == {"token", "expirationTimestamp"}
    without = decoded(await ground.cluster.issue(ref, {"spec": {}}))
    assert without["spec"]["expirationSeconds"] == 3600
    assert await ground.read(ref) == before


async def test_a_token_of_a_missing_service_account_is_not_found(ground: ClusterUnderTest) -> None:
    """The error names the ServiceAccount."""
    ref = ground.at("nobody", SERVICE_ACCOUNT)
    with pytest.raises(NotFound) as error:
        await ground.cluster.issue(ref, {"spec": {}})
    assert told(error.value) == (404, "NotFound", ())
    assert error.value.doing == f"create ServiceAccount {ground.namespace}/nobody token"


async def test_a_terminating_namespace_accepts_no_new_objects(ground: ClusterUnderTest) -> None:
    """An existing name makes no difference, and existing objects can still be changed."""
    ref = ground.at(f"{ground.namespace}-2", NAMESPACE)
    space = await ground.made(ref)
    held = ground.at("held", namespace=ref.name)
    kept = await ground.made(held, {"finalizers": [FINALIZER]})
    answer = await ground.deleted(space, ref)
    for name in ("new", "held"):
        with pytest.raises(Denied) as error:
            await ground.made(ground.at(name, namespace=ref.name))
        assert told(error.value) == (403, "Forbidden", ("NamespaceTerminating",))
    assert answer["status"]["phase"] == "Terminating"
    assert "deletionGracePeriodSeconds" not in answer["metadata"]
    assert not _is_gone(answer, None)
    await ground.deleted(space, ref)
    await ground.laid_over(kept, held, metadata={"finalizers": None})


async def test_a_missing_object_cannot_be_read_patched_or_deleted(ground: ClusterUnderTest) -> None:
    """Each request returns NotFound, whether the namespace exists or not."""
    for ref in (ground.at("a"), ground.at("a", namespace="rehearsal-of-nothing")):
        for ask in (
            partial(ground.cluster.read, ref),
            partial(ground.cluster.patch, ref, Patch("merge-patch", {"data": {"a": "1"}})),
            partial(ground.cluster.delete, ref, uid=STRANGER),
        ):
            with pytest.raises(NotFound) as error:
                await ask()
            assert told(error.value) == (404, "NotFound", ())
            assert error.value.message == 'configmaps "a" not found'


def fences(field: str, value: str) -> list[Patch]:
    """Return a patch of each type with a precondition."""
    body = {"metadata": {field: value}, "data": {"k": "2"}}
    change = {"op": "replace", "path": "/data/k", "value": "2"}
    operations = [{"op": "replace", "path": f"/metadata/{field}", "value": value}, change]
    return [Patch("merge-patch", body), Patch("strategic-merge-patch", body), Patch("json-patch", operations)]


@pytest.mark.parametrize("media", [0, 1, 2], ids=["merge", "strategic", "json"])
async def test_a_patch_with_another_uid_is_a_conflict(ground: ClusterUnderTest, media: int) -> None:
    """The UID in the body is a precondition, and a patch with the right one succeeds."""
    stored = await ground.made(ground.at("a"), data={"k": "1"})
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ground.at("a"), fences("uid", STRANGER)[media])
    assert told(error.value) == INVALID_UID
    assert error.value.doing == f"patch ConfigMap {ground.namespace}/a"
    assert await ground.read(ground.at("a")) == stored
    await ground.cluster.patch(ground.at("a"), fences("uid", stored["metadata"]["uid"])[media])
    assert (await ground.read(ground.at("a")))["data"] == {"k": "2"}


@pytest.mark.parametrize("media", [0, 1, 2], ids=["merge", "strategic", "json"])
async def test_a_patch_with_an_outdated_resource_version_is_a_conflict(ground: ClusterUnderTest, media: int) -> None:
    """The resourceVersion in the body is a precondition, and a patch with the current one succeeds."""
    stored = await ground.made(ground.at("a"), data={"k": "1"})
    changed = await ground.operated(stored, ground.at("a"), {"op": "add", "path": "/data/more", "value": "1"})
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ground.at("a"), fences("resourceVersion", version_of(stored))[media])
    assert told(error.value) == (409, "Conflict", ())
    assert await ground.read(ground.at("a")) == changed
    await ground.cluster.patch(ground.at("a"), fences("resourceVersion", version_of(changed))[media])
    assert (await ground.read(ground.at("a")))["data"] == {"k": "2", "more": "1"}


async def test_a_patch_without_a_change_writes_nothing(ground: ClusterUnderTest) -> None:
    """The resourceVersion stays, so no watch reports an event."""
    ref = ground.at("a")
    stored = await ground.made(ref, {"labels": {"l": "1"}}, data={"k": "1"})
    assert await ground.laid_over(stored, ref, data={"k": "1", "absent": None}) == stored
    assert await ground.operated(stored, ref, {"op": "replace", "path": "/metadata/labels/l", "value": "1"}) == stored
    empty = {"op": "add", "path": "/metadata/annotations", "value": {}}
    assert await ground.operated(stored, ref, empty) == stored


async def test_a_json_patch_can_replace_a_missing_key(ground: ClusterUnderTest) -> None:
    """Kubernetes adds the key."""
    ref = ground.at("a")
    stored = await ground.made(ref, data={"k": "1"})
    changed = await ground.operated(stored, ref, {"op": "replace", "path": "/data/new", "value": "2"})
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
    ground: ClusterUnderTest, operations: Any, expected: tuple[int, str, tuple[str, ...]]
) -> None:
    """A test fails, a path is missing, a field is removed already, or the body is no list of operations."""
    await ground.made(ground.at("a"), data={"k": "1"})
    with pytest.raises(Denied) as error:
        await ground.cluster.patch(ground.at("a"), Patch("json-patch", operations))
    assert told(error.value) == expected


async def test_labels_and_annotations_are_recorded_in_managed_fields(ground: ClusterUnderTest) -> None:
    """They are those of the creation, and after a JSON patch those that it added, without the removed ones."""
    ref = ground.at("a")
    stored = await ground.made(ref, {"labels": {"l": "1", "m": "1"}, "annotations": {"x/y": "1"}})
    assert our_keys(stored, "labels") == {"l", "m"}
    assert our_keys(stored, "annotations") == {"x/y"}
    changed = await ground.operated(
        stored,
        ref,
        {"op": "remove", "path": "/metadata/labels/l"},
        {"op": "add", "path": "/metadata/labels/n", "value": "1"},
        {"op": "remove", "path": "/metadata/annotations"},
    )
    assert our_keys(changed, "labels") == {"m", "n"}
    assert our_keys(changed, "annotations") == set()


async def test_a_label_that_a_status_patch_writes_belongs_to_the_status_entry(ground: ClusterUnderTest) -> None:
    """ManagedFields has a separate entry for the subresource.

    It takes the label over, and owner references are ignored.
    """
    ref = ground.at("p", POD)
    pod = await ground.pod("p", meta={"labels": {"l": "1", "m": "1"}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": ground.node, "uid": STRANGER}
    meta = {"labels": {"l": "2", "n": "1"}, "ownerReferences": [owner]}
    changed = await ground.laid_over(pod, ref, "status", metadata=meta)
    assert "ownerReferences" not in changed["metadata"]
    assert changed["metadata"]["labels"] == {"l": "2", "m": "1", "n": "1"}
    assert our_keys(changed, "labels") == {"m"}


async def test_conditions_merge_by_type(ground: ClusterUnderTest) -> None:
    """Conditions that are not named stay, named ones are changed or deleted, and a new one comes first."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    first = await ground.laid_over(pod, ref, "status", status={"conditions": conditions("Ready", "Gate", "Old")})
    patch = [*conditions("New"), {"type": "Old", "$patch": "delete"}, *conditions("Gate", status="False")]
    second = await ground.laid_over(first, ref, "status", status={"phase": "Running", "conditions": patch})
    found = [(one["type"], one["status"]) for one in second["status"]["conditions"]]
    assert found == [("New", "True"), ("Ready", "True"), ("Gate", "False")]
    assert second["status"]["phase"] == "Running"


async def test_addresses_of_a_pod_are_replaced_by_a_directive(ground: ClusterUnderTest) -> None:
    """Null removes them all, and container statuses are always replaced as a whole."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    named = [
        {"name": one, "image": "i", "imageID": "", "ready": True, "restartCount": 0, "state": {}, "lastState": {}}
        for one in ("main", "side")
    ]
    status = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": named}
    first = await ground.laid_over(pod, ref, "status", status=status)
    change = {"podIP": "10.0.0.2", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]}
    second = await ground.laid_over(first, ref, "status", status={**change, "containerStatuses": named[1:]})
    assert second["status"]["podIPs"] == [{"ip": "10.0.0.2"}]
    assert second["status"]["containerStatuses"] == named[1:]
    third = await ground.laid_over(second, ref, "status", status={"podIP": None, "podIPs": None})
    assert third["status"].keys().isdisjoint({"podIP", "podIPs"})


async def test_maps_are_merged_or_replaced(ground: ClusterUnderTest) -> None:
    """Amounts that are not named stay unless the map has a directive to replace it."""
    ref = ground.at(ground.node, NODE)
    node = await ground.read(ref)
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "h"}]
    status = {"capacity": {"memory": "1Gi"}, "addresses": addresses}
    first = await ground.laid_over(node, ref, "status", status=status)
    change = {"capacity": {"gpu/x": "1"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}
    second = await ground.laid_over(first, ref, "status", status=change)
    assert second["status"]["capacity"] == {**ROOM, "memory": "1Gi", "gpu/x": "1"}
    assert second["status"]["addresses"] == [{"type": "InternalIP", "address": "10.0.0.2"}, addresses[1]]
    third = await ground.laid_over(second, ref, "status", status={"capacity": {"cpu": "1", "$patch": "replace"}})
    assert third["status"]["capacity"] == {"cpu": "1"}


async def test_status_and_spec_are_written_by_separate_requests(ground: ClusterUnderTest) -> None:
    """Each request ignores the fields of the other one, and writes nothing if no field is left."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    assert await ground.laid_over(pod, ref, status={"phase": "Running"}) == pod
    image = [{"name": "main", "image": "main:2"}]
    assert await ground.laid_over(pod, ref, "status", spec={"containers": image}) == pod
    running = await ground.laid_over(pod, ref, "status", status={"phase": "Running"})
    assert running["metadata"]["generation"] == 1
    changed = await ground.laid_over(running, ref, spec={"containers": image})
    assert [one["image"] for one in changed["spec"]["containers"]] == ["main:2", "side:1"]
    assert (changed["status"]["phase"], changed["metadata"]["generation"]) == ("Running", 2)


@pytest.mark.parametrize("subresource", ["status", "resize", "ephemeralcontainers"])
async def test_a_patch_of_a_subresource_with_another_uid_is_a_conflict(
    ground: ClusterUnderTest, subresource: str
) -> None:
    """The UID is a precondition for every subresource."""
    await ground.pod("p")
    body = {"metadata": {"uid": STRANGER}, "status": {"phase": "Failed"}}
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ground.at("p", POD), Patch("strategic-merge-patch", body), subresource)
    assert told(error.value) == INVALID_UID
    assert error.value.doing == f"patch Pod {ground.namespace}/p {subresource}"


async def test_a_patch_of_an_event_with_another_uid_is_a_conflict(ground: ClusterUnderTest) -> None:
    """Events have fewer validation rules, so there is one cause where other kinds have two."""
    await ground.made(ground.at("e", EVENT), involvedObject={"namespace": ground.namespace})
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ground.at("e", EVENT), fences("uid", STRANGER)[0])
    assert told(error.value) == (422, "Invalid", ("FieldValueInvalid",))


async def test_a_patch_of_an_unknown_subresource_is_not_found(ground: ClusterUnderTest) -> None:
    """A ConfigMap has no status, for example.

    This is reported before any other error.
    """
    await ground.made(ground.at("a"))
    await ground.pod("p")
    for ref, subresource in ((ground.at("a"), "status"), (ground.at("p", POD), "unheard")):
        body = {"metadata": {"uid": STRANGER}, "status": {}}
        with pytest.raises(NotFound) as error:
            await ground.cluster.patch(ref, Patch("merge-patch", body), subresource)
        assert told(error.value) == (404, "NotFound", ())


async def test_a_list_has_the_selected_objects_sorted_by_name(ground: ClusterUnderTest) -> None:
    """Selectors are by label, by an absent label and by field."""
    await ground.made(ground.at("b"), {"labels": {"app": "web", "tier": "x"}})
    await ground.made(ground.at("a"), {"labels": {"app": "web"}})
    await ground.made(ground.at("c"), {"labels": {"app": "db"}})
    expected = {
        "app=web": ["a", "b"],
        "app==web,tier=x": ["b"],
        "app!=web,app": ["c"],
        "tier": ["b"],
        "!tier,app": ["a", "c"],
        "tier!=x,app": ["a", "c"],
    }
    for labels, names in expected.items():
        assert await names_of(ground, CONFIG_MAP, Selection(ground.namespace, labels)) == names
    assert await names_of(ground, CONFIG_MAP, Selection(ground.namespace, fields="metadata.name=c")) == ["c"]
    await ground.pod("bound")
    await ground.pod("free", bound=False)
    assert await names_of(ground, POD, Selection("", fields=f"spec.nodeName={ground.node}")) == ["bound"]
    unbound = Selection(ground.namespace, fields="spec.nodeName=,metadata.name!=other")
    assert await names_of(ground, POD, unbound) == ["free"]


async def names_of(ground: ClusterUnderTest, kind: Kind, selection: Selection) -> list[str]:
    """Return the names of the listed objects."""
    listing = await ground.cluster.list(kind, selection)
    return [decoded(raw)["metadata"]["name"] for raw in listing.items]


async def test_selecting_by_an_unknown_field_is_denied(ground: ClusterUnderTest) -> None:
    """Otherwise it would seem that no object matches."""
    await ground.pod("p")
    with pytest.raises(Denied) as error:
        await ground.cluster.list(POD, Selection(ground.namespace, fields="spec.unheard=1"))
    assert told(error.value) == (400, "BadRequest", ())


CLAIM_SPEC = {
    "accessModes": ["ReadWriteOnce"],
    "storageClassName": "rehearsal",
    "resources": {"requests": {"storage": "1Gi"}},
}


async def test_a_created_claim_is_pending_and_protected(ground: ClusterUnderTest) -> None:
    """The status in the request is ignored.

    The status is patched by its subresource, with the UID as precondition.
    """
    ref = ground.at("c", CLAIM)
    claim = await ground.made(ref, spec=CLAIM_SPEC, status={"phase": "Bound", "capacity": {"storage": "1Gi"}})
    assert claim["status"] == {"phase": "Pending"}
    assert claim["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    body = {"metadata": {"uid": claim["metadata"]["uid"]}, "status": {"capacity": {"storage": "2Gi"}}}
    assert "capacity" not in decoded(await ground.cluster.patch(ref, Patch("merge-patch", body)))["status"]
    written = decoded(await ground.cluster.patch(ref, Patch("merge-patch", body), "status"))
    assert written["status"]["capacity"] == {"storage": "2Gi"}
    body["metadata"] = {"uid": STRANGER}
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ref, Patch("merge-patch", body), "status")
    assert told(error.value) == INVALID_UID


async def test_an_annotation_of_a_claim_can_be_removed_at_its_current_version_only(ground: ClusterUnderTest) -> None:
    """A claim is returned to the scheduler in this way."""
    ref = ground.at("c", CLAIM)
    claim = await ground.made(ref, {"annotations": {"chosen": "node", "kept": "yes"}}, spec=CLAIM_SPEC)
    fence = {field: claim["metadata"][field] for field in ("uid", "resourceVersion")}
    patch = Patch("merge-patch", {"metadata": {**fence, "annotations": {"chosen": None}}})
    changed = decoded(await ground.cluster.patch(ref, patch))
    assert changed["metadata"]["annotations"] == {"kept": "yes"}
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ref, patch)
    assert told(error.value) == (409, "Conflict", ())


async def test_a_deleted_claim_is_protected_first(ground: ClusterUnderTest) -> None:
    """The response is the terminating claim, because a controller has to check that no pod uses it."""
    ref = ground.at("c", CLAIM)
    answer = await ground.deleted(await ground.made(ref, spec=CLAIM_SPEC), ref)
    assert answer["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert "deletionTimestamp" in answer["metadata"]
    assert not _is_gone(answer, None)


async def test_the_capacity_of_a_volume_can_be_changed_and_a_volume_is_protected(ground: ClusterUnderTest) -> None:
    """Capacity is one of the few mutable fields of a volume."""
    name = f"{ground.namespace}-v"
    ref = ground.at(name, VOLUME)
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/rehearsal"}}
    volume = await ground.made(ref, spec={**spec, "storageClassName": "rehearsal"})
    assert volume["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    assert volume["status"]["phase"] == "Pending"
    size = {"op": "replace", "path": "/spec/capacity/storage", "value": "2Gi"}
    grown = await ground.operated(volume, ref, size)
    assert grown["spec"]["capacity"] == {"storage": "2Gi"}
    await ground.deleted(volume, ref)
