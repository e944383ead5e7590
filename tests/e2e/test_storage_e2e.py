"""Tests of storage: volumes of upper claims are provisioned, kept, expanded and deleted in lower clusters."""

import pytest
from enginekit import A, B, Ground
from provisionkit import VOLUMES
from sitekit import Manifest, condition_of, is_ready
from storekit import APPS, Store, claim, claims, is_bound, lower_of, placeholders, scheduled, using, volume_of

from tensile.names import LOWER, LOWER_CLAIM_UID, LOWER_VOLUME, LOWER_VOLUME_SOURCE, UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


def set_of(ground: Ground, name: str, word: str) -> Manifest:
    """Return a StatefulSet of three pods with a claim each, spread over the lowers."""
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
    """The default scheduler binds three pods to two lowers, and each has a bound claim there."""
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


async def test_a_recreated_pod_of_a_stateful_set_gets_the_same_volume(ground: Ground, store: Store) -> None:
    """It is bound to the same lower again, and no volume is deleted."""
    before = await ground.upper.read(ground.pod_path("db-0"))
    await ground.upper.delete(ground.pod_path("db-0"))
    after = await ground.upper.until(
        ground.pod_path("db-0"),
        lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"] and is_ready(one),
    )
    assert after["spec"]["nodeName"] == before["spec"]["nodeName"]
    assert [provisioner.destroyed for provisioner in store.values()] == [[], []]


async def test_a_claim_that_is_expanded_is_expanded_in_the_lower_cluster(ground: Ground, store: Store) -> None:
    """The lower cluster's resizer expands the volume, and size and conditions are mirrored back."""
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


async def test_a_deleted_claim_with_policy_delete_loses_its_lower_volume(ground: Ground, store: Store) -> None:
    """The volumes of the other two claims of the set are kept."""
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


async def test_a_deleted_claim_with_policy_retain_keeps_its_lower_volume(ground: Ground, store: Store) -> None:
    """The upper volume is Released, and lower claim and volume are kept; a later change of the policy is applied."""
    await ground.upper.create(claims(ground), claim(ground, "kept", "stays"))
    await scheduled(ground, "keeper", using("kept"), A)
    await ground.upper.until(ground.pod_path("keeper"), is_ready)
    volume = await volume_of(ground, "kept")
    path = f"{VOLUMES}/{volume['metadata']['name']}"
    below = await ground.sites[A].read(claims(ground, "kept"))
    await ground.end_pods("keeper")
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


async def test_an_ephemeral_volume_is_created_by_the_lower_cluster(ground: Ground, store: Store) -> None:
    """It has an upper placeholder and a lower claim from the template, and both are deleted with the pod."""
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


async def test_a_claim_that_a_lower_refuses_is_returned_to_the_scheduler(ground: Ground, store: Store) -> None:
    """An Event names the lower quota, and no placeholder is created.

    The pod runs once the quota is deleted.
    """
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
    await ground.end_pods("chooser")
