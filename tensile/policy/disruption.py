"""What a plan costs running pods: pods that restart, move or end, their budgets, claims, endpoints and streams.

A plan lists objects; a person wants to know who will notice. The answer is a plain function over the planned changes
and the state before them. Only pods count that have run and have not ended: the rest has nothing to lose.

Pods that a user has deleted already are no cost of the plan, so they are left out.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tensile.kube.store import Entry
from tensile.kubelet.node.status import noted_port
from tensile.names import NOWHERE
from tensile.objects import (
    CLAIM,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    NODE,
    POD,
    SERVICE,
    UPPER,
    Manifest,
    Ref,
    labels,
    metadata,
    tolerates,
)
from tensile.policy.descheduler.moves import departures
from tensile.policy.placement.selectors import label_test
from tensile.policy.placement.snapshot import is_known
from tensile.reconcile.desired import PodMove
from tensile.reconcile.report import Change
from tensile.reconcile.world import LowerWorld, World
from tensile.text import counted, harmless, listed

_MAX_NAMED = 5
_INDENT = "  "
_IMAGE = "image"
_NO_EXECUTE = "NoExecute"


class DisruptedPod(NamedTuple):
    """One upper pod, its virtual node, and where it goes: the nodes with room for it, () if none is known."""

    namespace: str
    name: str
    node: str
    targets: tuple[str, ...] = ()


class TouchedBudget(NamedTuple):
    """A PodDisruptionBudget: how many of its pods are evicted, and how many it allows to be disrupted now."""

    namespace: str
    name: str
    pods: int
    allowed: int


class LostEndpoints(NamedTuple):
    """A Service that loses ready endpoints, until other pods take over: how many, and out of how many."""

    namespace: str
    name: str
    lost: int
    ready: int


class LostObject(NamedTuple):
    """A claim or a Service that is deleted in a lower cluster."""

    lower: str
    namespace: str
    name: str


class CutStreams(NamedTuple):
    """A virtual node whose open logs, exec and port-forward end, with the number of its running pods."""

    node: str
    pods: int
    why: str


class Disruption(NamedTuple):
    """What a plan costs running pods. Upper names, in order.

    `moved` are evicted and come back elsewhere, `stranded` are evicted and fit nowhere, `evicted` are those of which
    it is unknown where they fit. `ended` have no upper pod any more, or are taken away otherwise, also by Kubernetes
    for a NoExecute taint. `unknown_budgets` is
    why budgets could not be read, "" if they were or no pod is evicted.
    """

    restarted: tuple[DisruptedPod, ...] = ()
    moved: tuple[DisruptedPod, ...] = ()
    stranded: tuple[DisruptedPod, ...] = ()
    evicted: tuple[DisruptedPod, ...] = ()
    ended: tuple[DisruptedPod, ...] = ()
    budgets: tuple[TouchedBudget, ...] = ()
    unknown_budgets: str = ""
    claims: tuple[LostObject, ...] = ()
    services: tuple[LostObject, ...] = ()
    endpoints: tuple[LostEndpoints, ...] = ()
    streams: tuple[CutStreams, ...] = ()

    @property
    def pods(self) -> frozenset[tuple[str, str, str]]:
        """The pods that restart, move or end: node, namespace and name of each."""
        found = (*self.restarted, *self.moved, *self.stranded, *self.evicted, *self.ended)
        return frozenset((pod.node, pod.namespace, pod.name) for pod in found)


def planned_moves(world: World) -> Iterator[tuple[Ref, PodMove | None]]:
    """Yield where each pod of drained lowers would go, None for a pod that fits nowhere.

    Nothing unless the real nodes of all lowers are known: only then is it certain. A pod may take a millisecond, so a
    caller on an event loop can pause.
    """
    lowers = [world.lowers.get(spec.name) for spec in world.topology.lowers]
    if not world.topology.places or not all(lower is not None and is_known(lower) for lower in lowers):
        return
    for lower in [one for one in world.lowers.values() if one.drain_requested]:
        for pod in departures(world, lower.name):
            targets = (pod.target, *pod.others) if pod.target else ()
            if targets or pod.is_lost:
                move = PodMove(lower.node, targets, pod.node) if targets else None
                yield Ref(UPPER, POD, pod.namespace, pod.name), move


def leaving(changes: Iterable[Change], world: World) -> list[Ref]:
    """Return the running upper pods that a plan evicts."""
    deleted = (one.ref for one in changes if one.ref.kind == POD and one.ref.cluster == UPPER and _deletes(one))
    return [ref for ref in deleted if _running_upper_pod(ref, world)]


def disruption(
    changes: Iterable[Change],
    world: World,
    moves: Mapping[Ref, PodMove | None],
    budgets: Iterable[Manifest] = (),
    unknown_budgets: str = "",
) -> Disruption:
    """Return what planned changes cost the pods of a world, which is the state before them.

    `moves` is from `planned_moves`, `budgets` the PodDisruptionBudgets of the upper cluster.
    """
    planned = tuple(changes)
    evicted_pods = {ref: _pod(ref, world) for ref in leaving(planned, world)}
    known_moves = {one.ref: one.moving for one in planned if one.moving} | dict(moves)
    moved = [
        pod._replace(targets=move.targets)
        for ref, pod in evicted_pods.items()
        if (move := known_moves.get(ref)) is not None
    ]
    stranded = [pod for ref, pod in evicted_pods.items() if ref in known_moves and known_moves[ref] is None]
    evicted = [pod for ref, pod in evicted_pods.items() if ref not in known_moves]
    tainted = {ref: pod for ref, pod in _evicted_by_taints(planned, world) if ref not in evicted_pods}
    lower_changes = [*_from_lower_changes(planned, world, evicted_pods.keys() | tainted.keys())]
    restarted = [pod for pod, comes_back in lower_changes if comes_back]
    ended = [*tainted.values(), *(pod for pod, comes_back in lower_changes if not comes_back)]
    lost_pods = {(pod.namespace, pod.name) for pod in (*evicted_pods.values(), *restarted, *ended)}
    return Disruption(
        restarted=tuple(sorted(restarted)),
        moved=tuple(sorted(moved)),
        stranded=tuple(sorted(stranded)),
        evicted=tuple(sorted(evicted)),
        ended=tuple(sorted(ended)),
        budgets=tuple(_covering_budgets(evicted_pods, world, budgets)),
        unknown_budgets=unknown_budgets if evicted_pods else "",
        claims=tuple(_lost_objects(planned, CLAIM.name, world)),
        services=tuple(_lost_objects(planned, SERVICE.name, world)),
        endpoints=tuple(_lost_endpoints(lost_pods, world)),
        streams=tuple(_cut_streams(planned, world)),
    )


def _deletes(change: Change) -> bool:
    return change.action in ("delete", "replace")


def _running_upper_pod(ref: Ref, world: World) -> tuple[LowerWorld, Entry] | None:
    """Return an upper pod that has run and not ended, with its lower, None for another."""
    for lower in world.lowers.values():
        entry = lower.upper_pods.get(ref.namespace, ref.name)
        if entry is not None:
            is_running = entry.facts.ran and not entry.facts.terminal and not entry.facts.terminating
            return (lower, entry) if is_running else None
    return None


def _pod(ref: Ref, world: World) -> DisruptedPod:
    found = _running_upper_pod(ref, world)
    return DisruptedPod(ref.namespace, ref.name, found[0].node if found else "")


def _from_lower_changes(
    planned: Iterable[Change], world: World, evicted: Collection[Ref]
) -> Iterator[tuple[DisruptedPod, bool]]:
    """Yield the upper pods whose running lower pods are replaced, restarted or taken away, and whether they come back.

    Those that leave anyway are left out, and those that a user has deleted.
    """
    for change in planned:
        lower = world.lowers.get(change.ref.cluster)
        if lower is None or change.ref.kind != POD:
            continue
        lower_pod = lower.pods.get(change.ref.namespace, change.ref.name)
        if lower_pod is None or not lower_pod.facts.ran or lower_pod.facts.terminal or lower_pod.facts.terminating:
            continue
        namespace = lower.upper_namespace(change.ref.namespace) or change.ref.namespace
        upper_pod = lower.upper_pods.get(namespace, change.ref.name)
        is_requested = upper_pod is not None and upper_pod.facts.terminating
        if is_requested or Ref(UPPER, POD, namespace, change.ref.name) in evicted:
            continue
        pod = DisruptedPod(namespace, change.ref.name, lower.node)
        if change.action == "delete":
            yield pod, False
        elif change.action == "replace" or _changes_image(change):
            yield pod, True


def _evicted_by_taints(planned: Iterable[Change], world: World) -> Iterator[tuple[Ref, DisruptedPod]]:
    """Yield the running upper pods that Kubernetes deletes because of a taint that their node gets."""
    changed = {one.ref.name for one in planned if one.ref.kind == NODE and one.action == "update"}
    for lower in world.lowers.values():
        taints = _new_taints(lower, world) if lower.node in changed else []
        for entry in lower.upper_pods if taints else ():
            facts = entry.facts
            if (
                facts.ran
                and not facts.terminal
                and not facts.terminating
                and not _tolerates_all(entry.manifest(), taints)
            ):
                yield (
                    Ref(UPPER, POD, entry.namespace, entry.name),
                    DisruptedPod(entry.namespace, entry.name, lower.node),
                )


def _new_taints(lower: LowerWorld, world: World) -> list[Manifest]:
    """Return the NoExecute taints that the topology gives a node and that it does not have yet."""
    node = world.upper.nodes.get("", lower.node)
    if node is None or not lower.in_topology:
        return []
    present = node.manifest()["spec"].get("taints") or ()
    seen = {(one["key"], one.get("value", ""), one["effect"]) for one in present}
    wanted = ((one.key, one.value, one.effect) for one in lower.spec.node.taints if one.effect == _NO_EXECUTE)
    return [
        {"key": key, "value": value, "effect": effect}
        for key, value, effect in wanted
        if (key, value, effect) not in seen
    ]


def _tolerates_all(pod: Manifest, taints: Iterable[Manifest]) -> bool:
    """Report whether a pod tolerates all of these taints without a limit.

    As in the eviction controller, of several tolerations that match a taint the first counts.
    """
    tolerations = pod["spec"].get("tolerations") or ()
    for taint in taints:
        found = next((one for one in tolerations if tolerates(one, taint)), None)
        if found is None or found.get("tolerationSeconds") is not None:
            return False
    return True


def _changes_image(change: Change) -> bool:
    """Report whether a pod gets another image, for which the kubelet restarts the container."""
    return any(one.path[-1] == _IMAGE and "ontainers" in one.path[1] for one in change.differences if len(one.path) > 1)


def _covering_budgets(
    evicted: Mapping[Ref, DisruptedPod], world: World, budgets: Iterable[Manifest]
) -> Iterator[TouchedBudget]:
    """Yield the budgets that cover an evicted pod. Pods are only decoded if there are budgets."""
    budgets = sorted(budgets, key=lambda one: (metadata(one)["namespace"], metadata(one)["name"]))
    if not budgets:
        return
    found = [(ref.namespace, labels(pair[1].manifest())) for ref in evicted if (pair := _running_upper_pod(ref, world))]
    for budget in budgets:
        covers, meta = label_test((budget.get("spec") or {}).get("selector")), metadata(budget)
        pods = sum(namespace == meta["namespace"] and covers(pod_labels) for namespace, pod_labels in found)
        if pods:
            allowed = (budget.get("status") or {}).get("disruptionsAllowed") or 0
            yield TouchedBudget(meta["namespace"], meta["name"], pods, allowed)


def _lost_objects(planned: Iterable[Change], kind: str, world: World) -> Iterator[LostObject]:
    """Yield the objects of a kind that are taken away in a lower cluster."""
    for change in planned:
        lower = world.lowers.get(change.ref.cluster)
        if lower is not None and change.ref.kind.name == kind and _deletes(change):
            namespace = lower.upper_namespace(change.ref.namespace) or change.ref.namespace
            yield LostObject(lower.name, namespace, change.ref.name)


def _lost_endpoints(pods: set[tuple[str, str]], world: World) -> Iterator[LostEndpoints]:
    """Yield the Services that lose ready endpoints with these pods. Without the Service controller none is known."""
    slices = world.upper.cache(ENDPOINT_SLICE)
    if slices is None or not len(slices) or not pods:
        return
    addresses = set(_addresses(pods, world))
    counts: dict[tuple[str, str, str], list[int]] = {}
    for entry in slices:
        manifest = entry.manifest()
        count = counts.setdefault((entry.namespace, entry.facts.service, manifest.get("addressType", "")), [0, 0])
        for endpoint in manifest.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                count[0] += any((entry.namespace, one) in addresses for one in endpoint.get("addresses") or ())
                count[1] += 1
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for (namespace, service, _), (lost, ready) in counts.items():  # a dual-stack Service has its pods once per family
        found[namespace, service] = max(found.get((namespace, service), (0, 0)), (lost, ready))
    for (namespace, service), (lost, ready) in sorted(found.items()):
        if lost:
            yield LostEndpoints(namespace, service, lost, ready)


def _addresses(pods: set[tuple[str, str]], world: World) -> Iterator[tuple[str, str]]:
    """Yield the namespaces and IP addresses of pods."""
    for namespace, name in pods:
        for lower in world.lowers.values():
            entry = lower.upper_pods.get(namespace, name)
            status: dict[str, Any] = (entry.manifest().get("status") or {}) if entry else {}
            for one in status.get("podIPs") or ([{"ip": status["podIP"]}] if status.get("podIP") else []):
                yield namespace, one["ip"]


def _cut_streams(planned: Iterable[Change], world: World) -> Iterator[CutStreams]:
    """Yield the nodes with running pods that are deleted, or whose kubelet API gets another port by the topology."""
    deleted = {one.ref.name for one in planned if one.ref.kind == NODE and _deletes(one)}
    for lower in world.lowers.values():
        pods = sum(one.facts.ran and not one.facts.terminal for one in lower.upper_pods)
        entry = world.upper.nodes.get("", lower.node)
        if not pods or entry is None:
            continue
        old, new = noted_port(entry.manifest()), lower.spec.node.kubelet_port
        if lower.node in deleted:
            yield CutStreams(lower.node, pods, "the node is deleted")
        elif lower.in_topology and old not in (0, NOWHERE) and new and old != new:
            yield CutStreams(lower.node, pods, f"its kubelet port changes from {old} to {new}")


_UNKNOWN = "unknown_budgets"


def as_document(cost: Disruption) -> dict[str, Any]:
    """Return it as plain data, with the names of its fields in camelCase."""
    found = {part: [one._asdict() for one in rows] for part, rows in cost._asdict().items() if part != _UNKNOWN}
    return {**found, "unknownBudgets": cost.unknown_budgets}


def as_sections(cost: Disruption, approve_over: int | None = None) -> list[str]:
    """Return it for people as a section of a plan, [] if nothing is lost.

    `approve_over` is the `guard.approveOver` of the topology that is planned, if the plan should tell what exceeds it.
    """
    lines = [*_lines(cost)]
    if approve_over is not None and len(cost.pods) > approve_over:
        lines.append(f"more than guard.approveOver ({approve_over}): a running engine waits for an approval")
    return ["\n".join(["Cost to running pods:", *(_INDENT + line for line in lines)])] if lines else []


def _lines(cost: Disruption) -> Iterator[str]:
    yield from _pod_lines(cost)
    for budget in cost.budgets:
        yield harmless(
            f"{DISRUPTION_BUDGET.name} {budget.namespace}/{budget.name} covers {budget.pods} of them "
            f"and allows {budget.allowed} at once now"
        )
    if cost.unknown_budgets:
        yield f"{DISRUPTION_BUDGET.name}s: unknown: {harmless(cost.unknown_budgets)}"
    yield from _object_lines(cost)
    for cut in cost.streams:
        pods = "1 pod" if cut.pods == 1 else f"{cut.pods} pods"
        yield harmless(f"open logs, exec and port-forward of node {cut.node} end ({pods}): {cut.why}")


def _pod_lines(cost: Disruption) -> Iterator[str]:
    for pods, effect in (
        (cost.restarted, "restarted"),
        (cost.moved, "moved"),
        (cost.stranded, "stranded, no other node has room"),
        (cost.evicted, "evicted; `tensile plan --drain NAME` shows where they fit"),
        (cost.ended, "ended"),
    ):
        if pods:
            yield f"{counted(len(pods), 'pod')} {effect}: {listed(map(_named, pods), _MAX_NAMED)}"


def _object_lines(cost: Disruption) -> Iterator[str]:
    for kind, found in (("claim", cost.claims), ("Service", cost.services)):
        if found:
            names = listed((f"{one.namespace}/{one.name} in {one.lower}" for one in found), _MAX_NAMED)
            yield f"{counted(len(found), kind)} deleted: {names}"
    for lost in cost.endpoints:
        yield harmless(f"Service {lost.namespace}/{lost.name} loses {lost.lost} of {lost.ready} ready endpoints")


def _named(pod: DisruptedPod) -> str:
    where = f" ({pod.node} -> {' or '.join(pod.targets)})" if pod.targets else f" ({pod.node})" if pod.node else ""
    return f"{pod.namespace}/{pod.name}{where}"
