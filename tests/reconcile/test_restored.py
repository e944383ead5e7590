"""A store that was restored, above or below: nothing is ended because it is missing there, and that is told.

By the engine's whole loop, on clusters in memory, for every kind that the engine owns.
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
    """Name the one object of a kind in a cluster."""
    return Ref(cluster, kind, "default" if kind.namespaced else "", NAMES[kind])


def staged(*, prompt: bool = True) -> Stage:
    """Set a stage where a pod that refers to everything there is runs in lower-a."""
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
    """Return the kinds of what is ours below and not being deleted."""
    found = []
    for kind in NAMES:
        every = await stage.listed(A, kind)
        mine = [one for one in every if OWNER in labels(one) and "deletionTimestamp" not in one["metadata"]]
        found += [kind.name for _ in mine]
    return sorted(found)


def note(stage: Stage) -> tuple[str, str]:
    """Return status and reason of the condition by which the node tells what is held back."""
    node = stage.find(Ref(UPPER, NODE, "", A))
    assert node is not None
    held = conditions_of(node)[DELETIONS_BLOCKED]
    return held["status"], held["reason"]


def without(*missing: Kind) -> list[str]:
    """Return the kinds that are left when some are not."""
    return sorted(kind.name for kind in NAMES if kind not in missing)


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.name)
@in_virtual_time
async def test_nothing_below_goes_because_its_original_was_forgotten(kind: Kind) -> None:
    """One object of the kind is few enough for the guard's limits; it stays all the same, also for the next engine."""
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
"""Kinds whose copies end, with time, when the original is merely missing from a store that was not restored."""


@pytest.mark.parametrize("kind", FORGETTABLE, ids=lambda kind: kind.name)
@in_virtual_time
async def test_it_is_told_and_a_person_may_let_it_go(kind: Kind) -> None:
    """The node's condition says so; it keeps the note for engines to come, and has nothing to say once it is done."""
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
async def test_what_is_missing_from_a_store_that_was_not_restored_goes(kind: Kind) -> None:
    """Read at quorum, and few: the deletion was missed, and what it asked for must not stay for ever."""
    stage = staged()
    await running(stage)
    stage.slip(at(UPPER, kind))
    await stage.calm()
    assert kind.name not in await ours(stage)
    assert note(stage) == ("False", "NoDeletionsBlocked")
    await stage.stop()


@in_virtual_time
async def test_what_comes_back_above_ends_the_hold() -> None:
    """Somebody restored a newer state, or made the objects anew from Git."""
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
async def test_the_note_outlives_a_lower_that_does_not_answer() -> None:
    """While nothing can be known of it there is nothing to hold; that must not look like the end of it."""
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
async def test_what_was_deleted_before_the_restore_still_goes() -> None:
    """A deletion that was seen is one, whatever else is in doubt."""
    stage = staged()
    await running(stage)
    stage.restore(at(UPPER, SERVICE))
    await stage.delete(at(UPPER, POD), 0)
    await stage.calm()
    assert stage.find(BELOW) is None
    await stage.stop()


def made_anew() -> Iterable[Kind]:
    """Return the kinds that are made again below, since nothing of theirs is lost with them."""
    return (CONFIG_MAP, SECRET, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, SERVICE, ENDPOINT_SLICE)


@in_virtual_time
async def test_copies_that_a_lower_forgot_are_made_again() -> None:
    """What is above is the truth about them."""
    stage = staged()
    await running(stage)
    stage.restore(*(at(A, kind) for kind in made_anew()))
    await stage.calm()
    assert await ours(stage) == without()
    await stage.stop()


async def upper(stage: Stage) -> Manifest:
    """Return the pod above."""
    found = stage.find(at(UPPER, POD))
    assert found is not None
    return found


@in_virtual_time
async def test_a_pod_that_its_lower_forgot_is_not_failed_for_it() -> None:
    """It is not ready, and says why; what becomes of it is for a person to say, after a restart too."""
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
async def test_an_older_pod_that_came_back_above_ends_nobody() -> None:
    """A StatefulSet's pods have the same names again: the one that runs belongs to the later of two, which is lost."""
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
    """Return the UID of the lower pod, "" when there is none."""
    return uid(stage.find(BELOW) or {"metadata": {"uid": ""}})


@in_virtual_time
async def test_a_pod_that_its_lower_lost_otherwise_fails() -> None:
    """Somebody deleted it there: one is within the limits."""
    stage = staged()
    await running(stage)
    stage.slip(BELOW)
    await stage.calm()
    assert (await upper(stage))["status"]["reason"] == "LowerPodLost"
    await stage.stop()
