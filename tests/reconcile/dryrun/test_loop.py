"""The engine's rules at work on rehearsals: they come to rest, and at rest there is nothing to do."""

from collections.abc import Iterable
from functools import partial

from virtualtime import in_virtual_time
from worldkit import NOW, OWNER_HERE, A, config_map, lower_node, put, referring, secret, space, upper_pod, world

from tensile.engine.caches import bound_feed, lower_feeds, rules, upper_feeds
from tensile.errors import ClusterError
from tensile.kube.fleet import InformerSpec
from tensile.objects import CONFIG_MAP, NODE, POD, SECRET, UPPER, Manifest, Ref
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.dryrun.patch import is_selected
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem, World

LEFT = ((POD, "web"), (CONFIG_MAP, "settings"), (SECRET, "password"))


class LoopRecorder:
    """What a loop did: the steps that came through in words, and what it could not do."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.troubles: list[object] = []

    def on_step(self, _key: Key, step: Step, error: ClusterError | None) -> None:
        """Note a step, or its refusal."""
        if error is None:
            self.steps.append(f"{step.verb} {step.ref} {step.subresource}".rstrip())
        else:
            self.troubles.append(error)

    def on_blocked(self, _key: Key, problem: Problem) -> None:
        """Note a problem."""
        self.troubles.append(problem)

    def on_rule_error(self, _key: Key, error: Exception) -> None:
        """Note a defect."""
        self.troubles.append(error)


def bound() -> World:
    """Make a world where one pod that refers to a ConfigMap and a Secret is bound to an empty lower cluster."""
    here = world(f"name: {A}")
    put(here.upper.namespaces, space())
    put(here.upper.config_maps, config_map())
    put(here.upper.secrets, secret())
    put(here.lowers[A].nodes, lower_node())
    put(here.lowers[A].upper_pods, upper_pod(spec=referring(config_maps=["settings"], secrets=["password"])))
    return here


def feeds(here: World) -> Iterable[InformerSpec]:
    """Return everything that the engine follows."""
    lower = here.lowers[A]
    return (
        *upper_feeds(here.upper, OWNER_HERE, here.topology.enabled),
        bound_feed(lower),
        *lower_feeds(lower, OWNER_HERE),
    )


def rehearsals(here: World) -> dict[str, DryRunCluster]:
    """Make clusters that hold what the caches hold, and that the caches follow."""
    clusters = {name: DryRunCluster(name, ends_pods=name != UPPER, now=lambda: NOW) for name in (UPPER, A)}
    for feed in feeds(here):
        for entry in feed.cache:
            if entry.raw:
                clusters[feed.cluster].hold(feed.kind, entry.raw)
        clusters[feed.cluster].follow(feed.kind, feed.cache, partial(is_selected, selection=feed.selection))
    return clusters


async def at_rest(here: World, clusters: dict[str, DryRunCluster]) -> LoopRecorder:
    """Let a new loop work until nothing is to be done soon."""
    heard = LoopRecorder()
    loop = Loop(here, rules(), clusters, heard, Timing(lambda: NOW, lambda: 0.0))
    loop.open(A)
    await loop.wait_idle()
    while loop.expedite(1.0):
        await loop.wait_idle()
    await loop.close(A)
    return heard


@in_virtual_time
async def test_a_bound_pod_gets_everything_below_and_then_there_is_nothing_to_do() -> None:
    """Each thing once, in an order in which a real cluster takes it, and a second loop writes nothing."""
    here = bound()
    clusters = rehearsals(here)
    heard = await at_rest(here, clusters)
    assert heard.troubles == []
    made = [step for step in heard.steps if step.startswith("create")]
    assert made[-1] == f"create {A}: Pod default/web"
    assert sorted(made) == [
        f"create {A}: ConfigMap default/settings",
        f"create {A}: Namespace default",
        f"create {A}: Pod default/web",
        f"create {A}: Secret default/password",
        f"create upper: Node {A}",
    ]
    again = await at_rest(here, clusters)
    assert (again.steps, again.troubles) == ([], [])


@in_virtual_time
async def test_a_pod_deleted_above_takes_everything_along() -> None:
    """The lower pod first, then the upper one and what only it referred to; and then there is nothing to do."""
    here = bound()
    clusters = rehearsals(here)
    await at_rest(here, clusters)
    upper = Ref(UPPER, POD, "default", "web")
    clusters[UPPER].alter(upper, ending)
    heard = await at_rest(here, clusters)
    assert heard.troubles == []
    deleted = [step for step in heard.steps if step.startswith("delete")]
    assert deleted[:2] == [f"delete {A}: Pod default/web", "delete upper: Pod default/web"]
    assert sorted(deleted[2:]) == [f"delete {A}: ConfigMap default/settings", f"delete {A}: Secret default/password"]
    assert clusters[UPPER].find(POD, "default", "web") is None
    assert clusters[UPPER].find(NODE, "", A) is not None
    assert all(clusters[A].find(kind, "default", name) is None for kind, name in LEFT)
    again = await at_rest(here, clusters)
    assert (again.steps, again.troubles) == ([], [])


def ending(pod: Manifest) -> None:
    """Mark a pod as somebody's request to delete it does."""
    pod["metadata"] |= {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}
