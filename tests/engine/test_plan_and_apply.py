"""Tests of the rehearsal of a plan: the whole loop runs in memory on copies, without any write to a cluster."""

import asyncio
from functools import partial
from typing import Any, NamedTuple

import pytest
from openkit import MemoryClusters, mixed_world
from stagekit import RecordingObserver
from worldkit import (
    A,
    B,
    add_namespace,
    add_virtual_node,
    config_map,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
)

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


class OpenClusters(NamedTuple):
    """Open clusters: their world, and their connections."""

    world: World
    connections: dict[str, Cluster]


class ReadOnly:
    """A real lower-a that has only its ServiceAccount and the given objects, and that permits no write."""

    def __init__(self, *found: Ref) -> None:
        self.found = (Ref(A, SERVICE_ACCOUNT, "default", "default"), *found)

    async def read(self, ref: Ref) -> bytes:
        """Return an object of another owner if it exists."""
        if ref not in self.found:
            raise NotFound("nothing there", status=404)
        return b'{"metadata":{"name":"settings","namespace":"default","uid":"theirs","resourceVersion":"9"}}'


async def rehearsed(world: World, **connections: Any) -> tuple[RecordingObserver, dict[str, str]]:
    """Rehearse, and return the script, and the reasons of the problems by the names of their keys."""
    script = RecordingObserver()
    problems = await rehearse(OpenClusters(world, connections), script)
    return script, {key.name: problem.reason for key, problem in problems.items()}


def done(script: RecordingObserver) -> list[str]:
    """Return the steps in lower-a."""
    steps = [record.step for record in script.records if record.step is not None]
    return sorted(f"{step.verb} {step.ref.kind.name} {step.ref.name}" for step in steps if step.ref.cluster == A)


async def test_a_rehearsal_runs_until_no_step_is_left() -> None:
    """Each step affects the next decision: an orphan is first confirmed and then deleted."""
    script, problems = await rehearsed(mixed_world(f"name: {A}", f"name: {B}"), **{A: ReadOnly()})
    assert done(script) == ["create Pod new", "delete Pod orphan"]
    assert problems == {}


async def test_a_pod_that_its_lower_cluster_refused_is_a_problem_of_the_plan() -> None:
    """A dry run sends no request to a lower cluster; a reason that no longer applies is not a problem."""
    world = mixed_world()
    for name, reason in (("new", "Forbidden"), ("free", "ConfigMapNotFound")):
        condition = {"type": MIRRORED, "status": "False", "reason": reason, "message": "exceeded quota"}
        put(world.lowers[A].upper_pods, make_upper_pod(name, status={"conditions": [condition]}, resourceVersion="9"))
    found = MemoryClusters(world)
    recorder = Recorder()
    work = partial(rehearse, observer=recorder)
    preview = (await previewed(found, {}, recorder, work)).preview  # type: ignore[arg-type]
    assert {change.ref.name for change in preview.clusters[A]} == {"new", "free", "orphan"}
    message = "lower cluster lower-a refused the last attempt: exceeded quota"
    assert preview.problems == ((pod_key(A, "default", "new"), Problem("Denied", message)),)


async def test_a_rehearsal_does_not_change_the_given_world() -> None:
    """It works on a copy."""
    world = mixed_world(f"name: {A}", f"name: {B}")
    before = [sorted((entry.name, entry.version) for entry in cache) for cache in world.lowers[A].caches()]
    await rehearsed(world)
    assert before == [sorted((entry.name, entry.version) for entry in cache) for cache in world.lowers[A].caches()]
    assert len(world.lowers[A].pods) == 2


@pytest.mark.parametrize("taken", [True, False])
async def test_objects_that_are_not_watched_are_read_from_the_real_cluster(*, taken: bool) -> None:
    """A conflicting ConfigMap of another owner is thus reported before any write."""
    world = mixed_world(f"name: {A}", f"name: {B}")
    volumes = [{"name": "c", "configMap": {"name": "settings"}}]
    put(world.lowers[A].upper_pods, make_upper_pod("reader", spec={"volumes": volumes}))
    put(world.upper.config_maps, config_map("settings"))
    put(world.lowers[A].accounts, make_service_account())
    below = ReadOnly(*([Ref(A, CONFIG_MAP, "default", "settings")] if taken else []))
    script, problems = await rehearsed(world, **{A: below})
    assert ("create Pod reader" in done(script)) is not taken
    assert problems == ({"ConfigMap/settings": "NameConflict", "reader": "NameConflict"} if taken else {})


async def test_a_settled_world_has_no_steps() -> None:
    """A rehearsal of a world that needs no change finds neither steps nor problems."""
    world = make_world()
    add_namespace(world)
    add_virtual_node(world)
    script, problems = await rehearsed(world)
    assert (done(script), problems) == ([], {})


async def test_a_slow_pace_gives_other_tasks_more_turns() -> None:
    """A plan of fifty pods uses few turns of the event loop as a command, and many beside an engine."""
    world = mixed_world(f"name: {A}", f"name: {B}")
    put(world.lowers[A].upper_pods, *(make_upper_pod(f"web-{number}") for number in range(50)))
    below: Any = ReadOnly()

    async def turns(pace: Pace) -> int:
        """Return the number of turns that other tasks get."""
        count = 0
        plan = asyncio.ensure_future(rehearse(OpenClusters(world, {A: below}), RecordingObserver(), pace=pace))
        while not plan.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert await turns(Pace(turn=1, limit=1)) > 50 > await turns(FULL_PACE)


async def test_a_canceled_rehearsal_leaves_no_task() -> None:
    """A plan beside an engine has a time limit, and ends with the engine."""
    world = mixed_world(f"name: {A}", f"name: {B}")
    others = asyncio.all_tasks()
    below: Any = Hanging()
    rehearsal = asyncio.ensure_future(rehearse(OpenClusters(world, {A: below}), RecordingObserver()))
    await below.asked.wait()
    await cancel_and_wait(rehearsal)
    assert asyncio.all_tasks() == others


class Hanging:
    """A real lower-a that does not respond."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def read(self, _ref: Ref) -> bytes:
        """Wait indefinitely."""
        self.asked.set()
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return await never
