"""What would be done is found out in memory: by the whole loop, on copies, without a request to any cluster."""

import asyncio
from functools import partial
from typing import Any, NamedTuple

import pytest
from openkit import MemoryClusters, busy_world
from stagekit import Script
from worldkit import A, B, account, config_map, home, put, raised, upper_pod, world

from tensile.engine.plan_and_apply import previewed, rehearse
from tensile.errors import NotFound
from tensile.kube.cluster import Cluster
from tensile.kube.net import cancel_and_wait
from tensile.kubelet.pods.rule import key_of as pod_key
from tensile.names import MIRRORED
from tensile.objects import CONFIG_MAP, SERVICE_ACCOUNT, Ref
from tensile.reconcile.report import Recorder
from tensile.reconcile.workqueue import FULL_PACE, Pace
from tensile.reconcile.world import Problem, World


class Standing(NamedTuple):
    """Clusters that are open: what is known of them, and the connections."""

    world: World
    connections: dict[str, Cluster]


class ReadOnly:
    """A real lower-a that has nothing but its account and an object or two, and that nobody may write to."""

    def __init__(self, *found: Ref) -> None:
        self.found = (Ref(A, SERVICE_ACCOUNT, "default", "default"), *found)

    async def read(self, ref: Ref) -> bytes:
        """Return a stranger's object of that name, if there is one."""
        if ref not in self.found:
            raise NotFound("nothing there", status=404)
        return b'{"metadata":{"name":"settings","namespace":"default","uid":"theirs","resourceVersion":"9"}}'


async def rehearsed(here: World, **connections: Any) -> tuple[Script, dict[str, str]]:
    """Rehearse, and give what was done and the reasons of the problems by the keys' names."""
    script = Script()
    problems = await rehearse(Standing(here, connections), script)
    return script, {key.name: problem.reason for key, problem in problems.items()}


def done(script: Script) -> list[str]:
    """Return what was done to clusters below."""
    steps = [said.step for said in script.lines if said.step is not None]
    return sorted(f"{step.verb} {step.ref.kind.name} {step.ref.name}" for step in steps if step.ref.cluster == A)


async def test_the_whole_way_is_gone() -> None:
    """A step shows what the next decision makes of it: what is confirmed first is then deleted."""
    script, problems = await rehearsed(busy_world(f"name: {A}", f"name: {B}"), **{A: ReadOnly()})
    assert done(script) == ["create Pod new", "delete Pod orphan"]
    assert problems == {}


async def test_a_pod_that_its_lower_cluster_refused_is_a_problem_of_the_plan() -> None:
    """A dry run does not ask a lower cluster; what held a pod back before and does not now is no problem any more."""
    here = busy_world()
    for name, reason in (("new", "Forbidden"), ("free", "ConfigMapNotFound")):
        told = {"type": MIRRORED, "status": "False", "reason": reason, "message": "exceeded quota"}
        put(here.lowers[A].upper_pods, upper_pod(name, status={"conditions": [told]}, resourceVersion="9"))
    found = MemoryClusters(here)
    recorder = Recorder()
    work = partial(rehearse, observer=recorder)
    preview = (await previewed(found, {}, recorder, work)).preview  # type: ignore[arg-type]
    assert {change.ref.name for change in preview.clusters[A]} == {"new", "free", "orphan"}
    words = "lower cluster lower-a refused the last attempt: exceeded quota"
    assert preview.problems == ((pod_key(A, "default", "new"), Problem("Denied", words)),)


async def test_what_is_known_stays_as_it_was() -> None:
    """The world that was rehearsed on is a copy."""
    here = busy_world(f"name: {A}", f"name: {B}")
    before = [sorted((entry.name, entry.version) for entry in cache) for cache in here.lowers[A].caches()]
    await rehearsed(here)
    assert before == [sorted((entry.name, entry.version) for entry in cache) for cache in here.lowers[A].caches()]
    assert len(here.lowers[A].pods) == 2


@pytest.mark.parametrize("taken", [True, False])
async def test_the_real_clusters_are_read_for_what_is_not_followed(*, taken: bool) -> None:
    """A stranger's ConfigMap in the way shows before anything is tried."""
    here = busy_world(f"name: {A}", f"name: {B}")
    volumes = [{"name": "c", "configMap": {"name": "settings"}}]
    put(here.lowers[A].upper_pods, upper_pod("reader", spec={"volumes": volumes}))
    put(here.upper.config_maps, config_map("settings"))
    put(here.lowers[A].accounts, account())
    below = ReadOnly(*([Ref(A, CONFIG_MAP, "default", "settings")] if taken else []))
    script, problems = await rehearsed(here, **{A: below})
    assert ("create Pod reader" in done(script)) is not taken
    assert problems == ({"ConfigMap/settings": "NameConflict", "reader": "NameConflict"} if taken else {})


async def test_a_world_at_rest_has_nothing_to_rehearse() -> None:
    """Rehearsed a second time on what the first one led to, the loop asks for nothing."""
    here = world()
    home(here)
    raised(here)
    script, problems = await rehearsed(here)
    assert (done(script), problems) == ([], {})


async def test_others_run_while_a_plan_is_made_at_a_slow_pace() -> None:
    """A plan of fifty pods takes few turns of the event loop as a command, and many beside an engine."""
    here = busy_world(f"name: {A}", f"name: {B}")
    put(here.lowers[A].upper_pods, *(upper_pod(f"web-{number}") for number in range(50)))
    below: Any = ReadOnly()

    async def turns(pace: Pace) -> int:
        """Count the turns that others get."""
        count = 0
        plan = asyncio.ensure_future(rehearse(Standing(here, {A: below}), Script(), pace=pace))
        while not plan.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert await turns(Pace(turn=1, limit=1)) > 50 > await turns(FULL_PACE)


async def test_a_rehearsal_that_is_given_up_leaves_no_task() -> None:
    """A plan beside an engine has a limit, and ends with the engine."""
    here = busy_world(f"name: {A}", f"name: {B}")
    others = asyncio.all_tasks()
    below: Any = Hanging()
    rehearsal = asyncio.ensure_future(rehearse(Standing(here, {A: below}), Script()))
    await below.asked.wait()
    await cancel_and_wait(rehearsal)
    assert asyncio.all_tasks() == others


class Hanging:
    """A real lower-a that does not answer when it is asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def read(self, _ref: Ref) -> bytes:
        """Wait without end."""
        self.asked.set()
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return await never
