"""Tests that no object is deleted because it is missing from a restored store of either cluster.

The restore is also reported. The tests run the engine's whole loop on clusters in memory, for every kind that the
engine owns.
"""

from collections.abc import Iterable

import pytest
from rbackit import ROBOT, binding, role
from servicekit import endpoint_slice, service
from stagekit import EngineSimulation
from virtualtime import in_virtual_time
from worldkit import A, config_map, make_namespace, make_object, make_service_account, make_upper_pod, secret

from tensile.kubelet.pods.conditions import conditions_of
from tensile.names import DELETIONS_BLOCKED, OWNER, STORE_RESTORED
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    NAMESPACE,
    NODE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Manifest,
    Ref,
    labels,
    uid,
)

ALL = "controllers: [PV, Service, RBAC, ServiceAccount]\n"
NAMES: dict[Kind, str] = {
    POD: "web",
    CONFIG_MAP: "settings",
    SECRET: "password",
    SERVICE_ACCOUNT: "robot",
    ROLE: "reader",
    ROLE_BINDING: "reads",
    SERVICE: "web",
    ENDPOINT_SLICE: "web-1",
    CLAIM: "data",
    NAMESPACE: "default",
}
BELOW = Ref(A, POD, "default", "web")


def at(cluster: str, kind: Kind) -> Ref:
    """Return the reference of the one object of a kind in a cluster."""
    return Ref(cluster, kind, "default" if kind.namespaced else "", NAMES[kind])


def simulation_with_pod(*, prompt: bool = True) -> EngineSimulation:
    """Create a simulation in which a pod that refers to all other objects runs in lower-a."""
    simulation = EngineSimulation(more=ALL, prompt=prompt)
    simulation.create_nodes()
    upper_cluster = simulation.clusters[UPPER]
    volumes = [
        {"name": "c", "configMap": {"name": "settings"}},
        {"name": "s", "secret": {"secretName": "password"}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    claim_spec = {
        "storageClassName": "disk",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {**make_object("PersistentVolumeClaim", "data"), "spec": claim_spec}
    for kind, one in (
        (NAMESPACE, make_namespace()),
        (CONFIG_MAP, config_map()),
        (SECRET, secret()),
        (SERVICE_ACCOUNT, make_service_account(name="robot")),
        (ROLE, role()),
        (ROLE_BINDING, binding(subjects=[ROBOT])),
        (SERVICE, service()),
        (ENDPOINT_SLICE, endpoint_slice()),
        (CLAIM, claim),
        (POD, make_upper_pod(spec={"volumes": volumes, "serviceAccountName": "robot"})),
    ):
        upper_cluster.place(kind, one)
    simulation.start()
    return simulation


async def running(simulation: EngineSimulation) -> None:
    """Create all copies, and let the pod run."""
    await simulation.advance()
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    simulation.clusters[A].alter(BELOW, lambda pod: pod["status"].update(status, containerStatuses=[{"name": "main"}]))
    await simulation.advance()
    assert await own_kinds(simulation) == sorted(kind.name for kind in NAMES)


async def own_kinds(simulation: EngineSimulation) -> list[str]:
    """Return the kinds of the objects of this topology in the lower cluster that are not being deleted."""
    found = []
    for kind in NAMES:
        every = await simulation.listed(A, kind)
        mine = [one for one in every if OWNER in labels(one) and "deletionTimestamp" not in one["metadata"]]
        found += [kind.name for _ in mine]
    return sorted(found)


def note(simulation: EngineSimulation) -> tuple[str, str]:
    """Return status and reason of the node's condition about blocked deletions."""
    node = simulation.find(Ref(UPPER, NODE, "", A))
    assert node is not None
    held = conditions_of(node)[DELETIONS_BLOCKED]
    return held["status"], held["reason"]


def without(*missing: Kind) -> list[str]:
    """Return the kinds except the missing ones."""
    return sorted(kind.name for kind in NAMES if kind not in missing)


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.name)
@in_virtual_time
async def test_no_copy_is_deleted_because_a_restored_store_lacks_its_upper_object(kind: Kind) -> None:
    """One object would be within the guard's limits, but it stays, also after a restart of the engine."""
    simulation = simulation_with_pod()
    await running(simulation)
    simulation.restore(at(UPPER, kind))
    await simulation.advance(120)
    assert await own_kinds(simulation) == without()
    await simulation.restart()
    await simulation.advance(120)
    assert await own_kinds(simulation) == without()
    await simulation.stop()


FORGETTABLE = (POD, SERVICE, ENDPOINT_SLICE, ROLE, ROLE_BINDING)
"""Kinds whose copies are deleted if the upper object is missing from a store that was not restored."""


@pytest.mark.parametrize("kind", FORGETTABLE, ids=lambda kind: kind.name)
@in_virtual_time
async def test_a_restore_is_reported_on_the_node_until_a_user_forces_the_deletion(kind: Kind) -> None:
    """The node's condition keeps the state for later engines, and is False after the forced deletion."""
    simulation = simulation_with_pod()
    await running(simulation)
    assert note(simulation) == ("False", "NoDeletionsBlocked")
    simulation.restore(at(UPPER, kind))
    await simulation.advance()
    assert note(simulation) == ("True", STORE_RESTORED)
    assert [one for one in simulation.observer.records if one.problem and one.problem.reason == STORE_RESTORED]
    await simulation.restart()
    await simulation.advance()
    assert note(simulation) == ("True", STORE_RESTORED)
    await simulation.restart(forced=True)
    await simulation.advance()
    assert kind.name not in await own_kinds(simulation)
    await simulation.restart()
    await simulation.advance()
    assert note(simulation) == ("False", "NoDeletionsBlocked")
    await simulation.stop()


@pytest.mark.parametrize("kind", FORGETTABLE, ids=lambda kind: kind.name)
@in_virtual_time
async def test_a_copy_is_deleted_if_a_store_that_was_not_restored_lacks_its_upper_object(kind: Kind) -> None:
    """The absence is read at quorum, and the deletion is within the guard's limits.

    The copy must not stay permanently because the watch missed the deletion.
    """
    simulation = simulation_with_pod()
    await running(simulation)
    simulation.delete_without_event(at(UPPER, kind))
    await simulation.advance()
    assert kind.name not in await own_kinds(simulation)
    assert note(simulation) == ("False", "NoDeletionsBlocked")
    await simulation.stop()


@in_virtual_time
async def test_deletions_are_not_blocked_any_more_if_the_upper_object_exists_again() -> None:
    """A newer backup may have been restored, or the objects created again from Git."""
    simulation = simulation_with_pod()
    await running(simulation)
    before = simulation.find(at(UPPER, SERVICE))
    simulation.restore(at(UPPER, SERVICE))
    await simulation.advance()
    assert note(simulation) == ("True", STORE_RESTORED)
    simulation.clusters[UPPER].place(SERVICE, {**(before or {}), "metadata": (before or {})["metadata"]})
    await simulation.advance()
    assert (await own_kinds(simulation), note(simulation)) == (without(), ("False", "NoDeletionsBlocked"))
    await simulation.stop()


@in_virtual_time
async def test_the_condition_about_a_restore_stays_while_the_lower_does_not_respond() -> None:
    """No deletion is planned while the state of the lower is unknown, which must not end the block."""
    simulation = simulation_with_pod()
    await running(simulation)
    simulation.restore(at(UPPER, POD))
    await simulation.advance()
    simulation.set_unreachable(A, 60)
    await simulation.advance(700)
    assert note(simulation) == ("True", STORE_RESTORED)
    await simulation.restart()
    simulation.set_unreachable(A, 0)
    await simulation.advance()
    assert (await own_kinds(simulation), note(simulation)) == (without(), ("True", STORE_RESTORED))
    await simulation.stop()


@in_virtual_time
async def test_an_observed_deletion_passes_after_a_restore() -> None:
    """The watch reported the deletion of the upper pod, so the lower pod is deleted."""
    simulation = simulation_with_pod()
    await running(simulation)
    simulation.restore(at(UPPER, SERVICE))
    await simulation.delete(at(UPPER, POD), 0)
    await simulation.advance()
    assert simulation.find(BELOW) is None
    await simulation.stop()


def made_anew() -> Iterable[Kind]:
    """Return the kinds whose copies are created again, because their content is in the upper cluster."""
    return (CONFIG_MAP, SECRET, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, SERVICE, ENDPOINT_SLICE)


@in_virtual_time
async def test_copies_that_a_restored_lower_lacks_are_created_again() -> None:
    """The upper cluster has their content."""
    simulation = simulation_with_pod()
    await running(simulation)
    simulation.restore(*(at(A, kind) for kind in made_anew()))
    await simulation.advance()
    assert await own_kinds(simulation) == without()
    await simulation.stop()


async def upper(simulation: EngineSimulation) -> Manifest:
    """Return the upper pod."""
    found = simulation.find(at(UPPER, POD))
    assert found is not None
    return found


@in_virtual_time
async def test_a_pod_that_a_restored_lower_lacks_is_not_ready_but_not_failed() -> None:
    """The reason is StoreRestored, also after a restart.

    A forced run by a user sets the pod to Failed.
    """
    simulation = simulation_with_pod()
    await running(simulation)
    simulation.restore(BELOW)
    await simulation.advance(120)
    for _ in range(2):
        found = await upper(simulation)
        ready = conditions_of(found)["Ready"]
        assert (found["status"]["phase"], ready["status"], ready["reason"]) == ("Running", "False", STORE_RESTORED)
        assert (simulation.find(BELOW), note(simulation)) == (None, ("True", STORE_RESTORED))
        await simulation.restart()
        await simulation.advance(120)
    await simulation.restart(forced=True)
    await simulation.advance()
    found = await upper(simulation)
    assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "LowerPodLost")
    await simulation.stop()


@in_virtual_time
async def test_a_lower_pod_is_kept_if_a_restored_store_has_an_older_upper_pod() -> None:
    """Pods of a StatefulSet have the same names again.

    The running lower pod belongs to the later of two upper pods, which the restored store lacks.
    """
    simulation = simulation_with_pod()
    await running(simulation)
    upper_object, copy = await upper(simulation), simulation.find(BELOW)
    simulation.restore_older(at(UPPER, POD), {**upper_object, "metadata": {**upper_object["metadata"], "uid": "older"}})
    for _ in range(2):
        await simulation.advance(120)
        assert simulation.find(BELOW) == copy
        assert (await upper(simulation))["status"]["phase"] == "Running"
        assert note(simulation) == ("True", STORE_RESTORED)
        await simulation.restart()
    await simulation.restart(forced=True)
    await simulation.advance()
    assert uid_below(simulation) != uid(copy or {})
    await simulation.stop()


def uid_below(simulation: EngineSimulation) -> str:
    """Return the UID of the lower pod, "" if there is none."""
    return uid(simulation.find(BELOW) or {"metadata": {"uid": ""}})


@in_virtual_time
async def test_a_pod_that_a_lower_lacks_without_a_restore_is_failed() -> None:
    """Another client deleted the lower pod, and one pod is within the guard's limits."""
    simulation = simulation_with_pod()
    await running(simulation)
    simulation.delete_without_event(BELOW)
    await simulation.advance()
    assert (await upper(simulation))["status"]["reason"] == "LowerPodLost"
    await simulation.stop()
