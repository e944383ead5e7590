"""What a cluster answers: each sentence holds in memory and before a real apiserver alike."""

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
    """Make conditions of a status."""
    return [{"type": one, "status": status} for one in types]


async def test_a_created_object_is_stored_with_what_the_server_adds(ground: ClusterUnderTest) -> None:
    """Kind, place, a UID of its own and the time come from the server; a UID that was sent does not count."""
    first = await ground.made(ground.at("a"), {"uid": STRANGER, "deletionTimestamp": "2020-01-01T00:00:00Z"})
    second = await ground.made(ground.at("b"), data={"k": "v"})
    assert (first["apiVersion"], first["kind"], first["metadata"]["namespace"]) == ("v1", "ConfigMap", ground.namespace)
    assert len({STRANGER, first["metadata"]["uid"], second["metadata"]["uid"]}) == 3
    assert int(version_of(second)) > int(version_of(first))
    assert "deletionTimestamp" not in first["metadata"]
    datetime.strptime(first["metadata"]["creationTimestamp"], TIME).replace(tzinfo=UTC)
    assert await ground.read(ground.at("b")) == second


async def test_a_created_pod_is_pending_whatever_it_says(ground: ClusterUnderTest) -> None:
    """Its status is the kubelet's to write, and its generation counts from one."""
    pod = await ground.made(
        ground.at("p", POD),
        spec={"containers": [{"name": "c", "image": "i"}], "nodeName": ground.node},
        status={"phase": "Running", "podIP": "10.0.0.1"},
    )
    assert pod["status"]["phase"] == "Pending"
    assert "podIP" not in pod["status"]
    assert pod["metadata"]["generation"] == 1


async def test_a_created_node_keeps_its_status(ground: ClusterUnderTest) -> None:
    """So that a virtual node offers something from its first moment on."""
    ref = ground.at(f"{ground.node}-2", NODE)
    node = await ground.made(ref, status={"capacity": {"cpu": "3"}})
    await ground.deleted(node, ref)
    assert node["status"]["capacity"] == {"cpu": "3"}


async def test_a_created_namespace_gets_its_label_and_its_account(ground: ClusterUnderTest) -> None:
    """The label is booked as its creator's, though nobody sent it."""
    space = await ground.read(ground.at(ground.namespace, NAMESPACE))
    label = {"kubernetes.io/metadata.name": ground.namespace}
    assert space["metadata"]["labels"] == label
    assert our_keys(space, "labels") == label.keys()
    assert (space["spec"], space["status"]["phase"]) == ({"finalizers": ["kubernetes"]}, "Active")
    account = await ground.read(ground.at("default", SERVICE_ACCOUNT))
    assert account["metadata"]["name"] == "default"


async def test_the_label_of_a_namespaces_name_cannot_be_taken_away(ground: ClusterUnderTest) -> None:
    """The server puts it back at once, so that nothing is written."""
    ref = ground.at(ground.namespace, NAMESPACE)
    space = await ground.read(ref)
    again = await ground.operated(space, ref, {"op": "remove", "path": "/metadata/labels"})
    assert again == space


async def test_a_name_can_be_taken_once(ground: ClusterUnderTest) -> None:
    """The second creation is refused, and the first object stays as it is."""
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
async def test_a_body_that_is_no_new_object_of_that_place_is_refused(
    ground: ClusterUnderTest, body: dict[str, Any], sort: type[ClusterError], expected: tuple[int, str, tuple[str, ...]]
) -> None:
    """Without a name, of another namespace, or with a resourceVersion of its own."""
    with pytest.raises(sort) as error:
        await ground.cluster.create(ground.at("a"), body)
    assert told(error.value) == expected
    assert await ground.is_deleted(ground.at("a"))


async def test_what_is_wrong_with_the_place_is_told_before_what_is_wrong_with_the_object(
    ground: ClusterUnderTest,
) -> None:
    """A body without a name in a namespace that there is not."""
    with pytest.raises(NotFound) as error:
        await ground.cluster.create(ground.at("a", namespace="rehearsal-of-nothing"), {"metadata": {}})
    assert told(error.value) == (404, "NotFound", ())


async def test_a_node_is_in_no_namespace_whatever_it_says(ground: ClusterUnderTest) -> None:
    """What a body says of one is passed over where the kind has none."""
    ref = ground.at(f"{ground.node}-3", NODE)
    node = await ground.made(ref, {"namespace": "another"})
    await ground.deleted(node, ref)
    assert "namespace" not in node["metadata"]


async def test_a_missing_namespace_takes_no_objects(ground: ClusterUnderTest) -> None:
    """It is the namespace that is not found."""
    with pytest.raises(NotFound) as error:
        await ground.made(ground.at("a", namespace="rehearsal-of-nothing"))
    assert told(error.value) == (404, "NotFound", ())
    assert error.value.message == 'namespaces "rehearsal-of-nothing" not found'


async def test_a_pod_whose_account_is_missing_is_refused(ground: ClusterUnderTest) -> None:
    """Also the account `default` of a namespace that was made this moment."""
    with pytest.raises(Denied) as error:
        await ground.pod("p", serviceAccountName="nobody")
    assert told(error.value) == (403, "Forbidden", ())


async def test_a_token_is_issued_for_the_time_asked_for(ground: ClusterUnderTest) -> None:
    """The answer is the request with what came of it; nothing of it is stored."""
    ref = ground.at("default", SERVICE_ACCOUNT)
    before = await ground.read(ref)
    asked = decoded(await ground.cluster.issue(ref, {"spec": {"expirationSeconds": 700}}))
    assert asked["spec"]["expirationSeconds"] == 700
    assert asked["status"].keys() == {"token", "expirationTimestamp"}
    without = decoded(await ground.cluster.issue(ref, {"spec": {}}))
    assert without["spec"]["expirationSeconds"] == 3600
    assert await ground.read(ref) == before


async def test_a_token_of_an_account_that_is_not_there_is_not_issued(ground: ClusterUnderTest) -> None:
    """It is the account that is not found."""
    ref = ground.at("nobody", SERVICE_ACCOUNT)
    with pytest.raises(NotFound) as error:
        await ground.cluster.issue(ref, {"spec": {}})
    assert told(error.value) == (404, "NotFound", ())
    assert error.value.doing == f"create ServiceAccount {ground.namespace}/nobody token"


async def test_a_terminating_namespace_takes_no_new_objects(ground: ClusterUnderTest) -> None:
    """Not even one whose name is taken; what is there can still be changed."""
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


async def test_what_does_not_exist_cannot_be_read_changed_or_deleted(ground: ClusterUnderTest) -> None:
    """Each is told as not found, in a namespace that exists and in one that does not."""
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
    """Make a patch of each kind that carries a precondition."""
    body = {"metadata": {field: value}, "data": {"k": "2"}}
    change = {"op": "replace", "path": "/data/k", "value": "2"}
    operations = [{"op": "replace", "path": f"/metadata/{field}", "value": value}, change]
    return [Patch("merge-patch", body), Patch("strategic-merge-patch", body), Patch("json-patch", operations)]


@pytest.mark.parametrize("media", [0, 1, 2], ids=["merge", "strategic", "json"])
async def test_a_patch_of_another_object_under_the_name_is_a_conflict(ground: ClusterUnderTest, media: int) -> None:
    """The UID in the body fences the write; with the right one it comes through."""
    stored = await ground.made(ground.at("a"), data={"k": "1"})
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ground.at("a"), fences("uid", STRANGER)[media])
    assert told(error.value) == INVALID_UID
    assert error.value.doing == f"patch ConfigMap {ground.namespace}/a"
    assert await ground.read(ground.at("a")) == stored
    await ground.cluster.patch(ground.at("a"), fences("uid", stored["metadata"]["uid"])[media])
    assert (await ground.read(ground.at("a")))["data"] == {"k": "2"}


@pytest.mark.parametrize("media", [0, 1, 2], ids=["merge", "strategic", "json"])
async def test_a_patch_of_an_older_object_is_a_conflict(ground: ClusterUnderTest, media: int) -> None:
    """The resourceVersion in the body fences the write; with the right one it comes through."""
    stored = await ground.made(ground.at("a"), data={"k": "1"})
    changed = await ground.operated(stored, ground.at("a"), {"op": "add", "path": "/data/more", "value": "1"})
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ground.at("a"), fences("resourceVersion", version_of(stored))[media])
    assert told(error.value) == (409, "Conflict", ())
    assert await ground.read(ground.at("a")) == changed
    await ground.cluster.patch(ground.at("a"), fences("resourceVersion", version_of(changed))[media])
    assert (await ground.read(ground.at("a")))["data"] == {"k": "2", "more": "1"}


async def test_a_patch_that_changes_nothing_writes_nothing(ground: ClusterUnderTest) -> None:
    """The resourceVersion stays, so that no watch tells of it."""
    ref = ground.at("a")
    stored = await ground.made(ref, {"labels": {"l": "1"}}, data={"k": "1"})
    assert await ground.laid_over(stored, ref, data={"k": "1", "absent": None}) == stored
    assert await ground.operated(stored, ref, {"op": "replace", "path": "/metadata/labels/l", "value": "1"}) == stored
    empty = {"op": "add", "path": "/metadata/annotations", "value": {}}
    assert await ground.operated(stored, ref, empty) == stored


async def test_a_json_patch_may_replace_what_is_not_there(ground: ClusterUnderTest) -> None:
    """As Kubernetes carries it out: a key that is missing is added."""
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
async def test_a_json_patch_that_cannot_be_carried_out_is_denied(
    ground: ClusterUnderTest, operations: Any, expected: tuple[int, str, tuple[str, ...]]
) -> None:
    """A test that fails, a place that is missing, what was removed already, and what is no list of operations."""
    await ground.made(ground.at("a"), data={"k": "1"})
    with pytest.raises(Denied) as error:
        await ground.cluster.patch(ground.at("a"), Patch("json-patch", operations))
    assert told(error.value) == expected


async def test_labels_and_annotations_are_booked_for_who_wrote_them(ground: ClusterUnderTest) -> None:
    """Those of the creation, and after a JSON patch those that it added but not those that it removed."""
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


async def test_a_label_written_with_a_status_is_not_booked_as_the_objects(ground: ClusterUnderTest) -> None:
    """The writer by way of the subresource has a book apart, takes the label over, and makes nobody an owner."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p", meta={"labels": {"l": "1", "m": "1"}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": ground.node, "uid": STRANGER}
    meta = {"labels": {"l": "2", "n": "1"}, "ownerReferences": [owner]}
    changed = await ground.laid_over(pod, ref, "status", metadata=meta)
    assert "ownerReferences" not in changed["metadata"]
    assert changed["metadata"]["labels"] == {"l": "2", "m": "1", "n": "1"}
    assert our_keys(changed, "labels") == {"m"}


async def test_conditions_merge_by_type(ground: ClusterUnderTest) -> None:
    """Those that are not named stay, one is changed, one goes, and a new one comes first."""
    ref = ground.at("p", POD)
    pod = await ground.pod("p")
    first = await ground.laid_over(pod, ref, "status", status={"conditions": conditions("Ready", "Gate", "Old")})
    patch = [*conditions("New"), {"type": "Old", "$patch": "delete"}, *conditions("Gate", status="False")]
    second = await ground.laid_over(first, ref, "status", status={"phase": "Running", "conditions": patch})
    found = [(one["type"], one["status"]) for one in second["status"]["conditions"]]
    assert found == [("New", "True"), ("Ready", "True"), ("Gate", "False")]
    assert second["status"]["phase"] == "Running"


async def test_addresses_of_a_pod_are_replaced_where_that_is_asked_for(ground: ClusterUnderTest) -> None:
    """The old one goes, null takes all away, and container statuses are always replaced whole."""
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


async def test_maps_merge_or_are_replaced(ground: ClusterUnderTest) -> None:
    """Amounts that are not named stay, unless the map says that it replaces."""
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


async def test_a_status_and_the_rest_are_written_by_ways_of_their_own(ground: ClusterUnderTest) -> None:
    """Each way leaves what is the other's, and where nothing is left writes nothing."""
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
async def test_a_subresource_of_another_pod_under_the_name_is_a_conflict(
    ground: ClusterUnderTest, subresource: str
) -> None:
    """The UID fences every way of writing."""
    await ground.pod("p")
    body = {"metadata": {"uid": STRANGER}, "status": {"phase": "Failed"}}
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ground.at("p", POD), Patch("strategic-merge-patch", body), subresource)
    assert told(error.value) == INVALID_UID
    assert error.value.doing == f"patch Pod {ground.namespace}/p {subresource}"


async def test_a_patch_of_another_event_under_the_name_is_a_conflict(ground: ClusterUnderTest) -> None:
    """Events are checked by fewer rules, so that one cause is told where other kinds have two."""
    await ground.made(ground.at("e", EVENT), involvedObject={"namespace": ground.namespace})
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ground.at("e", EVENT), fences("uid", STRANGER)[0])
    assert told(error.value) == (422, "Invalid", ("FieldValueInvalid",))


async def test_a_kind_has_the_subresources_that_it_has(ground: ClusterUnderTest) -> None:
    """A ConfigMap has no status, and a pod nothing unheard of; that is told before anything else."""
    await ground.made(ground.at("a"))
    await ground.pod("p")
    for ref, subresource in ((ground.at("a"), "status"), (ground.at("p", POD), "unheard")):
        body = {"metadata": {"uid": STRANGER}, "status": {}}
        with pytest.raises(NotFound) as error:
            await ground.cluster.patch(ref, Patch("merge-patch", body), subresource)
        assert told(error.value) == (404, "NotFound", ())


async def test_lists_are_of_what_is_selected(ground: ClusterUnderTest) -> None:
    """By label, by its absence, by field, and in the order of their names."""
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
    """Return the names of a listing."""
    listing = await ground.cluster.list(kind, selection)
    return [decoded(raw)["metadata"]["name"] for raw in listing.items]


async def test_an_unknown_field_cannot_be_selected_by(ground: ClusterUnderTest) -> None:
    """It is refused, and not taken for one that nothing has."""
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
    """Whatever it says of itself; its status is written by a way of its own, under its UID."""
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


async def test_annotations_of_a_claim_can_be_taken_away_while_nobody_wrote(ground: ClusterUnderTest) -> None:
    """As is done to give a claim back to the scheduler: a newer version refuses it."""
    ref = ground.at("c", CLAIM)
    claim = await ground.made(ref, {"annotations": {"chosen": "node", "kept": "yes"}}, spec=CLAIM_SPEC)
    fence = {field: claim["metadata"][field] for field in ("uid", "resourceVersion")}
    patch = Patch("merge-patch", {"metadata": {**fence, "annotations": {"chosen": None}}})
    changed = decoded(await ground.cluster.patch(ref, patch))
    assert changed["metadata"]["annotations"] == {"kept": "yes"}
    with pytest.raises(Conflict) as error:
        await ground.cluster.patch(ref, patch)
    assert told(error.value) == (409, "Conflict", ())


async def test_a_deleted_claim_is_protected_at_first(ground: ClusterUnderTest) -> None:
    """The answer is the claim, which is ending and not gone: a controller has to find that nothing uses it."""
    ref = ground.at("c", CLAIM)
    answer = await ground.deleted(await ground.made(ref, spec=CLAIM_SPEC), ref)
    assert answer["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert "deletionTimestamp" in answer["metadata"]
    assert not _is_gone(answer, None)


async def test_a_volume_can_be_told_of_another_size_and_is_protected(ground: ClusterUnderTest) -> None:
    """Capacity is one of the few fields of a volume that change."""
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
