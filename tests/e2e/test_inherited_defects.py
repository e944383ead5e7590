"""What hurts users of tensile-kube, tried on real clusters: each defect that is known of it has a test of its own.

The numbers are those of the project's list of such defects. Those of Services, the webhook, the descheduler and the
scheduler come with these.
"""

import orjson
import pytest
from enginekit import A, Ground, edit_lower, standing, with_fields
from sitekit import Manifest, condition_of, is_ready, phase_of

from tensile.names import MIRRORED, SYNCED, TRIPPED_LABELS, VIRTUAL_POD
from tensile.sandbox.sandbox import Sandbox
from tensile.topology import TopologyErrors, parse

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SECRET = "bm90IHRvIGJlIHRvbGQ="
TRIPPED = "pod-group.scheduling.sigs.k8s.io"
BY_MAP = """
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
lowers:
- {name: lower-a, kubeconfig: kubeconfigs/lower-a}
"""


def volumes(name: str) -> Manifest:
    """Return the part of a pod that refers to a ConfigMap and a Secret of a name."""
    return {
        "volumes": [
            {"name": "c", "configMap": {"name": name}},
            {"name": "s", "secret": {"secretName": name}},
        ]
    }


async def provided(ground: Ground, name: str, value: str = "b3Vycw==") -> None:
    """Make a ConfigMap and a Secret of a name above."""
    for plural in ("configmaps", "secrets"):
        await ground.upper.create(ground.path(plural), {"metadata": {"name": name}, "data": {"key": value}})


async def strangers(ground: Ground, name: str) -> list[Manifest]:
    """Create both of that name in lower-a as a stranger."""
    if not await ground.sites[A].read(f"/api/v1/namespaces/{ground.namespace}"):
        await ground.make_namespace(A, ground.namespace)
    body = {"metadata": {"name": name}, "data": {"key": "dGhlaXJz"}}
    return [await ground.sites[A].create(ground.path(plural), body) for plural in ("configmaps", "secrets")]


async def both(ground: Ground, name: str) -> list[Manifest]:
    """Read both of a name in lower-a."""
    return [await ground.sites[A].read(ground.path(plural, name)) for plural in ("configmaps", "secrets")]


async def runs(ground: Ground, name: str, spec: Manifest | None = None, **meta: object) -> Manifest:
    """Bind a pod above, and give it below once it is ready above."""
    await ground.bind(name, spec, **meta)
    await ground.upper.until(ground.pod_path(name), is_ready)
    return await ground.sites[A].read(ground.pod_path(name))


async def ends(ground: Ground, *names: str) -> None:
    """Delete pods above, and see them gone."""
    for name in names:
        await ground.upper.delete(ground.pod_path(name))
        await ground.upper.gone(ground.pod_path(name))


async def advertises(ground: Ground, resource: str, amount: str) -> None:
    """Hold that the first virtual node offers so much, once the engine has nothing left to do."""
    await ground.calm()
    found = await ground.upper.read(f"/api/v1/nodes/{ground.nodes[A]}")
    assert found["status"]["allocatable"][resource] == amount


async def test_defect_1_updates_of_config_maps_and_secrets_reach_the_lower(ground: Ground) -> None:
    """Not only the pod's own caches: the objects in the lower API have the new content, and are the same objects."""
    await provided(ground, "updated")
    await runs(ground, "updated", volumes("updated"))
    before = await both(ground, "updated")
    for plural, old in zip(("configmaps", "secrets"), before, strict=True):
        path = ground.path(plural, "updated")
        await ground.upper.patch(path, {"data": {"key": "bmV3", "more": "bW9yZQ=="}})
        new = await ground.sites[A].until(path, lambda one: one["data"] == {"key": "bmV3", "more": "bW9yZQ=="})
        assert new["metadata"]["uid"] == old["metadata"]["uid"]
    await ends(ground, "updated")


async def test_defect_2_a_start_overwrites_nothing_of_strangers(ground: Ground) -> None:
    """What has the name of an upper object, `kube-root-ca.crt` among it, stays as it is, with and without a pod."""
    await strangers(ground, "taken")
    await provided(ground, "taken")
    root = ground.path("configmaps", "kube-root-ca.crt")
    await ground.sites[A].until(root, bool)
    before = [*await both(ground, "taken"), await ground.sites[A].read(root)]
    await ground.stop()
    await ground.start()
    await ground.calm()
    await ground.bind("taken", volumes("taken"))
    await ground.upper.until(
        ground.pod_path("taken"), lambda one: condition_of(one, MIRRORED).get("reason") == "NameConflict"
    )
    await ground.calm()
    assert [*await both(ground, "taken"), await ground.sites[A].read(root)] == before
    await ends(ground, "taken")


async def test_defect_3_a_deletion_above_deletes_nothing_of_strangers(ground: Ground) -> None:
    """The object below of that name was never ours, and outlasts the one above and a restart."""
    before = await strangers(ground, "kept")
    await provided(ground, "kept")
    await ground.bind("kept", volumes("kept"))
    await ground.upper.until(ground.pod_path("kept"), lambda one: condition_of(one, MIRRORED))
    await ends(ground, "kept")
    for plural in ("configmaps", "secrets"):
        await ground.upper.delete(ground.path(plural, "kept"))
    await ground.calm()
    await ground.stop()
    await ground.start()
    await ground.calm()
    assert await both(ground, "kept") == before


async def test_defect_6_a_lower_is_shared_and_nobody_ends_anothers_pods(
    ground: Ground, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two topologies with pods side by side in one namespace below, each of which starts anew and collects garbage."""
    await provided(ground, "shared")
    mine = await runs(ground, "mine", volumes("shared"))
    async with standing(sandbox, tmp_path_factory.mktemp("second")) as second:
        pods = ground.path("pods")
        await second.upper.create(pods, second.pod("theirs"))
        await second.upper.until(f"{pods}/theirs", is_ready)
        theirs = await ground.sites[A].read(f"{pods}/theirs")
        for one in (ground, second):
            await one.stop()
            await one.start()
            await one.calm()
        assert (await ground.sites[A].read(f"{pods}/mine"))["metadata"]["uid"] == mine["metadata"]["uid"]
        assert (await ground.sites[A].read(f"{pods}/theirs"))["metadata"]["uid"] == theirs["metadata"]["uid"]
        await ends(ground, "mine")
        await ground.calm()
        assert (await ground.sites[A].read(f"{pods}/theirs"))["metadata"]["uid"] == theirs["metadata"]["uid"]
        await ends(ground, "theirs")


async def test_defect_7_capacity_is_that_of_the_state_and_not_of_its_history(ground: Ground) -> None:
    """A pod of ours takes nothing of what is advertised: the upper scheduler counts it. Nor does it after a start.

    Asked of a resource that no other test's pods take any of: those come and go meanwhile.
    """
    free = edit_lower(A, capacity={"basis": "free"})
    device = f"example.com/{ground.mark}"
    lower = (await ground.sites[A].read("/api/v1/nodes"))["items"][0]["metadata"]["name"]
    offer = f"/api/v1/nodes/{lower}/status"
    await ground.sites[A].patch(offer, {"status": {"capacity": {device: "5"}, "allocatable": {device: "5"}}})
    await ground.reload(free)
    node = f"/api/v1/nodes/{ground.nodes[A]}"
    await ground.upper.until(node, lambda found: found["status"]["allocatable"].get(device) == "5")
    demand = {"requests": {device: "3"}, "limits": {device: "3"}}
    await runs(ground, "demanding", {"containers": [{"name": "main", "image": "app:1", "resources": demand}]})
    await advertises(ground, device, "5")
    await ground.stop()
    await ground.start(free)
    await advertises(ground, device, "5")
    await ends(ground, "demanding")
    await advertises(ground, device, "5")
    await ground.sites[A].patch(offer, {"status": {"capacity": {device: None}, "allocatable": {device: None}}})
    await ground.reload()


async def test_defect_12_an_update_keeps_what_is_ours_below_and_is_sent_once(ground: Ground) -> None:
    """Labels that were tripped are still noted after an annotation changed above; a quiet engine updates nothing."""
    lower = await runs(ground, "tripped", labels={TRIPPED: "gang", "app": "tripped"})
    noted = lower["metadata"]["annotations"][TRIPPED_LABELS]
    assert orjson.loads(noted) == {TRIPPED: "gang"}
    path = ground.pod_path("tripped")
    await ground.upper.patch(path, {"metadata": {"annotations": {"example.com/note": "changed"}}})
    lower = await ground.sites[A].until(
        path, lambda one: one["metadata"]["annotations"].get("example.com/note") == "changed"
    )
    assert lower["metadata"]["annotations"][TRIPPED_LABELS] == noted
    assert TRIPPED not in lower["metadata"]["labels"]
    assert lower["metadata"]["labels"][VIRTUAL_POD] == "true"
    await ground.calm()
    await ground.note()
    ground.engine.loop.enqueue_all(A)
    await ground.calm()
    assert await ground.writes() == []
    await ends(ground, "tripped")


async def test_defect_13_secrets_stay_references(ground: Ground) -> None:
    """A lower pod names the Secret and holds nothing of it; its environment is the upper pod's, in that order."""
    await provided(ground, "private", SECRET)
    key = {"name": "private", "key": "key"}
    container = {
        "name": "main",
        "image": "app:1",
        "env": [
            {"name": "Z", "value": "last first"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": key}},
            {"name": "A", "value": "$(PASSWORD)"},
        ],
        "envFrom": [{"secretRef": {"name": "private"}}],
    }
    lower = await runs(ground, "private", {"containers": [container]})
    (below,) = lower["spec"]["containers"]
    assert [below["env"], below["envFrom"]] == [container["env"], container["envFrom"]]
    written = orjson.dumps(lower).decode()
    assert SECRET not in written
    assert "not to be told" not in written
    await ends(ground, "private")


async def test_defect_14_every_source_of_a_volume_and_every_account_is_served(ground: Ground) -> None:
    """A pod with an account of its own runs; projected sources come along, and sources without a Secret do no harm."""
    await provided(ground, "sources")
    await ground.upper.create(ground.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    projected = [{"configMap": {"name": "sources"}}, {"secret": {"name": "sources"}}]
    spec = {
        "serviceAccountName": "robot",
        "volumes": [
            {"name": "all", "projected": {"sources": projected}},
            {"name": "ceph", "cephfs": {"monitors": ["10.0.0.1:6789"]}},
            {"name": "nfs", "nfs": {"server": "10.0.0.1", "path": "/"}},
            {"name": "rbd", "rbd": {"monitors": ["10.0.0.1:6789"], "image": "one"}},
        ],
    }
    lower = await runs(ground, "sources", spec)
    assert {one["name"] for one in lower["spec"]["volumes"]} >= {"all", "ceph", "nfs", "rbd"}
    assert [one["data"] for one in await both(ground, "sources")] == [{"key": "b3Vycw=="}] * 2
    await ends(ground, "sources")


async def test_defect_15_a_pod_that_is_not_mirrored_says_so_and_can_go(ground: Ground) -> None:
    """One in kube-system is Pending with a reason, rather than for ever without, and ends when it is deleted."""
    name = f"left-{ground.mark}"
    path = ground.path("pods", name, namespace="kube-system")
    await ground.upper.create(ground.path("pods", namespace="kube-system"), ground.pod(name))
    pod = await ground.upper.until(path, lambda one: condition_of(one, MIRRORED))
    assert (phase_of(pod), pod["status"]["reason"]) == ("Pending", "NamespaceExcluded")
    assert condition_of(pod, SYNCED) == {}
    assert await ground.sites[A].read(path) == {}
    await ground.upper.delete(path)
    await ground.upper.gone(path)


async def test_defect_16_what_was_deleted_unseen_is_no_puzzle(ground: Ground) -> None:
    """Objects that went while nobody watched, above and below, are missed rather than stumbled over."""
    await provided(ground, "unseen")
    await runs(ground, "unseen", volumes("unseen"))
    await ground.stop()
    for site in (ground.upper, ground.sites[A]):
        await site.delete(ground.path("configmaps", "unseen"))
    await ground.sites[A].delete(ground.path("secrets", "unseen"))
    await ground.upper.delete(ground.pod_path("unseen"), 0)
    await ground.start(with_fields(guard={"maxDeletes": 20}))
    await ground.sites[A].gone(ground.pod_path("unseen"), ground.path("secrets", "unseen"))
    assert ground.heard.defects == []


async def test_defect_16_no_credentials_are_kept_in_a_config_map() -> None:
    """A topology in a ConfigMap cannot name a kubeconfig but by a Secret, and is told so."""
    with pytest.raises(TopologyErrors, match="kubeconfigSecret"):
        parse(BY_MAP, configmap_mode=True)
