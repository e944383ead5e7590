"""Tests of the leader label: one pod of a topology has it, and it follows the engine that leads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from stagekit import FaultyCluster
from virtualtime import clock, in_virtual_time

from tensile.engine.leader_election import LeaderLabel, own_pod
from tensile.errors import Conflict
from tensile.kube.cluster import Listing, Patch, Read, Selection
from tensile.names import LEADS
from tensile.objects import NAMESPACE, POD, UPPER, Kind, Manifest, Ref, labels

NAMESPACE_OF_ALL = "tensile"
LOOK, PARTING = 30.0, 1.0
APP = {"app.kubernetes.io/name": "tensile"}


class StuckUpperCluster(FaultyCluster):
    """An upper cluster that can stop responding to writes.

    Pods can be `replaced` as soon as they were read, or `touched`: another client writes to them as soon as they were
    listed.
    """

    hangs = False

    def __init__(self) -> None:
        super().__init__(UPPER, ends_pods=False, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        self.replaced: list[str] = []
        self.touched: list[str] = []

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """List objects, and then write to those that are to be touched."""
        found = await super().list(kind, selection, read)
        while self.touched:
            seen = self.find(POD, NAMESPACE_OF_ALL, name := self.touched.pop())
            assert seen is not None
            patch = Patch("merge-patch", {"metadata": {"uid": seen["metadata"]["uid"], "labels": {"touched": "yes"}}})
            await super().patch(ref(name), patch)
        return found

    async def read(self, ref: Ref) -> bytes:
        """Read an object, and then replace a pod by another one of the same name if that is configured."""
        found = await super().read(ref)
        if ref.name in self.replaced:
            self.replaced.remove(ref.name)
            self.place(POD, pod(ref.name, number="2"))
        return found

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch an object, or wait indefinitely."""
        if self.hangs:
            await asyncio.Event().wait()
        return await super().patch(ref, patch, subresource)


def ref(name: str) -> Ref:
    """Return the ref of a pod."""
    return Ref(UPPER, POD, NAMESPACE_OF_ALL, name)


def pod(name: str, leads: str = "", number: str = "1") -> Manifest:
    """Return a pod, with the leader label of a topology if one is given."""
    marks = {LEADS: leads} if leads else {}
    meta = {"name": name, "namespace": NAMESPACE_OF_ALL, "uid": f"uid-{name}-{number}", "labels": {**APP, **marks}}
    return {"metadata": meta, "spec": {"containers": [{"name": "engine", "image": "tensile"}]}}


def ground(*pods: Manifest) -> StuckUpperCluster:
    """Return an upper cluster with these pods."""
    upper = StuckUpperCluster()
    upper.place(NAMESPACE, {"metadata": {"name": NAMESPACE_OF_ALL}})
    for one in pods:
        upper.place(POD, one)
    return upper


def leaders(upper: FaultyCluster, topology: str = "demo") -> list[str]:
    """Return the pods that have the leader label of a topology."""
    return sorted(name for name in ("a", "b", "c") if mark_of(upper, name) == topology)


def mark_of(upper: FaultyCluster, name: str) -> str | None:
    """Return the leader label of a pod, and check that its other labels are kept."""
    found = upper.find(POD, NAMESPACE_OF_ALL, name)
    if found is None:
        return None
    assert labels(found).items() >= APP.items()
    return labels(found).get(LEADS)


@asynccontextmanager
async def opened(upper: FaultyCluster, name: str = "a") -> AsyncIterator[LeaderLabel]:
    """Maintain the label of an engine's pod, and wait until nothing is left to do."""
    mark = LeaderLabel(upper, ref(name), "demo")
    mark.open()
    await asyncio.sleep(0.1)
    try:
        yield mark
    finally:
        await mark.close()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"POD_NAMESPACE": "tensile", "POD_NAME": "a"}, ref("a")),
        ({"POD_NAMESPACE": "tensile"}, None),
        ({"POD_NAME": "a"}, None),
        ({"POD_NAMESPACE": "", "POD_NAME": "a"}, None),
        ({}, None),
    ],
)
def test_own_pod_is_named_by_two_environment_variables(environment: dict[str, str], wanted: Ref | None) -> None:
    """Both are required; a program that no Deployment of tensile started has neither."""
    assert own_pod(environment) == wanted


@in_virtual_time
async def test_a_pod_has_the_leader_label_while_its_engine_leads() -> None:
    """It is set at once when the engine begins to lead, and removed when it ends."""
    upper = ground(pod("a"), pod("b"))
    async with opened(upper) as mark:
        assert leaders(upper) == []
        mark.lead()
        await asyncio.sleep(0.1)
        assert leaders(upper) == ["a"]
    assert leaders(upper) == []


@in_virtual_time
async def test_a_stale_leader_label_is_removed_if_the_engine_starts_as_a_standby() -> None:
    """The former engine of the pod was killed, and its container restarted."""
    upper = ground(pod("a", leads="demo"))
    async with opened(upper):
        assert leaders(upper) == []


@in_virtual_time
async def test_a_leader_removes_the_label_of_other_pods() -> None:
    """The pod of a dead machine keeps its labels for minutes, and the Service would select it too."""
    upper = ground(pod("a"), pod("b", leads="demo"))
    async with opened(upper) as mark:
        assert leaders(upper) == ["b"]
        mark.lead()
        await asyncio.sleep(0.1)
        assert leaders(upper) == ["a"]


@in_virtual_time
async def test_a_standby_does_not_change_the_labels_of_other_pods() -> None:
    """It does not do so when it ends either, because another engine leads."""
    upper = ground(pod("a"), pod("b", leads="demo"))
    async with opened(upper):
        await asyncio.sleep(2 * LOOK)
    assert leaders(upper) == ["b"]
    assert upper.writes == []


@in_virtual_time
async def test_the_labels_of_other_topologies_are_not_changed() -> None:
    """Engines of several topologies can run in one namespace."""
    upper = ground(pod("a"), pod("b", leads="other"))
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(0.1)
        assert (leaders(upper), leaders(upper, "other")) == (["a"], ["b"])
    assert leaders(upper, "other") == ["b"]


@in_virtual_time
async def test_a_removed_leader_label_is_restored_at_the_next_check() -> None:
    """Nothing is written while the labels are correct."""
    upper = ground(pod("a"))
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(10 * LOOK)
        assert len(upper.writes) == 1
        await upper.patch(ref("a"), Patch("merge-patch", {"metadata": {"uid": "uid-a-1", "labels": {LEADS: None}}}))
        await asyncio.sleep(LOOK + 1)
        assert leaders(upper) == ["a"]


@in_virtual_time
async def test_a_denied_label_is_logged_once_and_retried(capsys: pytest.CaptureFixture[str]) -> None:
    """The log line has the reason and the consequence."""
    upper = ground(pod("a"))
    async with opened(upper) as mark:
        upper.denied[("patch", "Pod")] = "pods is forbidden"
        mark.lead()
        await asyncio.sleep(20)
        assert leaders(upper) == []
        upper.denied.clear()
        await asyncio.sleep(LOOK)
        assert leaders(upper) == ["a"]
    log_lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "Services that select the leader do not reach it" in line
    ]
    assert len(log_lines) == 1
    assert "pods is forbidden" in log_lines[0]


@in_virtual_time
async def test_a_pod_that_was_replaced_after_the_read_is_not_labeled() -> None:
    """The patch has the UID as its precondition and fails; the next check labels the new pod."""
    upper = ground(pod("a"))
    upper.replaced.append("a")
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(0.1)
        assert leaders(upper) == []
        await asyncio.sleep(2)
        assert leaders(upper) == ["a"]


@in_virtual_time
async def test_a_label_that_changed_after_the_list_is_not_removed() -> None:
    """An engine that was paused between its list and its write may have lost the leadership to that pod's engine."""
    upper = ground(pod("a"), pod("b", leads="demo"))
    upper.touched.append("b")
    mark = LeaderLabel(upper, ref("a"), "demo")
    mark.leads = True
    with pytest.raises(Conflict):
        await mark.reconcile()
    assert "b" in leaders(upper)


@in_virtual_time
async def test_an_engine_that_lost_the_leadership_keeps_its_label_and_stops_at_once() -> None:
    """The new leader removes the label; a request to a cluster that hangs would delay the stop."""
    upper = ground(pod("a"))
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(0.1)
        upper.hangs = True
        mark.lose()
        begun = clock()
    assert clock() == begun
    assert leaders(upper) == ["a"]


@in_virtual_time
async def test_the_removal_of_the_label_takes_one_second_at_most() -> None:
    """The lease is released after it, and little time remains for that if the cluster hangs."""
    upper = ground(pod("a"))
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(0.1)
        upper.hangs = True
        begun = clock()
    assert clock() - begun <= PARTING


@in_virtual_time
async def test_an_engine_without_a_pod_writes_no_label() -> None:
    """An engine that runs directly on a machine has no pod."""
    upper = ground(pod("a"))
    mark = LeaderLabel(upper, None, "demo")
    mark.open()
    mark.lead()
    await mark.reconcile()
    await asyncio.sleep(2 * LOOK)
    await mark.close()
    assert upper.writes == []
