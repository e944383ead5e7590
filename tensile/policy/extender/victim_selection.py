"""The pods bound to a virtual node, and the choice of victims so that a pod of higher priority fits.

A pod is read once, because later only its start and its end change the choice.

Victims are chosen as in kube-scheduler: all pods of lower priority leave a node, the pod must fit then, and as many as
possible are reprieved: first those whose disruption budget would be violated, then the more important ones. A set of
victims must suffice twice, though: in the lower cluster for one node, and in the upper cluster, where the virtual node
counts as one host. If no set does both, no pod is preempted.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Self

from tensile.objects import Manifest, labels, metadata, moment_of, uid
from tensile.policy.extender.node_cache import NodeCache, Nominee, PodName, first_reasons
from tensile.policy.placement.checks import collide
from tensile.policy.placement.placement import NODE_LOCAL, NodeRefusal, is_curable, prepare
from tensile.policy.placement.selectors import Labels, Test, is_empty, label_test
from tensile.policy.placement.snapshot import Node, NodeFilter, Pod, pod_of, requests_of
from tensile.reconcile.pods.demand import resize_digest

PODS, _WHOLE = "pods", 1000
_PREEMPTED = ("DisruptionTarget", "True", "PreemptionByScheduler")
_PRIORITY_OFFSET = 1 << 31
"""kube-scheduler adds this to each priority, so that a sum over more pods is never smaller."""
_ENOUGH_CANDIDATES, _CANDIDATE_DIVISOR = 100, 10
"""Candidates after which kube-scheduler stops, and the share (a tenth) of the nodes of a large cluster."""
_MAX_EFFORT = 1_000_000
"""Maximum of pods and nodes examined if nodes depend on each other: some hundred milliseconds in total."""


class Resident(NamedTuple):
    """An upper pod bound to the virtual node; `pod` is as it is there, `started` a timestamp or "".

    `preempted` is whether a scheduler preempts it for another pod, `generation` that of the spec that was read, and
    `sizes` the digest of what its status adds to its requests.
    """

    pod: Pod
    priority: int
    started: str = ""
    preempted: bool = False
    generation: int = 0
    sizes: int = 0


class VirtualNodeView(NamedTuple):
    """A virtual node as kube-scheduler sees it: the node, its pods by their lower names, and their requests.

    `copy_of` returns the UID of the lower pod that mirrors a resident, "" for none. `is_ours` reports whether a
    resident is mirrored at all, and `space` returns the labels of an upper namespace.
    """

    node: Node
    residents: Mapping[PodName, Resident]
    used: Counter[str]
    copy_of: Callable[[PodName], str]
    is_ours: Callable[[PodName], bool]
    space: Callable[[str], Labels | None]


class Preemptor(NamedTuple):
    """A pod that looks for a node: the upper pod (`upper`), and that pod in the lower cluster (`lower`)."""

    upper: Pod
    lower: Pod
    priority: int


class Budget(NamedTuple):
    """A PodDisruptionBudget: which pods it covers, and how many may go; `disrupted` are those evicted already."""

    namespace: str
    covers: Test
    allowed: int
    disrupted: frozenset[str]


class NodeVictims(NamedTuple):
    """A lower node and its victims, the most important first; the lowest `cost` is the best choice.

    `names` are their lower names, `fresh` the victims that are not leaving anyway, and `violations` the number of fresh
    ones that no disruption budget allows.
    """

    node: str
    victims: tuple[Resident, ...]
    names: frozenset[PodName]
    fresh: tuple[Resident, ...]
    violations: int
    cost: tuple[float, ...]


class Residents:
    """The residents of one virtual node by their lower names; `changed` counts changes that may affect the choice."""

    def __init__(self) -> None:
        self.pods: dict[PodName, Resident] = {}
        self.changed = 0
        self.used: Counter[str] = Counter()
        """What they request together, in milli-units, including their pod slots."""
        self._priorities: Counter[int] = Counter()

    @property
    def lowest(self) -> float:
        """The lowest priority of all residents, infinity for none."""
        return min(self._priorities, default=inf)

    def put(self, name: PodName, manifest: Manifest) -> None:
        """Add or replace a pod."""
        known, found = self.pods.get(name), resident_of(manifest, self.pods.get(name))
        if known == found:
            return
        self.remove(name)
        self.pods[name] = found
        self._priorities[found.priority] += 1
        self.used.update(taken_by(found.pod))
        self.changed += 1

    def remove(self, name: PodName) -> None:
        """Remove a pod."""
        known = self.pods.pop(name, None)
        if known is not None:
            self._priorities[known.priority] -= 1
            self.used.subtract(taken_by(known.pod))
            self._priorities += Counter()
            self.changed += 1

    def is_awaited(self, priority: int) -> bool:
        """Report whether a pod of lower priority terminates because it was preempted."""
        return any(one.preempted and one.pod.ending and one.priority < priority for one in self.pods.values())


def taken_by(pod: Pod) -> dict[str, int]:
    """Return what a pod takes of a node, including its pod slot."""
    return {**pod.requests, PODS: _WHOLE}


def resident_of(manifest: Manifest, known: Resident | None = None) -> Resident:
    """Return a pod as a resident; what is `known` of it is reused if it cannot have changed."""
    meta, status = metadata(manifest), manifest.get("status") or {}
    conditions = ((one["type"], one["status"], one.get("reason")) for one in status.get("conditions") or ())
    generation, sizes = meta.get("generation") or 0, resize_digest(status)
    if not (known and _is_same(known, manifest, generation)):
        pod = pod_of(manifest, settled=True)
    elif known.sizes == sizes:
        pod = known.pod
    else:
        pod = replace(known.pod, requests=requests_of(manifest))
    return Resident(
        pod, priority_of(manifest), status.get("startTime") or "", _PREEMPTED in conditions, generation, sizes
    )


def _is_same(known: Resident, manifest: Manifest, generation: int) -> bool:
    """Report whether reading a pod again would yield the same; False for pods without a generation."""
    ending = bool(metadata(manifest).get("deletionTimestamp"))
    seen = (known.pod.uid, known.generation, known.pod.ending, known.pod.labels)
    return bool(generation) and seen == (uid(manifest), generation, ending, labels(manifest))


def may_preempt(pod: Manifest) -> bool:
    """Report whether a pod may preempt others."""
    return bool(pod["spec"].get("preemptionPolicy") != "Never")


def priority_of(pod: Manifest) -> int:
    """Return a pod's priority."""
    return int(pod["spec"].get("priority") or 0)


def is_ahead(nominee: Nominee, preemptor: Preemptor) -> bool:
    """Report whether a nominee is another pod with the same or a higher priority."""
    return nominee.uid != preemptor.upper.uid and nominee.priority >= preemptor.priority


def counted(preemptor: Preemptor, virtual_node: VirtualNodeView, uids: Container[str]) -> frozenset[PodName]:
    """Return the residents, among `uids`, that a topology spread constraint of the upper pod counts.

    Other domains are not visible here, so only kube-scheduler can decide how many of them may stay.
    """
    constraints = preemptor.upper.spec.get("topologySpreadConstraints") or ()
    selectors = (one.get("labelSelector") for one in constraints if one.get("whenUnsatisfiable") != "ScheduleAnyway")
    tests = [label_test(selector) for selector in selectors]
    found = ((name, one.pod) for name, one in virtual_node.residents.items() if tests and one.pod.uid in uids)
    own = preemptor.upper.namespace
    return frozenset(name for name, pod in found if pod.namespace == own and any(test(pod.labels) for test in tests))


def budget_of(manifest: Manifest) -> Budget:
    """Return a PodDisruptionBudget; with no selector or an empty one, it covers no pod, as in kube-scheduler."""
    selector, status = manifest["spec"].get("selector"), manifest.get("status") or {}
    covers = label_test(None if is_empty(selector) else selector)
    disrupted = frozenset(status.get("disruptedPods") or ())
    return Budget(metadata(manifest)["namespace"], covers, status.get("disruptionsAllowed") or 0, disrupted)


def is_possible(preemptor: Preemptor, cache: NodeCache, virtual_node: VirtualNodeView) -> bool:
    """Report whether there is a sufficient set of victims, without choosing one."""
    searches = _searches(preemptor, cache, virtual_node)
    return any(search.suffices(node) for search in searches for node in search.nodes())


def choices(
    preemptor: Preemptor,
    cache: NodeCache,
    virtual_node: VirtualNodeView,
    budgets: Iterable[Budget],
    needed: frozenset[PodName] = frozenset(),
) -> Iterator[NodeVictims | None]:
    """Yield the choice for one lower node at a time, None for a node that does not fit.

    `needed` are pods that must go for a reason that is not visible here.
    """
    found: list[int] = []
    enough = max(_ENOUGH_CANDIDATES, len(cache.snapshot.nodes) // _CANDIDATE_DIVISOR)
    for search in _searches(preemptor, cache, virtual_node, needed):
        for node in search.nodes():
            choice = search.choice(node, budgets)
            yield choice
            found += [choice.violations] if choice is not None else []
            if len(found) >= enough and 0 in found:
                return
        if found:
            return


def _searches(
    preemptor: Preemptor, cache: NodeCache, virtual_node: VirtualNodeView, needed: frozenset[PodName] = frozenset()
) -> Iterator["_Search"]:
    """Yield what to try in turn, none if no node can fit.

    Pods that the preemptor's pod affinity matches are spared at first. They may go if another such pod stays.
    """
    residents = virtual_node.residents
    affine = frozenset(_affine_residents(preemptor.upper, virtual_node))
    lower_priority = {
        name: one for name, one in residents.items() if one.priority < preemptor.priority and virtual_node.is_ours(name)
    }
    one_stays_anyway = any(name not in lower_priority and not residents[name].pod.ending for name in affine)
    for spared in (affine, frozenset[PodName]()) if one_stays_anyway and affine & lower_priority.keys() else (affine,):
        may_leave = {name: one for name, one in lower_priority.items() if name not in spared}
        search = _Search.begin(preemptor, cache, virtual_node, may_leave, needed)
        if search is not None:
            yield search


@dataclass(slots=True)
class _Search:
    """State shared by all nodes: which pods may go, leave anyway or must go, and the room left on the virtual node."""

    preemptor: Preemptor
    cache: NodeCache
    virtual_node: VirtualNodeView
    lower_priority: dict[PodName, Resident]
    leaving: frozenset[PodName]
    required: frozenset[PodName]
    free: Counter[str]
    checks: list[NodeFilter] | None
    """The checks of a node, if nodes do not depend on each other."""
    weight: int = 1
    effort: int = 0

    @classmethod
    def begin(
        cls,
        preemptor: Preemptor,
        cache: NodeCache,
        virtual_node: VirtualNodeView,
        lower_priority: dict[PodName, Resident],
        needed: frozenset[PodName],
    ) -> "_Search | None":
        """Compute what all nodes share; None if no node can fit. `lower_priority` are the pods that may go."""
        residents = virtual_node.residents
        is_exclusive = bool(preemptor.upper.ports or preemptor.upper.apart)
        others = ((name, one.pod) for name, one in residents.items() if is_exclusive or one.pod.apart)
        conflicting = frozenset(name for name, pod in others if _excludes(preemptor.upper, pod, virtual_node))
        prepared = prepare(preemptor.lower, cache.snapshot)
        if not lower_priority or not conflicting <= lower_priority.keys() or isinstance(prepared, NodeRefusal):
            return None
        is_node_local = {name for name, _ in prepared} <= NODE_LOCAL
        nominees = (one.nominee for one in cache.nominees().values() if one.nominee is not None)
        preempted = {name for one in nominees if one.uid != preemptor.upper.uid for name in one.victims}
        leaving = frozenset(name for name, one in lower_priority.items() if one.pod.ending or name in preempted)
        search = cls(
            preemptor,
            cache,
            virtual_node,
            lower_priority,
            leaving,
            conflicting | (needed & lower_priority.keys()),
            _room_left(preemptor, cache, virtual_node),
            [one.judge for _, one in prepared] if is_node_local else None,
            1 if is_node_local else len(cache.snapshot.nodes) + cache.snapshot.population.total(),
        )
        return None if _is_short(search.free) and _is_short(search._free_without(lower_priority)) else search

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes that may fit, until the bound on the effort is reached."""
        checks = self._checks()
        for node in tuple(self.cache.snapshot.nodes.values()):
            if self.effort > _MAX_EFFORT:
                return
            reasons = first_reasons(node, checks)
            if not reasons or is_curable(self.preemptor.lower, node, reasons):
                yield node

    def suffices(self, node: Node) -> bool:
        """Report whether the pod fits on a node once all possible victims are gone."""
        victims = self._victims_on(node)
        if not (victims or self.required or _is_short(self.free)):
            return False
        with _WithoutPods(self.cache, (*victims, *self.required), self.preemptor, node):
            return self._fits(node)

    def choice(self, node: Node, budgets: Iterable[Budget]) -> NodeVictims | None:
        """Return the victims on a node, None if preemption does not help."""
        on_node = self._victims_on(node)
        leaving = {*on_node, *self.required}
        if _is_short(self._free_without(leaving)):
            leaving = set(self.lower_priority)
        with _WithoutPods(self.cache, (*on_node, *self.required), self.preemptor, node) as cleared:
            if not leaving or not self._fits(node):
                return None
            ranked = sorted(leaving, key=self._importance)
            violating = self._violating(ranked, budgets)
            free = self._free_without(leaving)
            for name in sorted(ranked, key=lambda one: (one in on_node, one not in violating)):
                if name in self.leaving or name in self.required or _is_short(free, self.lower_priority[name].pod):
                    continue
                if name not in on_node or self._still_fits(node, name, cleared):
                    leaving.discard(name)
                    free.subtract(taken_by(self.lower_priority[name].pod))
        return self._node_victims(node, [name for name in ranked if name in leaving], violating)

    def _still_fits(self, node: Node, name: PodName, cleared: "_WithoutPods") -> bool:
        """Report whether the pod fits with another one back on its node; if so, that one stays there."""
        cleared.put_back(name)
        if self._fits(node):
            return True
        cleared.take(name)
        return False

    def _node_victims(self, node: Node, names: list[PodName], violating: frozenset[PodName]) -> NodeVictims | None:
        fresh = tuple(self.lower_priority[name] for name in names if name not in self.leaving)
        if not names:
            return None
        violations = sum(name in violating and name not in self.leaving for name in names)
        victims = tuple(self.lower_priority[name] for name in names)
        return NodeVictims(node.name, victims, frozenset(names), fresh, violations, (violations, *_cost(fresh)))

    def _victims_on(self, node: Node) -> tuple[PodName, ...]:
        """Return the possible victims on a node: mirrors of residents, not pods that only have such a name."""
        copy_of = self.virtual_node.copy_of
        return tuple(
            name for name, pod in node.pods.items() if name in self.lower_priority and copy_of(name) == pod.uid
        )

    def _free_without(self, leaving: Iterable[PodName]) -> Counter[str]:
        """Return the room left on the virtual node once some pods are gone."""
        free = self.free.copy()
        for name in leaving:
            free.update(taken_by(self.lower_priority[name].pod))
        return free

    def _checks(self) -> list[NodeFilter]:
        """Return the checks of a node for the present pods."""
        self.effort += self.weight
        if self.checks is not None:
            return self.checks
        prepared = prepare(self.preemptor.lower, self.cache.snapshot)
        return [_reject_all] if isinstance(prepared, NodeRefusal) else [one.judge for _, one in prepared]

    def _fits(self, node: Node) -> bool:
        return not first_reasons(node, self._checks())

    def _importance(self, name: PodName) -> tuple[int, str, list[int], PodName]:
        """Return the sort key of a pod, as in kube-scheduler: by priority, then the longest running first.

        Among pods that started in the same second the smaller ones come first, so that fewer must go.
        """
        one = self.lower_priority[name]
        size = [one.pod.requests.get(resource, 0) for resource in self.preemptor.upper.requests]
        return -one.priority, one.started or "~", size, name

    def _violating(self, ranked: list[PodName], budgets: Iterable[Budget]) -> frozenset[PodName]:
        """Return the pods that no disruption budget allows to go, if all pods before them in the order go."""
        allowed = {budget: budget.allowed for budget in budgets}
        found = set()
        for name in ranked:
            pod = self.lower_priority[name].pod
            for budget in allowed if pod.labels else ():
                covered = budget.namespace == pod.namespace and budget.covers(pod.labels)
                if covered and pod.name not in budget.disrupted:
                    allowed[budget] -= 1
                    if allowed[budget] < 0:
                        found.add(name)
        return frozenset(found)


class _WithoutPods:
    """A context manager: the cluster cache without some pods, and without a node's nominees that yield to a pod."""

    def __init__(self, cache: NodeCache, names: Iterable[PodName], preemptor: Preemptor, node: Node) -> None:
        self._cache = cache
        on_node = ((name, one.nominee) for name, one in cache.nominees().items() if one.node == node.name)
        self._names = (*names, *(name for name, nominee in on_node if nominee and not is_ahead(nominee, preemptor)))
        self._removed: dict[PodName, tuple[Pod, str]] = {}

    def __enter__(self) -> Self:
        for name in self._names:
            self.take(name)
        return self

    def __exit__(self, *_error: object) -> None:
        for name in tuple(self._removed):
            self.put_back(name)

    def take(self, name: PodName) -> None:
        """Take a pod off its node, if it has one."""
        reservation = self._cache.reservations.get(name)
        node = self._cache.snapshot.nodes.get(reservation.node if reservation else self._cache.place_of(name))
        pod = node.pods.get(name) if node else None
        if node is not None and pod is not None:
            self._cache.snapshot.remove(*name, node.name)
            self._removed[name] = pod, node.name

    def put_back(self, name: PodName) -> None:
        """Put a pod that was taken off back on its node."""
        pod, node = self._removed.pop(name)
        self._cache.snapshot.add(pod, node)


def _room_left(preemptor: Preemptor, cache: NodeCache, virtual_node: VirtualNodeView) -> Counter[str]:
    """Return what the virtual node would have left of the requested resources; negative for a shortage.

    Nominees that do not yield count, as in kube-scheduler.
    """
    ahead = [one.pod for one in cache.nominees().values() if one.nominee and is_ahead(one.nominee, preemptor)]
    left = Counter(
        {
            name: virtual_node.node.allocatable.get(name, 0) - virtual_node.used[name]
            for name in (*preemptor.upper.requests, PODS)
        }
    )
    for pod in (preemptor.upper, *ahead):
        amounts = taken_by(pod)
        left.subtract({name: amounts.get(name, 0) for name in left})
    return left


def _is_short(left: Counter[str], pod: Pod | None = None) -> bool:
    """Report whether any amount that is left is negative, or would be if a pod took its share."""
    amounts = taken_by(pod) if pod is not None else {}
    return any(amount < amounts.get(name, 0) for name, amount in left.items())


def _excludes(pod: Pod, other: Pod, virtual_node: VirtualNodeView) -> bool:
    """Report whether two pods cannot share a virtual node, because of host ports or anti-affinity."""
    if any(collide(one, each) for one in pod.ports for each in other.ports):
        return True
    keys, space = virtual_node.node.labels, virtual_node.space
    if any(term.key in keys and term.matches(other, space(other.namespace)) for term in pod.apart):
        return True
    return any(term.key in keys and term.matches(pod, space(pod.namespace)) for term in other.apart)


def _affine_residents(pod: Pod, virtual_node: VirtualNodeView) -> Iterator[PodName]:
    """Yield the residents of a virtual node that a pod's affinity matches: beside one of them, the pod may stay."""
    terms = [term for term in pod.near if term.key in virtual_node.node.labels]
    for name, one in virtual_node.residents.items() if terms else ():
        if all(term.matches(one.pod, virtual_node.space(one.pod.namespace)) for term in terms):
            yield name


def _cost(victims: tuple[Resident, ...]) -> tuple[float, ...]:
    """Return what kube-scheduler compares, in its order; the lowest is the best."""
    if not victims:
        return (-inf, 0, 0, -inf)
    highest = max(one.priority for one in victims)
    earliest = min(_start_seconds(one.started) for one in victims if one.priority == highest)
    return highest, sum(one.priority + _PRIORITY_OFFSET for one in victims), len(victims), -earliest


def _start_seconds(started: str) -> float:
    """Return when a pod started, in seconds; infinity for a pod that has not started."""
    with suppress(ValueError):
        return moment_of(started).timestamp()
    return inf


def _reject_all(_node: Node) -> tuple[str, ...]:
    return ("never",)
