"""Pods that asked for a virtual node and wait for one: what the webhook missed is added, or said."""

from typing import Any

import pytest
from worldkit import A, B, Manifest, decided, drop, lower_node, names, put, raised, reload, stored, thing, world

from tensile.kubelet.pods.unbound import UnboundPodRule, key_of
from tensile.objects import metadata
from tensile.reconcile.desired import Patched
from tensile.reconcile.world import World

RULE = UnboundPodRule()
PROVIDER = {"key": "virtual-kubelet.io/provider", "operator": "Equal", "value": "k8s", "effect": "NoSchedule"}
LAPSES = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
    for name in ("not-ready", "unreachable")
]
STUCK = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
PREPARED = {"tolerations": [*LAPSES, PROVIDER]}


def waiting(spec: Manifest | None = None, name: str = "web", **meta: Any) -> Manifest:
    """Make a pod that asked for a virtual node, and for which the scheduler has found none."""
    made = thing("Pod", name, meta.pop("namespace", "default"), labels={"virtual-pod": "true"}, **meta)
    spec = {"containers": [{"name": "main", "image": "app:1"}], **(spec or {})}
    return {**made, "spec": spec, "status": {"phase": "Pending", "conditions": [STUCK]}}


def ready(*lowers: str, more: str = "") -> World:
    """Make a world whose virtual nodes are there."""
    made = world(*lowers, more=more)
    for name, lower in made.lowers.items():
        put(lower.nodes, lower_node())
        raised(made, name)
    return made


def wanted(of: World, pod: Manifest) -> list[Any]:
    """Let the watch tell of a pod, and ask the rule."""
    entry = put(of.upper.waiting, pod)
    decision, _ = decided(RULE, key_of(A, entry), of)
    return list(decision.wanted)


def test_what_a_pod_lacks_of_tolerations_is_added() -> None:
    """Those of the virtual nodes' taints, and those for an engine that is down; limits of admission are taken off."""
    own = {"key": "gpu", "operator": "Exists"}
    given = waiting({"tolerations": [own, {**LAPSES[0], "tolerationSeconds": 300}]})
    (found,) = wanted(ready(), given)
    assert isinstance(found, Patched)
    assert found.patch.body["spec"] == {"tolerations": [own, LAPSES[0], LAPSES[1], PROVIDER]}
    assert found.in_plan


def test_nobody_else_is_written_over() -> None:
    """The write holds only for this very pod as it was seen: it may be bound, or changed, in the meantime."""
    here = ready()
    (found,) = wanted(here, waiting())
    (entry,) = here.upper.waiting
    assert found.patch.body["metadata"] == {"uid": entry.uid, "resourceVersion": str(entry.version)}


def test_nothing_is_said_before_there_is_a_virtual_node() -> None:
    """The engine has just begun: what no node has now, the first one may have."""
    here = world()
    assert wanted(here, waiting({**PREPARED, "nodeSelector": {"tier": "gold"}})) == []


def test_a_pod_that_is_gone_is_nobodys_business() -> None:
    """Bound, or deleted: it left the list of those that wait."""
    here = ready()
    key = key_of(A, put(here.upper.waiting, waiting()))
    drop(here.upper.waiting, "web")
    assert RULE.decide(key, here).wanted == ()


def test_each_pod_is_looked_at_once() -> None:
    """In the queue of the topology's first lower, which may be another one after a reload."""
    here = ready()
    put(here.upper.waiting, waiting(), waiting(name="other"))
    assert [*names(RULE.keys(here, A))] == ["default/other", "default/web"]
    assert [*RULE.keys(here, B)] == []
    reload(here, f"name: {B}")
    assert [*names(RULE.keys(here, B))] == ["default/other", "default/web"]
    assert [*RULE.keys(here, A)] == []


def test_a_pod_is_looked_at_when_it_changes_and_when_a_node_comes() -> None:
    """What no virtual node had, a new one may have; a heartbeat of one that is there is no news."""
    here = ready()
    heard: list[tuple[str, str]] = []
    for route in RULE.watches():
        cache = getattr(here.upper, route.cache.removeprefix("upper."))
        cache.subscribe(
            lambda delta, route=route: heard.extend((route.cache, k.name) for k in route.keys(here, A, delta))
        )
    put(here.upper.waiting, waiting())
    node = put(here.upper.nodes, here.upper.nodes.get("", A).manifest())  # type: ignore[union-attr]
    assert heard == [("upper.waiting", "web")]
    put(here.upper.nodes, {**node.manifest(), "metadata": {**metadata(node.manifest()), "name": "new"}})
    assert heard[1:] == [("upper.nodes", "web")]
    drop(here.upper.waiting, "web")
    assert len(heard) == 2


def test_the_answer_to_the_write_is_kept_with_the_pods_that_wait() -> None:
    """Not with those that are bound to the first lower's node: it would be made there."""
    here = ready()
    key = key_of(A, put(here.upper.waiting, waiting()))
    cache = here.cache("", UnboundPodRule().decide(key, here).wanted[0].ref.kind, key.lower, key.rule)  # type: ignore[union-attr]
    assert cache is here.upper.waiting
    cache.apply_response(stored(waiting(PREPARED), cache.version + 1))
    assert RULE.decide(key, here).wanted == ()
    assert len(here.lowers[A].upper_pods) == 0


@pytest.mark.parametrize(("enabled", "advice"), [("true", "run `tensile doctor`, which "), ("false", "set webhook.")])
def test_a_pod_that_the_webhook_missed_is_told_what_to_do(enabled: str, advice: str) -> None:
    """That depends on whether the topology enables it already."""
    here = ready(more=f"webhook: {{enabled: {enabled}}}\n")
    (told,) = wanted(here, waiting(PREPARED | {"nodeSelector": {"gpu": "a100"}}))
    assert told.message.partition("clusterSelector: ")[2].startswith(advice)
