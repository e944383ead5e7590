"""Tests of storage: volumes of upper claims are provisioned, kept, expanded and deleted in lower clusters."""

import pytest
from enginekit import A, B, EngineHarness
from provisionkit import VOLUMES
from sitekit import Manifest, condition_of, is_ready
from storekit import (
    APPS,
    Store,
    claim,
    claims,
    create_scheduled_pod,
    is_bound,
    lower_of,
    placeholders,
    spec_with_claims,
    volume_of,
)

from tensile.names import LOWER, LOWER_CLAIM_UID, LOWER_VOLUME, LOWER_VOLUME_SOURCE, UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


def set_of(harness: EngineHarness, name: str, word: str) -> Manifest:
    """Return a StatefulSet of three pods with a claim each, spread over the lowers."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "clusterID",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": name}},
    }
    mounts = [{"name": "main", "image": "app:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]
    template = harness.template({"app": name}, {"topologySpreadConstraints": [spread], "containers": mounts})
    spec = {
        "replicas": 3,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": name}},
        "template": template,
        "volumeClaimTemplates": [claim(harness, "data", word)],
    }
    return {"metadata": {"name": name}, "spec": spec}


async def test_a_stateful_set_gets_its_volumes_where_its_pods_run(harness: EngineHarness, store: Store) -> None:
    """The default scheduler binds three pods to two lowers, and each has a bound claim there."""
    await harness.upper.create(harness.path("statefulsets", api=APPS), set_of(harness, "db", "goes"))
    pods = await harness.upper.until_all(
        f"{harness.path('pods')}?labelSelector=app%3Ddb",
        lambda found: len(found) == 3 and all(map(is_ready, found.values())),
    )
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2
    for name, pod in pods.items():
        lower = next(lower for lower, node in harness.nodes.items() if node == pod["spec"]["nodeName"])
        upper_object = await harness.upper.until(claims(harness, f"data-{name}"), is_bound)
        lower_object = await harness.sites[lower].read(claims(harness, f"data-{name}"))
        assert lower_object["metadata"]["annotations"][UPPER_UID] == upper_object["metadata"]["uid"]
        assert lower_object["spec"]["storageClassName"] == store[lower].name
        made = f"made-{lower_object['metadata']['uid']}"
        volume = await harness.upper.until(
            f"{VOLUMES}/{upper_object['spec']['volumeName']}",
            lambda one, made=made: one["metadata"]["annotations"].get(LOWER_VOLUME) == made,
        )
        notes = volume["metadata"]["annotations"]
        assert (notes[LOWER], notes[LOWER_CLAIM_UID]) == (lower, lower_object["metadata"]["uid"])
        assert notes[LOWER_VOLUME_SOURCE] == "local"


async def test_a_recreated_pod_of_a_stateful_set_gets_the_same_volume(harness: EngineHarness, store: Store) -> None:
    """It is bound to the same lower again, and no volume is deleted."""
    before = await harness.upper.read(harness.pod_path("db-0"))
    await harness.upper.delete(harness.pod_path("db-0"))
    after = await harness.upper.until(
        harness.pod_path("db-0"),
        lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"] and is_ready(one),
    )
    assert after["spec"]["nodeName"] == before["spec"]["nodeName"]
    assert [provisioner.destroyed for provisioner in store.values()] == [[], []]


async def test_a_claim_that_is_expanded_is_expanded_in_the_lower_cluster(harness: EngineHarness, store: Store) -> None:
    """The lower cluster's resizer expands the volume, and size and conditions are mirrored back."""
    path = claims(harness, "data-db-0")
    await harness.upper.patch(path, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    grown = await harness.upper.until(path, lambda one: one["status"]["capacity"]["storage"] == "2Gi")
    volume = await harness.upper.until(
        f"{VOLUMES}/{grown['spec']['volumeName']}", lambda one: one["spec"]["capacity"]["storage"] == "2Gi"
    )
    lower_object = await harness.sites[lower_of(volume)].read(path)
    assert lower_object["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert condition_of(grown, "FileSystemResizePending")["status"] == "True"
    assert store[lower_of(volume)].destroyed == []


async def test_a_deleted_claim_with_policy_delete_loses_its_lower_volume(harness: EngineHarness, store: Store) -> None:
    """The volumes of the other two claims of the set are kept."""
    await harness.upper.delete(harness.path("statefulsets", "db", api=APPS) + "?propagationPolicy=Foreground")
    await harness.upper.until_all(f"{harness.path('pods')}?labelSelector=app%3Ddb", lambda found: not found)
    volume = await volume_of(harness, "data-db-1")
    lower, notes = lower_of(volume), volume["metadata"]["annotations"]
    await harness.upper.delete(claims(harness, "data-db-1"))
    await harness.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")
    await harness.sites[lower].gone(claims(harness, "data-db-1"), f"{VOLUMES}/{notes[LOWER_VOLUME]}")
    assert store[lower].destroyed == [notes[LOWER_VOLUME]]
    for name in ("data-db-0", "data-db-2"):
        kept = await volume_of(harness, name)
        assert is_bound(await harness.sites[lower_of(kept)].read(claims(harness, name)))


async def test_a_deleted_claim_with_policy_retain_keeps_its_lower_volume(harness: EngineHarness, store: Store) -> None:
    """The upper volume is Released, and lower claim and volume are kept; a later change of the policy is applied."""
    await harness.upper.create(claims(harness), claim(harness, "kept", "stays"))
    await create_scheduled_pod(harness, "keeper", spec_with_claims("kept"), A)
    await harness.upper.until(harness.pod_path("keeper"), is_ready)
    volume = await volume_of(harness, "kept")
    path = f"{VOLUMES}/{volume['metadata']['name']}"
    lower_object = await harness.sites[A].read(claims(harness, "kept"))
    await harness.end_pods("keeper")
    await harness.upper.delete(claims(harness, "kept"))
    await harness.upper.until(path, lambda one: one["status"]["phase"] == "Released")
    await harness.wait_idle()
    assert (await harness.sites[A].read(claims(harness, "kept")))["metadata"]["uid"] == lower_object["metadata"]["uid"]
    assert is_bound(await harness.sites[A].read(f"{VOLUMES}/{lower_object['spec']['volumeName']}"))
    assert lower_object["spec"]["volumeName"] not in store[A].destroyed
    await harness.upper.patch(path, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    await harness.upper.gone(path)
    await harness.sites[A].gone(f"{VOLUMES}/{lower_object['spec']['volumeName']}")
    assert lower_object["spec"]["volumeName"] in store[A].destroyed


async def test_an_ephemeral_volume_is_created_by_the_lower_cluster(harness: EngineHarness, store: Store) -> None:
    """It has an upper placeholder and a lower claim from the template, and both are deleted with the pod."""
    template = {"spec": claim(harness, "any")["spec"]}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    containers = [{"name": "main", "image": "app:1", "volumeMounts": mounts}]
    await create_scheduled_pod(harness, "brief", {"volumes": volumes, "containers": containers}, B)
    await harness.upper.until(harness.pod_path("brief"), is_ready)
    volume = await volume_of(harness, "brief-scratch")
    lower_object = await harness.sites[B].read(claims(harness, "brief-scratch"))
    assert UPPER_UID not in lower_object["metadata"].get("annotations", {})
    assert lower_object["spec"]["storageClassName"] == store[B].name
    await harness.upper.delete(harness.pod_path("brief"))
    await harness.upper.gone(harness.pod_path("brief"), f"{VOLUMES}/{volume['metadata']['name']}")
    await harness.sites[B].gone(claims(harness, "brief-scratch"))


async def test_a_claim_that_a_lower_refuses_is_returned_to_the_scheduler(harness: EngineHarness, store: Store) -> None:
    """An Event names the lower quota, and no placeholder is created.

    The pod runs once the quota is deleted.
    """
    assert store
    full = {"metadata": {"name": "full"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}}
    await harness.sites[A].create(harness.path("resourcequotas"), full)
    quota = harness.path("resourcequotas", "full")
    await harness.sites[A].until(quota, lambda one: one.get("status", {}).get("hard"))
    made = await harness.upper.create(claims(harness), claim(harness, "choosy"))
    await create_scheduled_pod(harness, "chooser", spec_with_claims("choosy"), A)
    assert "exceeded quota: full" in await harness.wait_for_event(made, "ProvisioningFailed")
    assert not [one for one in await placeholders(harness) if one["spec"]["claimRef"]["name"] == "choosy"]
    await harness.sites[A].delete(quota)
    await harness.upper.until(harness.pod_path("chooser"), is_ready)
    await harness.end_pods("chooser")
