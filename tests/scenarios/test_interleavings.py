"""Tests of random orders of events: no pod is lost, run twice or removed while it runs, and no foreign pod is changed.

Users, kubelets, other clients, networks and crashes act at random between actions of the engine, on clusters so small
that names collide. Safety is checked at each request of the engine; the final state is checked after all actors have
finished their work.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import HealthCheck, example, given
from hypothesis import strategies as some
from properties import examples
from scenariokit import put_object
from stagekit import EngineSimulation
from virtualtime import in_virtual_time
from worldkit import A, B

from tensile.objects import CONFIG_MAP, NODE, POD, UPPER, Manifest, Ref, annotations, metadata, uid
from tensile.reconcile.ownership import is_ours, upper_uid_of

NAMES = ("one", "two")
LOWERS = (A, B)
CLUSTERS = (UPPER, *LOWERS)
SETTINGS = Ref(UPPER, CONFIG_MAP, "shop", "settings")


class ActorAction(NamedTuple):
    """An action of an actor, which has no effect if it does not apply at that moment.

    `calm`: the engine gets the time to finish its work after each part of the action.
    """

    what: str
    name: str
    lower: str
    number: int
    calm: bool


ACTS = (
    "make", "make, run", "make, run, evict, end", "run", "run, succeed", "delete", "delete, end", "force", "replace",
    "gc", "evict, end", "squat", "leave", "relabel", "silence", "silence, delete, answer", "silence, replace", "answer",
    "late, fail, make, delete", "late, fail, replace, delete, answer", "late above, replace", "late above, gc", "hear",
    "fail", "fail above", "late", "restart", "fail, restart", "relist", "settings", "moment",
)  # fmt: skip
"""Sequences of actions on one pod, or in one cluster."""

anything = some.builds(
    ActorAction,
    some.sampled_from(ACTS),
    some.sampled_from(NAMES),
    some.sampled_from(LOWERS),
    some.integers(0, 3),
    some.booleans(),
)


class InterleavingHarness:
    """A simulation in which actions are played, and the engine is observed."""

    def __init__(self) -> None:
        self.simulation = EngineSimulation(prompt=False)
        self.simulation.create_nodes()
        self.made = 0
        self.foreign: dict[Ref, str] = {}
        self.violations: list[str] = []
        put_object(self.simulation, UPPER, {"configMap": "shop/settings", "data": {"mode": "slow"}})
        for name in LOWERS:
            self.simulation.clusters[name].on_write = self.lower_pods
        self.simulation.clusters[UPPER].on_write = self.upper_pods
        self.simulation.start()

    # Safety: what must never happen.

    def lower_pods(self, verb: str, ref: Ref, body: Manifest) -> None:
        """Record a wrong request to a lower: a second run, the deletion of a live pod, or of a foreign one."""
        if ref in self.foreign and verb == "delete":
            self.violations.append(f"{ref} is not ours")
        if ref.kind != POD:
            return
        upper = self.simulation.find(Ref(UPPER, POD, ref.namespace, ref.name))
        if verb == "create" and upper and uid(upper) == upper_uid_of_body(body) and has_run(upper):
            self.violations.append(f"{ref} runs a second time")
        lower = self.simulation.find(ref)
        if verb == "delete" and upper and lower and uid(lower) == uid(body):
            mine = upper_uid_of(lower) == uid(upper) and "deletionTimestamp" not in metadata(upper)
            self.violations += [f"{ref} is ended though its upper pod lives"] if mine else []

    def upper_pods(self, verb: str, ref: Ref, body: Manifest) -> None:
        """Record the deletion of an upper pod whose lower pod still exists."""
        if verb == "delete" and ref.kind == POD:
            left = [cluster for cluster, lower in self.own_objects(ref.name) if upper_uid_of(lower) == uid(body)]
            self.violations += [f"{ref} goes while it runs in {cluster}" for cluster in left]

    def own_objects(self, name: str) -> Iterator[tuple[str, Manifest]]:
        """Yield the lower pods of this topology with a name, and their clusters."""
        for cluster in LOWERS:
            lower = self.simulation.find(Ref(cluster, POD, "shop", name))
            if lower is not None and is_ours(lower, self.simulation.world.owner):
                yield cluster, lower

    # Actions.

    async def run_action(self, act: ActorAction) -> None:
        """Play an action, with or without time for the engine between its parts."""
        for what in act.what.split(", "):
            await self.act(act._replace(what=what))
            if act.calm:
                await self.simulation.wait_idle()

    async def act(self, act: ActorAction) -> None:
        """Play one part: on the upper pod, its lower pod, a foreign pod in its place, or the environment."""
        upper_ref = Ref(UPPER, POD, "shop", act.name)
        upper = self.simulation.find(upper_ref)
        lower_ref = upper_ref._replace(cluster=upper["spec"]["nodeName"] if upper else act.lower)
        lower = self.simulation.find(lower_ref)
        if act.what == "make" and upper is None:
            self.make(act)
        elif upper is not None and act.what in ("delete", "force", "replace", "gc", "relabel"):
            await self.change(upper_ref, act)
        elif lower is not None and lower_ref not in self.foreign and act.what in ("run", "succeed", "evict"):
            await self.change_below(lower_ref, act)
        elif act.what in ("squat", "leave"):
            self.take(lower_ref, act, free=lower is None)
        else:
            await self.weather(act)

    async def change(self, upper_ref: Ref, act: ActorAction) -> None:
        """Change an upper pod as a user or Kubernetes does."""
        alter = self.simulation.clusters[UPPER].alter
        if act.what == "relabel":
            alter(upper_ref, lambda pod: pod["metadata"].update(labels={"n": str(act.number)}))
            return
        if act.what == "gc":
            disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
            alter(upper_ref, lambda pod: pod["status"].update(conditions=[disrupted]))
        await self.simulation.delete(upper_ref, (None, 5, 30, 1)[act.number] if act.what == "delete" else 0)
        if act.what == "replace":
            self.make(act)

    async def change_below(self, lower_ref: Ref, act: ActorAction) -> None:
        """Write a lower pod's status as its kubelet does, or delete it."""
        if act.what == "evict":
            await self.simulation.delete(lower_ref, act.number or None)
        else:
            self.say(lower_ref, "Running" if act.what == "run" else "Succeeded")

    def take(self, lower_ref: Ref, act: ActorAction, *, free: bool) -> None:
        """Create a foreign object of that name, or delete it."""
        if act.what == "squat" and free:
            put_object(
                self.simulation, lower_ref.cluster, {"pod": f"shop/{act.name}", "at": "n1", "forged": act.number == 0}
            )
            self.foreign[lower_ref] = version(self.simulation.find(lower_ref))
        elif act.what == "leave" and lower_ref in self.foreign:
            self.simulation.clusters[lower_ref.cluster].vanish(lower_ref)
            del self.foreign[lower_ref]

    async def weather(self, act: ActorAction) -> None:
        """Change the state of clusters, connections, or the engine itself."""
        simulation, cluster = self.simulation, UPPER if "above" in act.what else act.lower
        match act.what.split()[0]:
            case "silence":
                simulation.set_unreachable(act.lower, (3.0, 11.0, 41.0, 60.0)[act.number])
            case "answer":
                self.mend(act.lower, UPPER)
            case "fail":
                simulation.clusters[cluster].failing = 1 + act.number
            case "late":
                simulation.hold_events(cluster)
            case "hear":
                simulation.deliver_events(CLUSTERS[act.number % 3])
            case "restart":
                await simulation.restart()
            case _:
                await self.other(act)

    async def other(self, act: ActorAction) -> None:
        """End a kubelet's deletions, deliver a list, toggle the ConfigMap, or let a moment pass."""
        match act.what:
            case "end":
                self.end(act.lower)
            case "relist":
                self.simulation.relist(CLUSTERS[act.number % 3])
            case "settings":
                self.toggle()
            case "moment":
                for _ in range(act.number * 3):
                    await asyncio.sleep(0)

    def make(self, act: ActorAction) -> None:
        """Create and bind a pod; every other one refers to a ConfigMap."""
        self.made += 1
        volumes = [{"name": "c", "configMap": {"name": "settings"}}] if act.number % 2 else []
        entry = {"pod": f"shop/{act.name}", "at": act.lower, "meta": {"uid": f"{act.name}-{self.made}"}}
        spec = {"volumes": volumes, "restartPolicy": "Never" if act.number == 2 else "Always"}
        put_object(self.simulation, UPPER, {**entry, "spec": spec})

    def say(self, lower_ref: Ref, phase: str) -> None:
        """Write a lower pod's status as its kubelet does, unless the pod has ended."""
        seen = self.simulation.find(lower_ref)
        assert seen is not None
        if seen["status"]["phase"] != "Succeeded":
            self.simulation.clusters[lower_ref.cluster].alter(lower_ref, lambda pod: pod["status"].update(phase=phase))

    def end(self, lower: str) -> None:
        """Finish the deletion of terminating pods, as kubelets do."""
        for name in NAMES:
            ref = Ref(lower, POD, "shop", name)
            if "deletionTimestamp" in metadata(self.simulation.find(ref) or {}):
                self.simulation.clusters[lower].vanish(ref)

    def toggle(self) -> None:
        """Delete or create the ConfigMap."""
        if self.simulation.find(SETTINGS) is not None:
            self.simulation.clusters[UPPER].vanish(SETTINGS)
        else:
            put_object(self.simulation, UPPER, {"configMap": "shop/settings", "data": {"mode": "fast"}})

    def mend(self, *clusters: str) -> None:
        """Make clusters respond again."""
        for cluster in clusters:
            self.simulation.clusters[cluster].failing = 0
            self.simulation.clusters[cluster].is_down = False
            if cluster != UPPER:
                self.simulation.set_unreachable(cluster, 0)

    # The final state: what must hold in the end.

    async def rest(self) -> None:
        """Let all actors work until no work is left."""
        self.mend(*CLUSTERS)
        for cluster in CLUSTERS:
            self.simulation.deliver_events(cluster)
        if self.simulation.find(SETTINGS) is None:
            self.toggle()
        for _ in range(4):
            await self.simulation.advance(12)
            for lower in LOWERS:
                self.end(lower)
        await self.simulation.advance(12)

    def remains(self) -> Iterator[str]:
        """Yield everything that is wrong in the end."""
        yield from self.violations
        for ref, before in self.foreign.items():
            if version(self.simulation.find(ref)) != before:
                yield f"{ref} was touched"
        for name in NAMES:
            yield from self.remains_of(name)

    def remains_of(self, name: str) -> Iterator[str]:
        """Yield everything that is wrong in the end with the pods of a name."""
        upper = self.simulation.find(Ref(UPPER, POD, "shop", name))
        found = [(cluster, upper_uid_of(lower)) for cluster, lower in self.own_objects(name)]
        if upper is None:
            yield from [f"{name} is left in {found}"] if found else []
            return
        if "deletionTimestamp" in metadata(upper):
            yield f"{name} never goes"
        lower = upper["spec"]["nodeName"]
        reason = upper["status"].get("reason")
        ended = upper["status"]["phase"] in ("Failed", "Succeeded")
        excused = ended or (reason and Ref(lower, POD, "shop", name) in self.foreign)
        if found != [(lower, uid(upper))] and (found or not excused):
            yield f"{name} is {reason or upper['status']['phase']} in {lower}, and runs in {found}"


def version(manifest: Manifest | None) -> str:
    """Return an object's resourceVersion, or "" if there is none."""
    return str(metadata(manifest or {}).get("resourceVersion", ""))


def upper_uid_of_body(body: Manifest) -> str:
    """Return the UID of the upper pod for which a new lower pod is created."""
    return annotations(body)["tensile-kube.io/upper-uid"]


def has_run(upper: Manifest) -> bool:
    """Report whether the status of an upper pod shows that it has run."""
    return upper["status"]["phase"] != "Pending"


@in_virtual_time
async def play(acts: list[ActorAction], wrongs: list[str], writes: list[tuple[str, Ref]]) -> None:
    """Play all actions, and record what went wrong and what was still written in the end."""
    harness = InterleavingHarness()
    try:
        for act in acts:
            await harness.run_action(act)
        await harness.rest()
        wrongs += harness.remains()
        for cluster in harness.simulation.clusters.values():
            cluster.writes.clear()
        harness.simulation.enqueue_all()
        await harness.simulation.advance(60)
        every = [write for cluster in harness.simulation.clusters.values() for write in cluster.writes]
        writes += [(verb, ref) for verb, ref in every if ref.kind != NODE]
    finally:
        await harness.simulation.stop()


def one(what: str) -> ActorAction:
    """Return an action on pod one in lower-a, with time between its parts."""
    return ActorAction(what, "one", A, 0, calm=True)


@example([one("make, delete, end, late, fail, make, delete")])
@example([one("make, force, end, late, fail, make, delete, restart")])
@example([one("make, late above, replace, run, hear")])
@example([one("make, silence, replace"), ActorAction("hear", "one", B, 0, calm=False)])
@examples(150, derandomize=True, suppress_health_check=list(HealthCheck))
@given(some.lists(anything, max_size=20))
def test_no_order_of_events_harms_a_pod(acts: list[ActorAction]) -> None:
    """No forbidden request is made, the final state is as declared, and the engine then writes no more."""
    wrongs: list[str] = []
    writes: list[tuple[str, Ref]] = []
    play(acts, wrongs, writes)
    assert wrongs == []
    assert writes == []
