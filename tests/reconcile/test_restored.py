"""Tests that no object is deleted because it is missing from a restored store of either cluster.

The restore is also reported. The tests run the engine's whole loop on clusters in memory, for every kind that the
engine owns.
"""

from collections.abc import Iterable

import pytest
from rbackit import ROBOT, binding, role
from servicekit import service, sliced
from stagekit import Stage
from virtualtime import in_virtual_time
from worldkit import A, account, config_map, secret, space, thing, upper_pod

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


def staged(*, prompt: bool = True) -> Stage:
    """Create a stage on which a pod that refers to all other objects runs in lower-a."""
    stage = Stage(more=ALL, prompt=prompt)
    stage.raise_nodes()
    above = stage.clusters[UPPER]
    volumes = [
        {"name": "c", "configMap": {"name": "settings"}},
        {"name": "s", "secret": {"secretName": "password"}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    asked = {
        "storageClassName": "disk",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {**thing("PersistentVolumeClaim", "data"), "spec": asked}
    for kind, one in (
        (NAMESPACE, space()),
        (CONFIG_MAP, config_map()),
        (SECRET, secret()),
        (SERVICE_ACCOUNT, account(name="robot")),
        (ROLE, role()),
        (ROLE_BINDING, binding(subjects=[ROBOT])),
        (SERVICE, service()),
        (ENDPOINT_SLICE, sliced()),
        (CLAIM, claim),
        (POD, upper_pod(spec={"volumes": volumes, "serviceAccountName": "robot"})),
    ):
        above.place(kind, one)
    stage.start()
    return stage


async def running(stage: Stage) -> None:
    """Create all copies, and let the pod run."""
    await stage.calm()
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    stage.clusters[A].alter(BELOW, lambda pod: pod["status"].update(status, containerStatuses=[{"name": "main"}]))
    await stage.calm()
    assert await ours(stage) == sorted(kind.name for kind in NAMES)


async def ours(stage: Stage) -> list[str]:
    """Return the kinds of the objects of this topology in the lower cluster that are not being deleted."""
    found = []
    for kind in NAMES:
        every = await stage.listed(A, kind)
        mine = [one for one in every if OWNER in labels(one) and "deletionTimestamp" not in one["metadata"]]
        found += [kind.name for _ in mine]
    return sorted(found)


def note(stage: Stage) -> tuple[str, str]:
    """Return status and reason of the node's condition about blocked deletions."""
    node = stage.find(Ref(UPPER, NODE, "", A))
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
    stage = staged()
    await running(stage)
    stage.restore(at(UPPER, kind))
    await stage.calm(120)
    assert await ours(stage) == without()
    await stage.restart()
    await stage.calm(120)
    assert await ours(stage) == without()
    await stage.stop()


FORGETTABLE = (POD, SERVICE, ENDPOINT_SLICE, ROLE, ROLE_BINDING)
"""Kinds whose copies are deleted if the upper object is missing from a store that was not restored."""


@pytest.mark.parametrize("kind", FORGETTABLE, ids=lambda kind: kind.name)
@in_virtual_time
async def test_a_restore_is_reported_on_the_node_until_a_user_forces_the_deletion(kind: Kind) -> None:
    """The node's condition keeps the state for later engines, and is False after the forced deletion."""
    stage = staged()
    await running(stage)
    assert note(stage) == ("False", "NoDeletionsBlocked")
    stage.restore(at(UPPER, kind))
    await stage.calm()
    assert note(stage) == ("True", STORE_RESTORED)
    assert [one for one in stage.script.lines if one.problem and one.problem.reason == STORE_RESTORED]
    await stage.restart()
    await stage.calm()
    assert note(stage) == ("True", STORE_RESTORED)
    await stage.restart(forced=True)
    await stage.calm()
    assert kind.name not in await ours(stage)
    await stage.restart()
    await stage.calm()
    assert note(stage) == ("False", "NoDeletionsBlocked")
    await stage.stop()


@pytest.mark.parametrize("kind", FORGETTABLE, ids=lambda kind: kind.name)
@in_virtual_time
async def test_a_copy_is_deleted_if_a_store_that_was_not_restored_lacks_its_upper_object(kind: Kind) -> None:
    """The absence is read at quorum, and the deletion is within the guard's limits.

    The copy must not stay permanently because the watch missed the deletion.
    """
    stage = staged()
    await running(stage)
    stage.slip(at(UPPER, kind))
    await stage.calm()
    assert kind.name not in await ours(stage)
    assert note(stage) == ("False", "NoDeletionsBlocked")
    await stage.stop()


@in_virtual_time
async def test_deletions_are_not_blocked_any_more_if_the_upper_object_exists_again() -> None:
    """A newer backup may have been restored, or the objects created again from Git."""
    stage = staged()
    await running(stage)
    before = stage.find(at(UPPER, SERVICE))
    stage.restore(at(UPPER, SERVICE))
    await stage.calm()
    assert note(stage) == ("True", STORE_RESTORED)
    stage.clusters[UPPER].place(SERVICE, {**(before or {}), "metadata": (before or {})["metadata"]})
    await stage.calm()
    assert (await ours(stage), note(stage)) == (without(), ("False", "NoDeletionsBlocked"))
    await stage.stop()


@in_virtual_time
async def test_the_condition_about_a_restore_stays_while_the_lower_does_not_respond() -> None:
    """No deletion is planned while the state of the lower is unknown, which must not end the block."""
    stage = staged()
    await running(stage)
    stage.restore(at(UPPER, POD))
    await stage.calm()
    stage.quieten(A, 60)
    await stage.calm(700)
    assert note(stage) == ("True", STORE_RESTORED)
    await stage.restart()
    stage.quieten(A, 0)
    await stage.calm()
    assert (await ours(stage), note(stage)) == (without(), ("True", STORE_RESTORED))
    await stage.stop()


@in_virtual_time
async def test_an_observed_deletion_passes_after_a_restore() -> None:
    """The watch reported the deletion of the upper pod, so the lower pod is deleted."""
    stage = staged()
    await running(stage)
    stage.restore(at(UPPER, SERVICE))
    await stage.delete(at(UPPER, POD), 0)
    await stage.calm()
    assert stage.find(BELOW) is None
    await stage.stop()


def made_anew() -> Iterable[Kind]:
    """Return the kinds whose copies are created again, because their content is in the upper cluster."""
    return (CONFIG_MAP, SECRET, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, SERVICE, ENDPOINT_SLICE)


@in_virtual_time
async def test_copies_that_a_restored_lower_lacks_are_created_again() -> None:
    """The upper cluster has their content."""
    stage = staged()
    await running(stage)
    stage.restore(*(at(A, kind) for kind in made_anew()))
    await stage.calm()
    assert await ours(stage) == without()
    await stage.stop()


async def upper(stage: Stage) -> Manifest:
    """Return the upper pod."""
    found = stage.find(at(UPPER, POD))
    assert found is not None
    return found


@in_virtual_time
async def test_a_pod_that_a_restored_lower_lacks_is_not_ready_but_not_failed() -> None:
    """The reason is StoreRestored, also after a restart.

    A forced run by a user sets the pod to Failed.
    """
    stage = staged()
    await running(stage)
    stage.restore(BELOW)
    await stage.calm(120)
    for _ in range(2):
        found = await upper(stage)
        ready = conditions_of(found)["Ready"]
        assert (found["status"]["phase"], ready["status"], ready["reason"]) == ("Running", "False", STORE_RESTORED)
        assert (stage.find(BELOW), note(stage)) == (None, ("True", STORE_RESTORED))
        await stage.restart()
        await stage.calm(120)
    await stage.restart(forced=True)
    await stage.calm()
    found = await upper(stage)
    assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "LowerPodLost")
    await stage.stop()


@in_virtual_time
async def test_a_lower_pod_is_kept_if_a_restored_store_has_an_older_upper_pod() -> None:
    """Pods of a StatefulSet have the same names again.

    The running lower pod belongs to the later of two upper pods, which the restored store lacks.
    """
    stage = staged()
    await running(stage)
    above, copy = await upper(stage), stage.find(BELOW)
    stage.exchange(at(UPPER, POD), {**above, "metadata": {**above["metadata"], "uid": "older"}})
    for _ in range(2):
        await stage.calm(120)
        assert stage.find(BELOW) == copy
        assert (await upper(stage))["status"]["phase"] == "Running"
        assert note(stage) == ("True", STORE_RESTORED)
        await stage.restart()
    await stage.restart(forced=True)
    await stage.calm()
    assert uid_below(stage) != uid(copy or {})
    await stage.stop()


def uid_below(stage: Stage) -> str:
    """Return the UID of the lower pod, "" if there is none."""
    return uid(stage.find(BELOW) or {"metadata": {"uid": ""}})


@in_virtual_time
async def test_a_pod_that_a_lower_lacks_without_a_restore_is_failed() -> None:
    """Another client deleted the lower pod, and one pod is within the guard's limits."""
    stage = staged()
    await running(stage)
    stage.slip(BELOW)
    await stage.calm()
    assert (await upper(stage))["status"]["reason"] == "LowerPodLost"
    await stage.stop()
