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
from scenario_words import place
from stagekit import Stage
from virtualtime import in_virtual_time
from worldkit import A, B

from tensile.objects import CONFIG_MAP, NODE, POD, UPPER, Manifest, Ref, annotations, metadata, uid
from tensile.reconcile.ownership import is_ours, upper_uid_of

NAMES = ("one", "two")
LOWERS = (A, B)
CLUSTERS = (UPPER, *LOWERS)
SETTINGS = Ref(UPPER, CONFIG_MAP, "shop", "settings")


class Act(NamedTuple):
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
    Act,
    some.sampled_from(ACTS),
    some.sampled_from(NAMES),
    some.sampled_from(LOWERS),
    some.integers(0, 3),
    some.booleans(),
)


class Play:
    """A stage on which actions are played, and the engine is observed."""

    def __init__(self) -> None:
        self.stage = Stage(prompt=False)
        self.stage.raise_nodes()
        self.made = 0
        self.foreign: dict[Ref, str] = {}
        self.wrongs: list[str] = []
        place(self.stage, UPPER, {"configMap": "shop/settings", "data": {"mode": "slow"}})
        for name in LOWERS:
            self.stage.clusters[name].watched = self.below
        self.stage.clusters[UPPER].watched = self.above
        self.stage.start()

    # Safety: what must never happen.

    def below(self, verb: str, ref: Ref, body: Manifest) -> None:
        """Record a wrong request to a lower: a second run, the deletion of a live pod, or of a foreign one."""
        if ref in self.foreign and verb == "delete":
            self.wrongs.append(f"{ref} is not ours")
        if ref.kind != POD:
            return
        upper = self.stage.find(Ref(UPPER, POD, ref.namespace, ref.name))
        if verb == "create" and upper and uid(upper) == upper_uid_of_body(body) and has_run(upper):
            self.wrongs.append(f"{ref} runs a second time")
        lower = self.stage.find(ref)
        if verb == "delete" and upper and lower and uid(lower) == uid(body):
            mine = upper_uid_of(lower) == uid(upper) and "deletionTimestamp" not in metadata(upper)
            self.wrongs += [f"{ref} is ended though its upper pod lives"] if mine else []

    def above(self, verb: str, ref: Ref, body: Manifest) -> None:
        """Record the deletion of an upper pod whose lower pod still exists."""
        if verb == "delete" and ref.kind == POD:
            left = [cluster for cluster, lower in self.ours(ref.name) if upper_uid_of(lower) == uid(body)]
            self.wrongs += [f"{ref} goes while it runs in {cluster}" for cluster in left]

    def ours(self, name: str) -> Iterator[tuple[str, Manifest]]:
        """Yield the lower pods of this topology with a name, and their clusters."""
        for cluster in LOWERS:
            lower = self.stage.find(Ref(cluster, POD, "shop", name))
            if lower is not None and is_ours(lower, self.stage.world.owner):
                yield cluster, lower

    # Actions.

    async def happen(self, act: Act) -> None:
        """Play an action, with or without time for the engine between its parts."""
        for what in act.what.split(", "):
            await self.act(act._replace(what=what))
            if act.calm:
                await self.stage.settle()

    async def act(self, act: Act) -> None:
        """Play one part: on the upper pod, its lower pod, a foreign pod in its place, or the environment."""
        above = Ref(UPPER, POD, "shop", act.name)
        upper = self.stage.find(above)
        below = above._replace(cluster=upper["spec"]["nodeName"] if upper else act.lower)
        lower = self.stage.find(below)
        if act.what == "make" and upper is None:
            self.make(act)
        elif upper is not None and act.what in ("delete", "force", "replace", "gc", "relabel"):
            await self.change(above, act)
        elif lower is not None and below not in self.foreign and act.what in ("run", "succeed", "evict"):
            await self.change_below(below, act)
        elif act.what in ("squat", "leave"):
            self.take(below, act, free=lower is None)
        else:
            await self.weather(act)

    async def change(self, above: Ref, act: Act) -> None:
        """Change an upper pod as a user or Kubernetes does."""
        alter = self.stage.clusters[UPPER].alter
        if act.what == "relabel":
            alter(above, lambda pod: pod["metadata"].update(labels={"n": str(act.number)}))
            return
        if act.what == "gc":
            disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
            alter(above, lambda pod: pod["status"].update(conditions=[disrupted]))
        await self.stage.delete(above, (None, 5, 30, 1)[act.number] if act.what == "delete" else 0)
        if act.what == "replace":
            self.make(act)

    async def change_below(self, below: Ref, act: Act) -> None:
        """Write a lower pod's status as its kubelet does, or delete it."""
        if act.what == "evict":
            await self.stage.delete(below, act.number or None)
        else:
            self.say(below, "Running" if act.what == "run" else "Succeeded")

    def take(self, below: Ref, act: Act, *, free: bool) -> None:
        """Create a foreign object of that name, or delete it."""
        if act.what == "squat" and free:
            place(self.stage, below.cluster, {"pod": f"shop/{act.name}", "at": "n1", "forged": act.number == 0})
            self.foreign[below] = version(self.stage.find(below))
        elif act.what == "leave" and below in self.foreign:
            self.stage.clusters[below.cluster].vanish(below)
            del self.foreign[below]

    async def weather(self, act: Act) -> None:
        """Change the state of clusters, connections, or the engine itself."""
        stage, cluster = self.stage, UPPER if "above" in act.what else act.lower
        match act.what.split()[0]:
            case "silence":
                stage.quieten(act.lower, (3.0, 11.0, 41.0, 60.0)[act.number])
            case "answer":
                self.mend(act.lower, UPPER)
            case "fail":
                stage.clusters[cluster].failing = 1 + act.number
            case "late":
                stage.delay(cluster)
            case "hear":
                stage.hear(CLUSTERS[act.number % 3])
            case "restart":
                await stage.restart()
            case _:
                await self.other(act)

    async def other(self, act: Act) -> None:
        """End a kubelet's deletions, deliver a list, toggle the ConfigMap, or let a moment pass."""
        match act.what:
            case "end":
                self.end(act.lower)
            case "relist":
                self.stage.relist(CLUSTERS[act.number % 3])
            case "settings":
                self.toggle()
            case "moment":
                for _ in range(act.number * 3):
                    await asyncio.sleep(0)

    def make(self, act: Act) -> None:
        """Create and bind a pod; every other one refers to a ConfigMap."""
        self.made += 1
        volumes = [{"name": "c", "configMap": {"name": "settings"}}] if act.number % 2 else []
        entry = {"pod": f"shop/{act.name}", "at": act.lower, "meta": {"uid": f"{act.name}-{self.made}"}}
        spec = {"volumes": volumes, "restartPolicy": "Never" if act.number == 2 else "Always"}
        place(self.stage, UPPER, {**entry, "spec": spec})

    def say(self, below: Ref, phase: str) -> None:
        """Write a lower pod's status as its kubelet does, unless the pod has ended."""
        seen = self.stage.find(below)
        assert seen is not None
        if seen["status"]["phase"] != "Succeeded":
            self.stage.clusters[below.cluster].alter(below, lambda pod: pod["status"].update(phase=phase))

    def end(self, lower: str) -> None:
        """Finish the deletion of terminating pods, as kubelets do."""
        for name in NAMES:
            ref = Ref(lower, POD, "shop", name)
            if "deletionTimestamp" in metadata(self.stage.find(ref) or {}):
                self.stage.clusters[lower].vanish(ref)

    def toggle(self) -> None:
        """Delete or create the ConfigMap."""
        if self.stage.find(SETTINGS) is not None:
            self.stage.clusters[UPPER].vanish(SETTINGS)
        else:
            place(self.stage, UPPER, {"configMap": "shop/settings", "data": {"mode": "fast"}})

    def mend(self, *clusters: str) -> None:
        """Make clusters respond again."""
        for cluster in clusters:
            self.stage.clusters[cluster].failing = 0
            self.stage.clusters[cluster].down = False
            if cluster != UPPER:
                self.stage.quieten(cluster, 0)

    # The final state: what must hold in the end.

    async def rest(self) -> None:
        """Let all actors work until no work is left."""
        self.mend(*CLUSTERS)
        for cluster in CLUSTERS:
            self.stage.hear(cluster)
        if self.stage.find(SETTINGS) is None:
            self.toggle()
        for _ in range(4):
            await self.stage.calm(12)
            for lower in LOWERS:
                self.end(lower)
        await self.stage.calm(12)

    def remains(self) -> Iterator[str]:
        """Yield everything that is wrong in the end."""
        yield from self.wrongs
        for ref, before in self.foreign.items():
            if version(self.stage.find(ref)) != before:
                yield f"{ref} was touched"
        for name in NAMES:
            yield from self.remains_of(name)

    def remains_of(self, name: str) -> Iterator[str]:
        """Yield everything that is wrong in the end with the pods of a name."""
        upper = self.stage.find(Ref(UPPER, POD, "shop", name))
        found = [(cluster, upper_uid_of(lower)) for cluster, lower in self.ours(name)]
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
async def play(acts: list[Act], wrongs: list[str], writes: list[tuple[str, Ref]]) -> None:
    """Play all actions, and record what went wrong and what was still written in the end."""
    scene = Play()
    try:
        for act in acts:
            await scene.happen(act)
        await scene.rest()
        wrongs += scene.remains()
        for cluster in scene.stage.clusters.values():
            cluster.writes.clear()
        scene.stage.enqueue_all()
        await scene.stage.calm(60)
        every = [write for cluster in scene.stage.clusters.values() for write in cluster.writes]
        writes += [(verb, ref) for verb, ref in every if ref.kind != NODE]
    finally:
        await scene.stage.stop()


def one(what: str) -> Act:
    """Return an action on pod one in lower-a, with time between its parts."""
    return Act(what, "one", A, 0, calm=True)


@example([one("make, delete, end, late, fail, make, delete")])
@example([one("make, force, end, late, fail, make, delete, restart")])
@example([one("make, late above, replace, run, hear")])
@example([one("make, silence, replace"), Act("hear", "one", B, 0, calm=False)])
@examples(150, derandomize=True, suppress_health_check=list(HealthCheck))
@given(some.lists(anything, max_size=20))
def test_no_order_of_events_harms_a_pod(acts: list[Act]) -> None:
    """No forbidden request is made, the final state is as declared, and the engine then writes no more."""
    wrongs: list[str] = []
    writes: list[tuple[str, Ref]] = []
    play(acts, wrongs, writes)
    assert wrongs == []
    assert writes == []
