"""Tests of what only a dry-run cluster does: it feeds caches, reads a real cluster, and accepts direct changes."""

import asyncio
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Cluster, Patch, Selection
from tensile.kube.store import Cache
from tensile.objects import CONFIG_MAP, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT, UPPER, Kind, Manifest, Ref
from tensile.reconcile.apply import carry_out
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.dryrun.semantics import FieldManager, with_managed_fields
from tensile.reconcile.ownership import our_keys
from tensile.reconcile.plan import Step

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MOMENT = "2026-01-02T03:04:05Z"
A = Ref("a", CONFIG_MAP, "default", "settings")
P = Ref("a", POD, "default", "web")


def rehearsal(name: str = "a", **more: Any) -> DryRunCluster:
    """Return a dry-run cluster with a namespace `default`."""
    made = DryRunCluster(name, now=lambda: NOW, **more)
    made.place(NAMESPACE, {"metadata": {"name": "default"}})
    return made


def raw(name: str = "settings", version: int = 7, **more: Any) -> bytes:
    """Return a ConfigMap as a real cluster would send it."""
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return orjson.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **more})


def config_map(name: str = "settings", **more: Any) -> Manifest:
    """Return the body of a ConfigMap."""
    return {"metadata": {"name": name, "namespace": "default", **more}}


def pod(**meta: Any) -> Manifest:
    """Return the body of a pod that is bound to a node."""
    return {"metadata": {"name": "web", "namespace": "default", **meta}, "spec": {"nodeName": "n", "containers": []}}


def is_web(manifest: Manifest) -> bool:
    """Report whether an object has a certain label."""
    return (manifest["metadata"].get("labels") or {}).get("app") == "web"


def everything(_manifest: Manifest) -> bool:
    """Report that any object is selected."""
    return True


def add(field: str, value: Any) -> Callable[[Manifest], None]:
    """Return a function that sets one field of metadata."""

    def change(manifest: Manifest) -> None:
        manifest["metadata"][field] = value

    return change


def test_the_dry_run_cluster_implements_the_protocol() -> None:
    """The assignment checks it for the type checker and for a reader."""
    cluster: Cluster = DryRunCluster("a", now=lambda: NOW)
    assert cluster.name == "a"


async def test_a_following_cache_is_updated_before_each_response() -> None:
    """It has the version of each response, and a tombstone after the deletion."""
    cluster, cache = rehearsal(), Cache()
    cluster.follow(CONFIG_MAP, cache, everything)
    made = orjson.loads(await cluster.create(A, config_map()))
    entry = cache.get("default", "settings")
    assert entry is not None
    assert entry.manifest() == made
    body = {"metadata": {"uid": made["metadata"]["uid"]}, "data": {"k": "v"}}
    changed = orjson.loads(await cluster.patch(A, Patch("merge-patch", body)))
    assert cache.version == int(changed["metadata"]["resourceVersion"])
    await cluster.delete(A, uid=made["metadata"]["uid"])
    departure = cache.tombstone("default", "settings")
    assert departure is not None
    assert departure.uid == made["metadata"]["uid"]
    assert len(cache) == 0


async def test_a_following_cache_only_receives_selected_objects_of_its_kind() -> None:
    """An object that was never selected leaves no tombstone."""
    cluster, cache = rehearsal(), Cache()
    cluster.follow(CONFIG_MAP, cache, is_web)
    cluster.place(SECRET, config_map(labels={"app": "web"}))
    cluster.place(CONFIG_MAP, config_map(labels={"app": "db"}))
    cluster.vanish(A)
    assert len(cache) == 0
    assert cache.tombstone("default", "settings") is None


def test_an_object_enters_and_leaves_a_cache_with_its_selected_label() -> None:
    """For the cache, adding the label is a creation, and removing it a deletion."""
    cluster, cache = rehearsal(), Cache()
    cluster.follow(CONFIG_MAP, cache, is_web)
    cluster.place(CONFIG_MAP, config_map())
    assert cache.get("default", "settings") is None
    cluster.alter(A, add("labels", {"app": "web"}))
    assert cache.get("default", "settings") is not None
    cluster.alter(A, add("labels", {"app": "db"}))
    assert cache.get("default", "settings") is None
    assert cache.tombstone("default", "settings") is not None


def test_two_caches_of_one_kind_receive_their_own_objects() -> None:
    """Our own pods and those of other owners are separated in this way."""
    cluster, ours, theirs = rehearsal(), Cache(), Cache()
    cluster.follow(CONFIG_MAP, ours, is_web)
    cluster.follow(CONFIG_MAP, theirs, lambda manifest: not is_web(manifest))
    cluster.place(CONFIG_MAP, config_map(labels={"app": "web"}))
    cluster.place(CONFIG_MAP, config_map("other"))
    assert [entry.name for entry in ours] == ["settings"]
    assert [entry.name for entry in theirs] == ["other"]


async def test_a_held_object_exists_from_the_start_without_a_watch_event() -> None:
    """It keeps its bytes, and its first change is newer than any version of a real cluster."""
    cluster, cache = rehearsal(), Cache()
    cluster.follow(CONFIG_MAP, cache, everything)
    cluster.hold(CONFIG_MAP, raw())
    cache.replace([raw()], version=900)
    assert await cluster.read(A) == raw()
    with pytest.raises(AlreadyExists):
        await cluster.create(A, config_map())
    same = Patch("merge-patch", {"metadata": {"uid": "uid-settings"}})
    assert await cluster.patch(A, same) == raw()
    changed = await cluster.patch(A, Patch("merge-patch", {"metadata": {"uid": "uid-settings"}, "data": {"k": "v"}}))
    entry = cache.get("default", "settings")
    assert entry is not None
    assert entry.raw == changed
    assert entry.version > 900


def test_an_empty_map_of_a_held_object_is_no_difference() -> None:
    """Kubernetes omits empty maps, so their removal is no change."""
    cluster = rehearsal()
    cluster.hold(CONFIG_MAP, raw(data={}))
    cluster.alter(A, lambda manifest: manifest.pop("data"))
    found = cluster.find(CONFIG_MAP, "default", "settings")
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "7"


async def test_every_uid_is_unique_across_clusters() -> None:
    """Otherwise a test could confuse an upper object with a lower one."""
    clusters = [rehearsal(UPPER), rehearsal("a"), rehearsal("b")]
    uids = [
        one.place(CONFIG_MAP, config_map(name))["metadata"]["uid"] for one in clusters for name in ("settings", "other")
    ]
    assert len(set(uids)) == 6


def test_a_placed_object_has_the_servers_fields() -> None:
    """Server fields in the object are kept, except for the resourceVersion."""
    cluster = rehearsal()
    plain = cluster.place(CONFIG_MAP, config_map())
    assert plain["metadata"]["creationTimestamp"] == MOMENT
    assert (plain["apiVersion"], plain["kind"]) == ("v1", "ConfigMap")
    given = cluster.place(CONFIG_MAP, config_map("other", uid="u", resourceVersion="3", creationTimestamp="t"))
    assert (given["metadata"]["uid"], given["metadata"]["creationTimestamp"]) == ("u", "t")
    assert int(given["metadata"]["resourceVersion"]) > int(plain["metadata"]["resourceVersion"])
    running = cluster.place(POD, {**pod(), "status": {"phase": "Running"}})
    assert running["status"] == {"phase": "Running"}
    assert cluster.place(POD, pod(name="new"))["status"] == {"phase": "Pending"}


def test_placing_an_object_replaces_the_previous_one() -> None:
    """It keeps the UID of the previous one unless another one is given."""
    cluster = rehearsal()
    first = cluster.place(CONFIG_MAP, {**config_map(labels={"l": "1"}), "data": {"k": "v"}})
    second = cluster.place(CONFIG_MAP, config_map())
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert "data" not in second
    assert "labels" not in second["metadata"]


async def test_an_object_with_another_uid_inherits_nothing() -> None:
    """It is another object of that name, so neither managedFields nor generation are kept."""
    cluster = rehearsal()
    await cluster.create(P, pod(labels={"l": "1"}))
    cluster.alter(P, lambda found: found["spec"].update(priority=1))
    another = cluster.place(POD, pod(uid="another", labels={"l": "1"}))
    assert another["metadata"]["uid"] == "another"
    assert another["metadata"]["generation"] == 1
    assert our_keys(another, "labels") == set()


def test_a_changed_spec_of_a_pod_increases_its_generation() -> None:
    """No other change does."""
    cluster = rehearsal()
    assert cluster.place(POD, pod())["metadata"]["generation"] == 1
    assert cluster.alter(P, add("labels", {"l": "1"}))["metadata"]["generation"] == 1
    assert cluster.alter(P, lambda found: found["spec"].update(priority=1))["metadata"]["generation"] == 2
    assert cluster.place(POD, pod())["metadata"]["generation"] == 3


async def test_a_write_of_another_client_is_recorded_in_managed_fields() -> None:
    """A label of this engine that it changes belongs to it, and an unchanged one does not."""
    cluster = rehearsal()
    await cluster.create(A, config_map(labels={"l": "1", "m": "1"}))
    changed = cluster.alter(A, add("labels", {"l": "2", "m": "1", "n": "1"}))
    assert our_keys(changed, "labels") == {"m"}
    placed = cluster.place(CONFIG_MAP, config_map(labels={"m": "2"}))
    assert our_keys(placed, "labels") == set()
    ours = [{"manager": "tensile-kube", "fieldsV1": {"f:metadata": {"f:labels": {"f:m": {}}}}}]
    assert our_keys(cluster.place(CONFIG_MAP, config_map(managedFields=ours)), "labels") == {"m"}


async def test_a_label_of_another_client_that_this_engine_changes_is_ours() -> None:
    """ManagedFields of the other client does not have it any more."""
    cluster = rehearsal()
    theirs = cluster.place(CONFIG_MAP, config_map(labels={"l": "1", "m": "1"}))
    body = {"metadata": {"uid": theirs["metadata"]["uid"], "labels": {"l": "2"}}}
    changed = orjson.loads(await cluster.patch(A, Patch("merge-patch", body)))
    books = {
        book["manager"]: book["fieldsV1"]["f:metadata"]["f:labels"] for book in changed["metadata"]["managedFields"]
    }
    assert books == {"somebody-else": {"f:m": {}}, "tensile-kube": {"f:l": {}}}


def test_recording_managed_fields_does_not_change_the_previous_object() -> None:
    """The entry of the same writer is replaced by a new one with the time of the last write."""
    book = {"manager": "m", "time": "before", "fieldsV1": {"f:metadata": {"f:labels": {"f:l": {}}}}}
    seen = config_map(labels={"l": "1"}, managedFields=[book])
    kept = deepcopy(seen)
    (found,) = with_managed_fields(seen, config_map(labels={"n": "1"}), FieldManager("m", MOMENT))["metadata"][
        "managedFields"
    ]
    assert seen == kept
    assert found == {**book, "time": MOMENT, "fieldsV1": {"f:metadata": {"f:labels": {"f:n": {}}}}}


async def test_resizing_changes_pod_level_resources_and_those_of_init_containers() -> None:
    """Containers that the patch does not name keep their resources."""
    cluster = rehearsal()
    sizes = [{"name": one, "resources": {"requests": {"cpu": "1"}}} for one in ("main", "side")]
    body = pod()
    body["spec"] |= {"containers": sizes, "initContainers": sizes, "resources": {"limits": {"cpu": "9"}}}
    uid = cluster.place(POD, body)["metadata"]["uid"]
    more = {"name": "side", "resources": {"requests": {"cpu": "2"}}}
    spec = {"resources": {"limits": {"cpu": "8"}}, "initContainers": [more], "priority": 7}
    patch = Patch("strategic-merge-patch", {"metadata": {"uid": uid}, "spec": spec})
    changed = orjson.loads(await cluster.patch(P, patch, "resize"))["spec"]
    assert changed == body["spec"] | {"resources": {"limits": {"cpu": "8"}}, "initContainers": [sizes[0], more]}


def test_altering_or_removing_a_missing_object_raises_an_error() -> None:
    """A test that does so shows its mistake."""
    cluster = rehearsal()
    with pytest.raises(NotFound) as altering:
        cluster.alter(A, lambda _manifest: None)
    assert altering.value.doing == "alter ConfigMap default/settings"
    with pytest.raises(NotFound) as vanishing:
        cluster.vanish(A)
    assert (vanishing.value.cluster, vanishing.value.doing) == ("a", "vanish ConfigMap default/settings")


def test_a_terminating_object_without_finalizers_is_deleted() -> None:
    """Another client removes its last finalizer."""
    cluster, cache = rehearsal(), Cache()
    cluster.follow(CONFIG_MAP, cache, everything)
    ending: Manifest = {
        "finalizers": ["example.com/hold"],
        "deletionTimestamp": MOMENT,
        "deletionGracePeriodSeconds": 0,
    }
    cluster.place(CONFIG_MAP, config_map(**ending))
    cluster.alter(A, lambda found: found["metadata"].pop("finalizers"))
    assert cluster.find(CONFIG_MAP, "default", "settings") is None
    assert cache.tombstone("default", "settings") is not None


async def test_an_object_can_vanish_despite_its_finalizers() -> None:
    """Its name is free then."""
    cluster = rehearsal()
    cluster.place(CONFIG_MAP, config_map(finalizers=["example.com/hold"]))
    cluster.vanish(A)
    with pytest.raises(NotFound):
        await cluster.read(A)
    await cluster.create(A, config_map())


def test_a_namespace_gets_its_default_service_account_once() -> None:
    """This includes a namespace of another client, and an existing account is not changed."""
    cluster, cache = rehearsal(), Cache()
    cluster.follow(SERVICE_ACCOUNT, cache, everything)
    cluster.place(NAMESPACE, {"metadata": {"name": "new"}})
    first = cache.get("new", "default")
    cluster.alter(Ref("a", NAMESPACE, "", "new"), add("labels", {"l": "1"}))
    assert first is not None
    assert cache.get("new", "default") is first


async def test_a_deleted_pod_is_gone_at_once_if_pods_end_at_once() -> None:
    """It is bound and has a grace period, but only a finalizer keeps it."""
    cluster, cache = rehearsal(), Cache()
    cluster.follow(POD, cache, everything)
    made = orjson.loads(await cluster.create(P, pod()))
    answer = orjson.loads(await cluster.delete(P, uid=made["metadata"]["uid"], grace=30))
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 0
    assert cache.tombstone("default", "web") is not None
    held = orjson.loads(await cluster.create(P, pod(finalizers=["example.com/hold"])))
    await cluster.delete(P, uid=held["metadata"]["uid"])
    kept = cluster.find(POD, "default", "web")
    assert kept is not None
    assert kept["metadata"]["deletionTimestamp"] == MOMENT


@pytest.mark.parametrize("grace", [{"deletionGracePeriodSeconds": 30}, {}], ids=["graceful", "unmarked"])
async def test_a_terminating_pod_is_deleted_by_the_next_request_if_pods_end_at_once(grace: Manifest) -> None:
    """It was terminating in the real cluster before the dry run began."""
    cluster = rehearsal()
    cluster.place(POD, pod(uid="u", deletionTimestamp=MOMENT, **grace))
    await cluster.delete(P, uid="u")
    assert cluster.find(POD, "default", "web") is None


async def test_the_cluster_behind_is_read_but_not_written() -> None:
    """Objects that are not held are read there, and changes are only made in the dry run."""
    real = rehearsal()
    stored = real.place(CONFIG_MAP, {**config_map(), "data": {"k": "1"}})
    cluster = rehearsal(behind=real)
    assert orjson.loads(await cluster.read(A)) == stored
    uid = stored["metadata"]["uid"]
    await cluster.patch(A, Patch("merge-patch", {"metadata": {"uid": uid}, "data": {"k": "2"}}))
    assert orjson.loads(await cluster.read(A))["data"] == {"k": "2"}
    await cluster.delete(A, uid=uid)
    assert orjson.loads(await real.read(A)) == stored


async def test_a_name_of_the_cluster_behind_is_in_use() -> None:
    """No cache may have the object, for example without our label.

    Namespaces are read there as well.
    """
    real = rehearsal()
    real.place(NAMESPACE, {"metadata": {"name": "far"}})
    real.place(CONFIG_MAP, {"metadata": {"name": "settings", "namespace": "far"}})
    cluster = DryRunCluster("a", behind=real, now=lambda: NOW)
    with pytest.raises(AlreadyExists):
        await cluster.create(A._replace(namespace="far"), {"metadata": {"name": "settings"}})
    await cluster.create(Ref("a", CONFIG_MAP, "far", "free"), {"metadata": {"name": "free"}})
    with pytest.raises(NotFound):
        await cluster.create(Ref("a", CONFIG_MAP, "nowhere", "free"), {"metadata": {"name": "free"}})
    await cluster.create(Ref("a", POD, "far", "web"), {"metadata": {"name": "web"}, "spec": {}})


async def test_an_object_deleted_in_the_dry_run_is_not_read_from_the_cluster_behind() -> None:
    """Its name is free, although the real cluster still has it."""
    real = rehearsal()
    uid = real.place(CONFIG_MAP, config_map())["metadata"]["uid"]
    cluster = rehearsal(behind=real)
    await cluster.delete(A, uid=uid)
    with pytest.raises(NotFound):
        await cluster.read(A)
    made = orjson.loads(await cluster.create(A, config_map()))
    assert orjson.loads(await cluster.read(A)) == made


class UnresponsiveCluster(DryRunCluster):
    """A cluster that responds to no read."""

    async def read(self, ref: Ref) -> bytes:
        """Raise an error."""
        raise Unreachable("no answer", cluster=self.name, doing=f"read {ref.name}")


async def test_an_error_of_the_cluster_behind_is_raised() -> None:
    """Nothing is created."""
    cluster = rehearsal(behind=UnresponsiveCluster("a", now=lambda: NOW))
    with pytest.raises(Unreachable) as error:
        await cluster.create(A, config_map())
    assert (error.value.cluster, error.value.doing) == ("a", "create ConfigMap default/settings")
    assert cluster.find(CONFIG_MAP, "default", "settings") is None


class SlowReadCluster(DryRunCluster):
    """A cluster whose reads respond when they are released."""

    def __init__(self, name: str) -> None:
        super().__init__(name, now=lambda: NOW)
        self.began = asyncio.Event()
        self.go = asyncio.Event()

    async def read(self, ref: Ref) -> bytes:
        """Wait, and respond."""
        self.began.set()
        await self.go.wait()
        return await super().read(ref)


async def test_of_two_concurrent_creations_one_succeeds() -> None:
    """This also holds while the cluster behind reads whether the name is free."""
    real = SlowReadCluster("a")
    cluster = rehearsal(behind=real)
    tries = [asyncio.create_task(cluster.create(A, config_map(labels={"l": which}))) for which in ("1", "2")]
    real.go.set()
    first, second = await asyncio.gather(*tries, return_exceptions=True)
    assert isinstance(second, AlreadyExists)
    assert isinstance(first, bytes)
    assert await cluster.read(A) == first


@pytest.mark.parametrize("stays", [True, False])
async def test_a_change_in_the_dry_run_during_a_read_of_the_cluster_behind_counts(*, stays: bool) -> None:
    """An object that is created meanwhile is returned, and one that is created and removed is not found."""
    real = SlowReadCluster("a")
    real.place(CONFIG_MAP, config_map())
    cluster = rehearsal(behind=real)
    reading = asyncio.create_task(cluster.read(A))
    await real.began.wait()
    placed = cluster.place(CONFIG_MAP, config_map(labels={"l": "1"}))
    if not stays:
        cluster.vanish(A)
    real.go.set()
    (found,) = await asyncio.gather(reading, return_exceptions=True)
    if stays:
        assert isinstance(found, bytes)
        assert orjson.loads(found) == placed
    else:
        assert isinstance(found, NotFound)


async def test_the_cluster_behind_is_read_once() -> None:
    """It is not read again for held objects, or for those that were deleted in the dry run."""
    real = SlowReadCluster("a")
    real.go.set()
    uid = real.place(CONFIG_MAP, config_map())["metadata"]["uid"]
    cluster = rehearsal(behind=real)
    await cluster.read(A)
    real.began.clear()
    await cluster.delete(A, uid=uid)
    with pytest.raises(NotFound):
        await cluster.read(A)
    assert not real.began.is_set()


async def test_the_engines_writes_keep_a_following_cache_in_sync() -> None:
    """The response to a write and the watch event have the same content, in any order."""
    cluster, cache = rehearsal(), Cache()
    cluster.follow(CONFIG_MAP, cache, everything)
    cache.replace([], version=100)
    await carry_out(Step("create", A, "r", body=config_map()), cluster, cache)
    entry = cache.get("default", "settings")
    assert entry is not None
    assert entry.raw == await cluster.read(A)
    patch = Patch("merge-patch", {"metadata": {"uid": entry.uid, "finalizers": ["example.com/hold"]}})
    await carry_out(Step("patch", A, "r", patch=patch), cluster, cache)
    await carry_out(Step("delete", A, "r", uid=entry.uid), cluster, cache)
    ending = cache.get("default", "settings")
    assert ending is not None
    assert "deletionTimestamp" in ending.manifest()["metadata"]
    release = Patch("merge-patch", {"metadata": {"uid": entry.uid, "finalizers": None}})
    await carry_out(Step("patch", A, "r", patch=release), cluster, cache)
    assert cache.get("default", "settings") is None
    assert cache.tombstone("default", "settings") is not None


async def test_a_list_has_the_held_objects() -> None:
    """It is for one or all namespaces, and has the version from which a cache continues."""
    cluster = rehearsal()
    cluster.place(NAMESPACE, {"metadata": {"name": "other"}})
    cluster.place(CONFIG_MAP, config_map())
    last = cluster.place(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "other"}})
    listing = await cluster.list(CONFIG_MAP, Selection())
    assert [orjson.loads(one)["metadata"]["name"] for one in listing.items] == ["settings", "a"]
    assert listing.version == last["metadata"]["resourceVersion"]
    assert len((await cluster.list(CONFIG_MAP, Selection("other"))).items) == 1


async def test_a_list_includes_the_cluster_behind() -> None:
    """Objects that the dry run changed are listed as changed, and deleted ones are not listed."""
    real = rehearsal()
    changed, gone = (real.place(CONFIG_MAP, config_map(name))["metadata"]["uid"] for name in ("a", "b"))
    real.place(CONFIG_MAP, config_map("c"))
    cluster = rehearsal(behind=real)
    patch = Patch("merge-patch", {"metadata": {"uid": changed}, "data": {"k": "2"}})
    await cluster.patch(Ref("a", CONFIG_MAP, "default", "a"), patch)
    await cluster.delete(Ref("a", CONFIG_MAP, "default", "b"), uid=gone)
    listed = (await cluster.list(CONFIG_MAP, Selection("default"))).items
    assert [(one["metadata"]["name"], one.get("data")) for one in map(orjson.loads, listed)] == [
        ("a", {"k": "2"}),
        ("c", None),
    ]


async def test_the_kinds_are_those_of_the_dry_run_and_of_the_cluster_behind() -> None:
    """Each is listed once, with ServiceAccount and without cluster-scoped kinds."""
    real = rehearsal()
    real.place(CONFIG_MAP, config_map())
    cluster = rehearsal(behind=real)
    cluster.place(CONFIG_MAP, config_map("here"))
    cluster.place(POD, pod())
    assert sorted(kind.name for kind in await cluster.kinds()) == ["ConfigMap", "Pod", "ServiceAccount"]


@pytest.mark.parametrize("labels", ["app in (web)", "n>1"])
async def test_an_unsupported_selector_is_denied(labels: str) -> None:
    """Otherwise it would seem to select nothing."""
    cluster = rehearsal()
    cluster.place(CONFIG_MAP, config_map())
    with pytest.raises(Denied, match="not supported") as error:
        await cluster.list(CONFIG_MAP, Selection("default", labels))
    assert error.value.doing == "list ConfigMap default"


def test_watches_and_streams_are_denied() -> None:
    """The messages have the alternative or the reason."""
    cluster = rehearsal()
    with pytest.raises(Denied, match="let a cache follow it"):
        cluster.watch(POD, Selection(), "0", 1)
    with pytest.raises(Denied, match="not serve streams"):
        cluster.endpoint()


async def test_server_side_apply_is_denied() -> None:
    """Otherwise it would be treated as a merge patch."""
    cluster = rehearsal()
    cluster.place(CONFIG_MAP, config_map())
    with pytest.raises(Denied) as error:
        await cluster.patch(A, Patch("apply-patch", {"data": {"k": "v"}}))
    assert (error.value.status, error.value.reason) == (415, "UnsupportedMediaType")


async def test_the_dry_run_cluster_has_the_given_version() -> None:
    """Virtual nodes show the version of their lower cluster."""
    assert await rehearsal(version="v1.36.3").version() == "v1.36.3"


@pytest.mark.parametrize(("kind", "name"), [(NODE, "n"), (NAMESPACE, "default")], ids=["Node", "Namespace"])
async def test_a_cluster_scoped_object_is_found_without_a_namespace(kind: Kind, name: str) -> None:
    """Its UID is a precondition as for any other object."""
    cluster = rehearsal()
    cluster.place(NODE, {"metadata": {"name": "n"}})
    with pytest.raises(Conflict) as error:
        await cluster.delete(Ref("a", kind, "", name), uid="another")
    assert error.value.doing == f"delete {kind.name} {name}"


async def test_an_error_names_cluster_and_action() -> None:
    """Errors of the real client have the same form, because people read both."""
    with pytest.raises(ClusterError) as error:
        await rehearsal("lower-b").read(Ref("lower-b", POD, "default", "web"))
    assert str(error.value) == 'lower-b: read Pod default/web: not found: pods "web" not found'
