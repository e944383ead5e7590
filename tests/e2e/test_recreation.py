"""Tests of objects that are deleted and created again under the same name after different delays."""

import asyncio
from typing import Any

import pytest
from enginekit import A, B, Ground, polled
from sitekit import Manifest, is_ready
from storekit import Store, claim, claims, scheduled, using

from tensile.names import UPPER_UID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

DELAYS = (0.0, 0.02, 0.2)
"""Seconds between the deletion of an object and the creation of the next."""


def is_for(upper: Manifest) -> Any:
    """Return the predicate that a lower object is the copy of this upper object."""
    wanted = upper["metadata"]["uid"]
    return lambda one: bool(one) and one["metadata"].get("annotations", {}).get(UPPER_UID) == wanted


async def replaced(ground: Ground, path: str, body: Manifest, delay: float) -> Manifest:
    """Delete an upper object without grace, create another one of its name, and return it."""
    await ground.upper.delete(path, 0)
    await ground.upper.gone(path)
    await asyncio.sleep(delay)
    return await ground.upper.create(path.rpartition("/")[0], body)


async def pod_race(ground: Ground, name: str, delay: float) -> None:
    """Replace a pod, and assert that the new one runs with the status of its own lower pod.

    With the longest delay, the new pod is in the other lower cluster.
    """
    path = ground.pod_path(name)
    await ground.bind(name)
    await ground.upper.until(path, is_ready)
    before = await ground.sites[A].until(path, is_ready)
    lower = B if delay == DELAYS[-1] else A
    new = await replaced(ground, path, ground.pod(name, lower=lower), delay)
    after = await ground.upper.until(path, is_ready)
    below = await ground.sites[lower].until(path, is_for(new))
    assert after["metadata"]["uid"] == new["metadata"]["uid"]
    assert "deletionTimestamp" not in after["metadata"]
    assert below["metadata"]["uid"] != before["metadata"]["uid"]
    assert (after["status"]["podIP"], after["status"]["startTime"]) == (
        below["status"]["podIP"],
        below["status"]["startTime"],
    )
    if lower == B:
        await ground.sites[A].gone(path)


async def copy_race(ground: Ground, name: str, delay: float) -> None:
    """Replace a ConfigMap, and assert that the copy has the new content."""
    path = ground.path("configmaps", name)
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": name}, "data": {"key": "old"}})
    await ground.run_pod(name, {"volumes": [{"name": "v", "configMap": {"name": name}}]})
    new = await replaced(ground, path, {"metadata": {"name": name}, "data": {"key": "new"}}, delay)
    below = await ground.sites[A].until(path, is_for(new))
    assert below["data"] == {"key": "new"}
    assert is_ready(await ground.upper.read(ground.pod_path(name)))


async def service_race(ground: Ground, name: str, delay: float) -> None:
    """Replace a Service, and assert that the copy has the new port."""
    path = ground.path("services", name)

    def body(port: int) -> Manifest:
        """Return the Service."""
        return {"metadata": {"name": name}, "spec": {"ports": [{"name": "http", "port": port}]}}

    await ground.bind(name)
    old = await ground.upper.create(ground.path("services"), body(80))
    await ground.sites[A].until(path, is_for(old))
    new = await replaced(ground, path, body(81), delay)
    below = await ground.sites[A].until(path, is_for(new))
    assert [one["port"] for one in below["spec"]["ports"]] == [81]


async def claim_race(ground: Ground, name: str, delay: float) -> None:
    """Replace a claim, and assert that the new one gets a copy of its own.

    The old volume is deleted, because its class has that reclaim policy.
    """
    await ground.upper.create(claims(ground), claim(ground, name))
    await scheduled(ground, name, using(name), A)
    await ground.upper.until(ground.pod_path(name), is_ready)
    before = await ground.sites[A].read(claims(ground, name))
    await ground.upper.delete(ground.pod_path(name), 0)
    new = await replaced(ground, claims(ground, name), claim(ground, name), delay)
    await scheduled(ground, name, using(name), A)
    below = await ground.sites[A].until(claims(ground, name), is_for(new))
    assert below["metadata"]["uid"] != before["metadata"]["uid"]
    await ground.upper.until(ground.pod_path(name), is_ready)


async def test_copies_of_replaced_objects_belong_to_the_new_objects(ground: Ground, store: Store) -> None:
    """Pods, ConfigMaps, Services and claims are replaced after three different delays, all at once."""
    races = {"pod": pod_race, "copy": copy_race, "service": service_race, "claim": claim_race}
    await asyncio.gather(
        *(
            race(ground, f"{word}-{number}", delay)
            for word, race in races.items()
            for number, delay in enumerate(DELAYS)
        )
    )
    await polled(lambda: sum(len(provisioner.destroyed) for provisioner in store.values()) == len(DELAYS))
    for word in races:
        for number in range(len(DELAYS)):
            await ground.upper.delete(ground.pod_path(f"{word}-{number}"), 0)
