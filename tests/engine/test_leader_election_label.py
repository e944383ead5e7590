"""The mark of the pod whose engine drives: one pod of a topology has it, and it follows the engine that leads."""

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


class Upper(FaultyCluster):
    """An upper cluster that can stop answering writes.

    Pods there can be `replaced` as soon as they were read, or `touched`: written by others as soon as they were listed.
    """

    hangs = False

    def __init__(self) -> None:
        super().__init__(UPPER, ends_pods=False, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        self.replaced: list[str] = []
        self.touched: list[str] = []

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """List, and write what is to be touched."""
        found = await super().list(kind, selection, read)
        while self.touched:
            seen = self.find(POD, NAMESPACE_OF_ALL, name := self.touched.pop())
            assert seen is not None
            patch = Patch("merge-patch", {"metadata": {"uid": seen["metadata"]["uid"], "labels": {"touched": "yes"}}})
            await super().patch(ref(name), patch)
        return found

    async def read(self, ref: Ref) -> bytes:
        """Read, and put another pod of that name in its place if it is to be replaced."""
        found = await super().read(ref)
        if ref.name in self.replaced:
            self.replaced.remove(ref.name)
            self.place(POD, pod(ref.name, number="2"))
        return found

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch, or wait for ever."""
        if self.hangs:
            await asyncio.Event().wait()
        return await super().patch(ref, patch, subresource)


def ref(name: str) -> Ref:
    """Name a pod."""
    return Ref(UPPER, POD, NAMESPACE_OF_ALL, name)


def pod(name: str, leads: str = "", number: str = "1") -> Manifest:
    """Make a pod, with the mark of a topology if one is named."""
    marks = {LEADS: leads} if leads else {}
    meta = {"name": name, "namespace": NAMESPACE_OF_ALL, "uid": f"uid-{name}-{number}", "labels": {**APP, **marks}}
    return {"metadata": meta, "spec": {"containers": [{"name": "engine", "image": "tensile"}]}}


def ground(*pods: Manifest) -> Upper:
    """Make an upper cluster with such pods."""
    upper = Upper()
    upper.place(NAMESPACE, {"metadata": {"name": NAMESPACE_OF_ALL}})
    for one in pods:
        upper.place(POD, one)
    return upper


def leaders(upper: FaultyCluster, topology: str = "demo") -> list[str]:
    """Return the pods that have the mark of a topology."""
    return sorted(name for name in ("a", "b", "c") if mark_of(upper, name) == topology)


def mark_of(upper: FaultyCluster, name: str) -> str | None:
    """Return the mark of a pod; whatever it is, the pod's other labels are there."""
    found = upper.find(POD, NAMESPACE_OF_ALL, name)
    if found is None:
        return None
    assert labels(found).items() >= APP.items()
    return labels(found).get(LEADS)


@asynccontextmanager
async def opened(upper: FaultyCluster, name: str = "a") -> AsyncIterator[LeaderLabel]:
    """Keep the label of a pod's engine, and wait until nothing is left to do."""
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
def test_which_pod_this_is(environment: dict[str, str], wanted: Ref | None) -> None:
    """It takes both; a program that was not started by a Deployment of ours has neither."""
    assert own_pod(environment) == wanted


@in_virtual_time
async def test_the_pod_has_the_mark_while_its_engine_leads() -> None:
    """From when it leads, at once, to its end; before and after it has none."""
    upper = ground(pod("a"), pod("b"))
    async with opened(upper) as mark:
        assert leaders(upper) == []
        mark.lead()
        await asyncio.sleep(0.1)
        assert leaders(upper) == ["a"]
    assert leaders(upper) == []


@in_virtual_time
async def test_a_pod_whose_container_is_started_again_loses_the_mark_that_was_left() -> None:
    """Its engine was killed, and stands by now."""
    upper = ground(pod("a", leads="demo"))
    async with opened(upper):
        assert leaders(upper) == []


@in_virtual_time
async def test_who_leads_takes_the_mark_off_others() -> None:
    """A pod of a machine that is gone keeps its labels for minutes, and the Service would lead there as well."""
    upper = ground(pod("a"), pod("b", leads="demo"))
    async with opened(upper) as mark:
        assert leaders(upper) == ["b"]
        mark.lead()
        await asyncio.sleep(0.1)
        assert leaders(upper) == ["a"]


@in_virtual_time
async def test_who_stands_by_leaves_others_alone() -> None:
    """Also at its end: another one leads by then."""
    upper = ground(pod("a"), pod("b", leads="demo"))
    async with opened(upper):
        await asyncio.sleep(2 * LOOK)
    assert leaders(upper) == ["b"]
    assert upper.writes == []


@in_virtual_time
async def test_other_topologies_have_marks_of_their_own() -> None:
    """Engines of several topologies run in one namespace."""
    upper = ground(pod("a"), pod("b", leads="other"))
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(0.1)
        assert (leaders(upper), leaders(upper, "other")) == (["a"], ["b"])
    assert leaders(upper, "other") == ["b"]


@in_virtual_time
async def test_a_mark_that_somebody_takes_off_comes_back() -> None:
    """At the next look; nothing is written while all is as it should be."""
    upper = ground(pod("a"))
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(10 * LOOK)
        assert len(upper.writes) == 1
        await upper.patch(ref("a"), Patch("merge-patch", {"metadata": {"uid": "uid-a-1", "labels": {LEADS: None}}}))
        await asyncio.sleep(LOOK + 1)
        assert leaders(upper) == ["a"]


@in_virtual_time
async def test_who_may_not_is_told_so_and_asks_again(capsys: pytest.CaptureFixture[str]) -> None:
    """At each look; what is in the way is said once, and with it what is lost."""
    upper = ground(pod("a"))
    async with opened(upper) as mark:
        upper.denied[("patch", "Pod")] = "pods is forbidden"
        mark.lead()
        await asyncio.sleep(20)
        assert leaders(upper) == []
        upper.denied.clear()
        await asyncio.sleep(LOOK)
        assert leaders(upper) == ["a"]
    said = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "Services that select the leader do not reach it" in line
    ]
    assert len(said) == 1
    assert "pods is forbidden" in said[0]


@in_virtual_time
async def test_another_pod_of_that_name_is_not_taken_for_the_one_that_was_read() -> None:
    """The write says which it means, and fails; at the next look it is done for the pod that is there."""
    upper = ground(pod("a"))
    upper.replaced.append("a")
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(0.1)
        assert leaders(upper) == []
        await asyncio.sleep(2)
        assert leaders(upper) == ["a"]


@in_virtual_time
async def test_a_mark_that_was_given_meanwhile_stays() -> None:
    """An engine that was paused between its look and its write leads no more by then, and the other one does."""
    upper = ground(pod("a"), pod("b", leads="demo"))
    upper.touched.append("b")
    mark = LeaderLabel(upper, ref("a"), "demo")
    mark.leads = True
    with pytest.raises(Conflict):
        await mark.settle()
    assert "b" in leaders(upper)


@in_virtual_time
async def test_who_leads_no_more_leaves_the_mark_to_the_one_that_does() -> None:
    """Its engine has to stop at once, so nothing is asked of a cluster that may hang."""
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
async def test_an_end_waits_a_second_at_the_most() -> None:
    """What comes after it returns the lease back, for which there is little time when the cluster hangs."""
    upper = ground(pod("a"))
    async with opened(upper) as mark:
        mark.lead()
        await asyncio.sleep(0.1)
        upper.hangs = True
        begun = clock()
    assert clock() - begun <= PARTING


@in_virtual_time
async def test_without_a_pod_nothing_is_done() -> None:
    """On a machine of its own an engine has none."""
    upper = ground(pod("a"))
    mark = LeaderLabel(upper, None, "demo")
    mark.open()
    mark.lead()
    await mark.settle()
    await asyncio.sleep(2 * LOOK)
    await mark.close()
    assert upper.writes == []
