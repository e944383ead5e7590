"""Storage: claims of the upper cluster whose volumes are made, kept, grown and given up in lower clusters."""

import pytest
from enginekit import A, B, Ground
from provisionkit import SELECTED, VOLUMES
from sitekit import Manifest, condition_of, is_ready
from storekit import APPS, Store, claim, claims, is_bound, lower_of, placeholders, scheduled, using, volume_of

from tensile.names import LOWER, LOWER_CLAIM_UID, LOWER_VOLUME, LOWER_VOLUME_SOURCE, MIRRORED, UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


def set_of(ground: Ground, name: str, word: str) -> Manifest:
    """Make a StatefulSet of three with a claim each, spread over the lowers."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "clusterID",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": name}},
    }
    mounts = [{"name": "main", "image": "app:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]
    template = ground.template({"app": name}, {"topologySpreadConstraints": [spread], "containers": mounts})
    spec = {
        "replicas": 3,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": name}},
        "template": template,
        "volumeClaimTemplates": [claim(ground, "data", word)],
    }
    return {"metadata": {"name": name}, "spec": spec}


async def test_a_stateful_set_gets_its_volumes_where_its_pods_run(ground: Ground, store: Store) -> None:
    """Three pods by the stock scheduler over two lowers: bound and running, each by its own claim."""
    await ground.upper.create(ground.path("statefulsets", api=APPS), set_of(ground, "db", "goes"))
    pods = await ground.upper.until_all(
        f"{ground.path('pods')}?labelSelector=app%3Ddb",
        lambda found: len(found) == 3 and all(map(is_ready, found.values())),
    )
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2
    for name, pod in pods.items():
        lower = next(lower for lower, node in ground.nodes.items() if node == pod["spec"]["nodeName"])
        above = await ground.upper.until(claims(ground, f"data-{name}"), is_bound)
        below = await ground.sites[lower].read(claims(ground, f"data-{name}"))
        assert below["metadata"]["annotations"][UPPER_UID] == above["metadata"]["uid"]
        assert below["spec"]["storageClassName"] == store[lower].name
        made = f"made-{below['metadata']['uid']}"
        volume = await ground.upper.until(
            f"{VOLUMES}/{above['spec']['volumeName']}",
            lambda one, made=made: one["metadata"]["annotations"].get(LOWER_VOLUME) == made,
        )
        notes = volume["metadata"]["annotations"]
        assert (notes[LOWER], notes[LOWER_CLAIM_UID]) == (lower, below["metadata"]["uid"])
        assert notes[LOWER_VOLUME_SOURCE] == "local"


async def test_a_pod_of_the_set_comes_back_to_its_data(ground: Ground, store: Store) -> None:
    """Deleted, it is bound to the same lower again and finds the same claim; nothing is made or destroyed."""
    before = await ground.upper.read(ground.pod_path("db-0"))
    await ground.upper.delete(ground.pod_path("db-0"))
    after = await ground.upper.until(
        ground.pod_path("db-0"),
        lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"] and is_ready(one),
    )
    assert after["spec"]["nodeName"] == before["spec"]["nodeName"]
    assert [provisioner.destroyed for provisioner in store.values()] == [[], []]


async def test_a_claim_that_grows_above_grows_below(ground: Ground, store: Store) -> None:
    """The lower's resizer does it, and size and conditions come up."""
    path = claims(ground, "data-db-0")
    await ground.upper.patch(path, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    grown = await ground.upper.until(path, lambda one: one["status"]["capacity"]["storage"] == "2Gi")
    volume = await ground.upper.until(
        f"{VOLUMES}/{grown['spec']['volumeName']}", lambda one: one["spec"]["capacity"]["storage"] == "2Gi"
    )
    below = await ground.sites[lower_of(volume)].read(path)
    assert below["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert condition_of(grown, "FileSystemResizePending")["status"] == "True"
    assert store[lower_of(volume)].destroyed == []


async def test_a_deleted_claim_takes_its_data_with_it_where_the_policy_is_delete(ground: Ground, store: Store) -> None:
    """Of the set's three claims one is deleted: its lower volume goes, those of the others stay."""
    await ground.upper.delete(ground.path("statefulsets", "db", api=APPS) + "?propagationPolicy=Foreground")
    await ground.upper.until_all(f"{ground.path('pods')}?labelSelector=app%3Ddb", lambda found: not found)
    volume = await volume_of(ground, "data-db-1")
    lower, notes = lower_of(volume), volume["metadata"]["annotations"]
    await ground.upper.delete(claims(ground, "data-db-1"))
    await ground.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")
    await ground.sites[lower].gone(claims(ground, "data-db-1"), f"{VOLUMES}/{notes[LOWER_VOLUME]}")
    assert store[lower].destroyed == [notes[LOWER_VOLUME]]
    for name in ("data-db-0", "data-db-2"):
        kept = await volume_of(ground, name)
        assert is_bound(await ground.sites[lower_of(kept)].read(claims(ground, name)))


async def test_a_deleted_claim_leaves_its_data_where_the_policy_is_retain(ground: Ground, store: Store) -> None:
    """Its volume above is released and stays, and so do claim and volume below; a policy changed later is followed."""
    await ground.upper.create(claims(ground), claim(ground, "kept", "stays"))
    await scheduled(ground, "keeper", using("kept"), A)
    await ground.upper.until(ground.pod_path("keeper"), is_ready)
    volume = await volume_of(ground, "kept")
    path = f"{VOLUMES}/{volume['metadata']['name']}"
    below = await ground.sites[A].read(claims(ground, "kept"))
    await ground.upper.delete(ground.pod_path("keeper"))
    await ground.upper.gone(ground.pod_path("keeper"))
    await ground.upper.delete(claims(ground, "kept"))
    await ground.upper.until(path, lambda one: one["status"]["phase"] == "Released")
    await ground.calm()
    assert (await ground.sites[A].read(claims(ground, "kept")))["metadata"]["uid"] == below["metadata"]["uid"]
    assert is_bound(await ground.sites[A].read(f"{VOLUMES}/{below['spec']['volumeName']}"))
    assert below["spec"]["volumeName"] not in store[A].destroyed
    await ground.upper.patch(path, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    await ground.upper.gone(path)
    await ground.sites[A].gone(f"{VOLUMES}/{below['spec']['volumeName']}")
    assert below["spec"]["volumeName"] in store[A].destroyed


async def test_a_pod_whose_claim_lives_in_another_lower_is_refused_there(ground: Ground, store: Store) -> None:
    """Bound by its node's name past the scheduler, it stays Pending, says why, and nothing is made for it."""
    assert store
    volume = await volume_of(ground, "data-db-0")
    wrong = B if lower_of(volume) == A else A
    await ground.bind("astray", using("data-db-0"), wrong)
    pod = await ground.upper.until(ground.pod_path("astray"), lambda one: condition_of(one, MIRRORED))
    assert condition_of(pod, MIRRORED)["reason"] == pod["status"]["reason"] == "ClaimInOtherCluster"
    assert lower_of(volume) in await ground.told(pod, "ClaimInOtherCluster")
    assert await ground.sites[wrong].read(claims(ground, "data-db-0")) == {}
    await ground.upper.delete(ground.pod_path("astray"))
    await ground.upper.gone(ground.pod_path("astray"))


async def test_an_ephemeral_volume_is_the_lowers_own(ground: Ground, store: Store) -> None:
    """Above a placeholder, below a claim that the lower makes of the template; both go with the pod."""
    template = {"spec": claim(ground, "any")["spec"]}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    containers = [{"name": "main", "image": "app:1", "volumeMounts": mounts}]
    await scheduled(ground, "brief", {"volumes": volumes, "containers": containers}, B)
    await ground.upper.until(ground.pod_path("brief"), is_ready)
    volume = await volume_of(ground, "brief-scratch")
    below = await ground.sites[B].read(claims(ground, "brief-scratch"))
    assert UPPER_UID not in below["metadata"].get("annotations", {})
    assert below["spec"]["storageClassName"] == store[B].name
    await ground.upper.delete(ground.pod_path("brief"))
    await ground.upper.gone(ground.pod_path("brief"), f"{VOLUMES}/{volume['metadata']['name']}")
    await ground.sites[B].gone(claims(ground, "brief-scratch"))


async def test_a_scheduler_that_takes_no_notice_of_volumes(ground: Ground, store: Store) -> None:
    """Bound at once, the pod takes its claim down; the lower's volume then comes up and binds the claim above."""
    await ground.upper.create(claims(ground), claim(ground, "late"))
    await ground.bind("unaware", using("late"), B)
    await ground.upper.until(ground.pod_path("unaware"), is_ready)
    volume = await volume_of(ground, "late")
    assert lower_of(volume) == B
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == [ground.nodes[B]]
    below = await ground.sites[B].read(claims(ground, "late"))
    assert volume["metadata"]["annotations"][LOWER_VOLUME] == below["spec"]["volumeName"]
    assert below["spec"]["volumeName"] not in store[B].destroyed
    await ground.upper.until(claims(ground, "late"), lambda one: node_of(one) == ground.nodes[B])
    await ground.upper.delete(ground.pod_path("unaware"))
    await ground.upper.gone(ground.pod_path("unaware"))


def node_of(found: Manifest) -> str:
    """Return the node that a claim names."""
    return str(found["metadata"]["annotations"].get(SELECTED, ""))


async def test_a_claim_that_a_lower_refuses_is_given_back_to_the_scheduler(ground: Ground, store: Store) -> None:
    """A quota below is the reason in an event; no volume is made above, and the pod runs once the quota is lifted."""
    assert store
    full = {"metadata": {"name": "full"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}}
    await ground.sites[A].create(ground.path("resourcequotas"), full)
    quota = ground.path("resourcequotas", "full")
    await ground.sites[A].until(quota, lambda one: one.get("status", {}).get("hard"))
    made = await ground.upper.create(claims(ground), claim(ground, "choosy"))
    await scheduled(ground, "chooser", using("choosy"), A)
    assert "exceeded quota: full" in await ground.told(made, "ProvisioningFailed")
    assert not [one for one in await placeholders(ground) if one["spec"]["claimRef"]["name"] == "choosy"]
    await ground.sites[A].delete(quota)
    await ground.upper.until(ground.pod_path("chooser"), is_ready)
    await ground.upper.delete(ground.pod_path("chooser"))
    await ground.upper.gone(ground.pod_path("chooser"))
