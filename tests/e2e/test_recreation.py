"""Tests of objects that are deleted and created again under the same name after different delays."""

import asyncio
from typing import Any

import pytest
from enginekit import A, B, EngineHarness, wait_until
from sitekit import Manifest, is_ready
from storekit import Store, claim, claims, create_scheduled_pod, spec_with_claims

from tensile.names import UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

DELAYS = (0.0, 0.02, 0.2)
"""Seconds between the deletion of an object and the creation of the next."""


def is_for(upper: Manifest) -> Any:
    """Return the predicate that a lower object is the copy of this upper object."""
    wanted = upper["metadata"]["uid"]
    return lambda one: bool(one) and one["metadata"].get("annotations", {}).get(UPPER_UID) == wanted


async def replaced(harness: EngineHarness, path: str, body: Manifest, delay: float) -> Manifest:
    """Delete an upper object without grace, create another one of its name, and return it."""
    await harness.upper.delete(path, 0)
    await harness.upper.gone(path)
    await asyncio.sleep(delay)
    return await harness.upper.create(path.rpartition("/")[0], body)


async def pod_race(harness: EngineHarness, name: str, delay: float) -> None:
    """Replace a pod, and assert that the new one runs with the status of its own lower pod.

    With the longest delay, the new pod is in the other lower cluster.
    """
    path = harness.pod_path(name)
    await harness.bind(name)
    await harness.upper.until(path, is_ready)
    before = await harness.sites[A].until(path, is_ready)
    lower = B if delay == DELAYS[-1] else A
    new = await replaced(harness, path, harness.pod(name, lower=lower), delay)
    after = await harness.upper.until(path, is_ready)
    lower_object = await harness.sites[lower].until(path, is_for(new))
    assert after["metadata"]["uid"] == new["metadata"]["uid"]
    assert "deletionTimestamp" not in after["metadata"]
    assert lower_object["metadata"]["uid"] != before["metadata"]["uid"]
    assert (after["status"]["podIP"], after["status"]["startTime"]) == (
        lower_object["status"]["podIP"],
        lower_object["status"]["startTime"],
    )
    if lower == B:
        await harness.sites[A].gone(path)


async def copy_race(harness: EngineHarness, name: str, delay: float) -> None:
    """Replace a ConfigMap, and assert that the copy has the new content."""
    path = harness.path("configmaps", name)
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": name}, "data": {"key": "old"}})
    await harness.run_pod(name, {"volumes": [{"name": "v", "configMap": {"name": name}}]})
    new = await replaced(harness, path, {"metadata": {"name": name}, "data": {"key": "new"}}, delay)
    lower_object = await harness.sites[A].until(path, is_for(new))
    assert lower_object["data"] == {"key": "new"}
    assert is_ready(await harness.upper.read(harness.pod_path(name)))


async def service_race(harness: EngineHarness, name: str, delay: float) -> None:
    """Replace a Service, and assert that the copy has the new port."""
    path = harness.path("services", name)

    def body(port: int) -> Manifest:
        """Return the Service."""
        return {"metadata": {"name": name}, "spec": {"ports": [{"name": "http", "port": port}]}}

    await harness.bind(name)
    old = await harness.upper.create(harness.path("services"), body(80))
    await harness.sites[A].until(path, is_for(old))
    new = await replaced(harness, path, body(81), delay)
    lower_object = await harness.sites[A].until(path, is_for(new))
    assert [one["port"] for one in lower_object["spec"]["ports"]] == [81]


async def claim_race(harness: EngineHarness, name: str, delay: float) -> None:
    """Replace a claim, and assert that the new one gets a copy of its own.

    The old volume is deleted, because its class has that reclaim policy.
    """
    await harness.upper.create(claims(harness), claim(harness, name))
    await create_scheduled_pod(harness, name, spec_with_claims(name), A)
    await harness.upper.until(harness.pod_path(name), is_ready)
    before = await harness.sites[A].read(claims(harness, name))
    await harness.upper.delete(harness.pod_path(name), 0)
    new = await replaced(harness, claims(harness, name), claim(harness, name), delay)
    await create_scheduled_pod(harness, name, spec_with_claims(name), A)
    lower_object = await harness.sites[A].until(claims(harness, name), is_for(new))
    assert lower_object["metadata"]["uid"] != before["metadata"]["uid"]
    await harness.upper.until(harness.pod_path(name), is_ready)


async def test_copies_of_replaced_objects_belong_to_the_new_objects(harness: EngineHarness, store: Store) -> None:
    """Pods, ConfigMaps, Services and claims are replaced after three different delays, all at once."""
    races = {"pod": pod_race, "copy": copy_race, "service": service_race, "claim": claim_race}
    await asyncio.gather(
        *(
            race(harness, f"{word}-{number}", delay)
            for word, race in races.items()
            for number, delay in enumerate(DELAYS)
        )
    )
    await wait_until(lambda: sum(len(provisioner.destroyed) for provisioner in store.values()) == len(DELAYS))
    for word in races:
        for number in range(len(DELAYS)):
            await harness.upper.delete(harness.pod_path(f"{word}-{number}"), 0)
