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
from tensile.policy.placement.placement import ALONE, NodeRefusal, is_curable, prepare
from tensile.policy.placement.selectors import Labels, Test, is_empty, label_test
from tensile.policy.placement.snapshot import Node, NodeFilter, Pod, pod_of, requests_of
from tensile.reconcile.pods.demand import resize_digest

PODS, _WHOLE = "pods", 1000
_PREEMPTED = ("DisruptionTarget", "True", "PreemptionByScheduler")
_LOWEST = 1 << 31
"""kube-scheduler adds this to each priority, so that a sum over more pods is never smaller."""
_ENOUGH, _SHARE = 100, 10
"""Candidates after which kube-scheduler stops, and the share (a tenth) of the nodes of a large cluster."""
_MOST = 1_000_000
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
    """A pod that looks for a node: the upper pod (`above`), and that pod in the lower cluster (`below`)."""

    above: Pod
    below: Pod
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
    said = ((one["type"], one["status"], one.get("reason")) for one in status.get("conditions") or ())
    generation, sizes = meta.get("generation") or 0, resize_digest(status)
    if not (known and _is_same(known, manifest, generation)):
        read = pod_of(manifest, settled=True)
    elif known.sizes == sizes:
        read = known.pod
    else:
        read = replace(known.pod, requests=requests_of(manifest))
    return Resident(read, priority_of(manifest), status.get("startTime") or "", _PREEMPTED in said, generation, sizes)


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


def is_ahead(nominee: Nominee, wish: Preemptor) -> bool:
    """Report whether a nominee is another pod with the same or a higher priority."""
    return nominee.uid != wish.above.uid and nominee.priority >= wish.priority


def counted(wish: Preemptor, above: VirtualNodeView, uids: Container[str]) -> frozenset[PodName]:
    """Return the residents, among `uids`, that a topology spread constraint of the upper pod counts.

    Other domains are not visible here, so only kube-scheduler can decide how many of them may stay.
    """
    constraints = wish.above.spec.get("topologySpreadConstraints") or ()
    selectors = (one.get("labelSelector") for one in constraints if one.get("whenUnsatisfiable") != "ScheduleAnyway")
    tests = [label_test(selector) for selector in selectors]
    found = ((name, one.pod) for name, one in above.residents.items() if tests and one.pod.uid in uids)
    own = wish.above.namespace
    return frozenset(name for name, pod in found if pod.namespace == own and any(test(pod.labels) for test in tests))


def budget_of(manifest: Manifest) -> Budget:
    """Return a PodDisruptionBudget; with no selector or an empty one, it covers no pod."""
    selector, status = manifest["spec"].get("selector"), manifest.get("status") or {}
    covers = label_test(None if is_empty(selector) else selector)
    gone = frozenset(status.get("disruptedPods") or ())
    return Budget(metadata(manifest)["namespace"], covers, status.get("disruptionsAllowed") or 0, gone)


def is_possible(wish: Preemptor, ground: NodeCache, above: VirtualNodeView) -> bool:
    """Report whether there is a sufficient set of victims, without choosing one."""
    searches = _searches(wish, ground, above)
    return any(search.would_do(node) for search in searches for node in search.nodes())


def choices(
    wish: Preemptor,
    ground: NodeCache,
    above: VirtualNodeView,
    budgets: Iterable[Budget],
    needed: frozenset[PodName] = frozenset(),
) -> Iterator[NodeVictims | None]:
    """Yield the choice for one lower node at a time, None for a node that does not fit.

    `needed` are pods that must go for a reason that is not visible here.
    """
    found: list[int] = []
    enough = max(_ENOUGH, len(ground.snapshot.nodes) // _SHARE)
    for search in _searches(wish, ground, above, needed):
        for node in search.nodes():
            choice = search.choice(node, budgets)
            yield choice
            found += [choice.violations] if choice is not None else []
            if len(found) >= enough and 0 in found:
                return
        if found:
            return


def _searches(
    wish: Preemptor, ground: NodeCache, above: VirtualNodeView, needed: frozenset[PodName] = frozenset()
) -> Iterator["_Search"]:
    """Yield what to try in turn, none if no node can fit.

    Pods that the preemptor's pod affinity matches are spared at first. They may go if another such pod stays.
    """
    residents = above.residents
    near = frozenset(_matched(wish.above, above))
    lesser = {name: one for name, one in residents.items() if one.priority < wish.priority and above.is_ours(name)}
    one_stays = any(name not in lesser and not residents[name].pod.ending for name in near)
    for spared in (near, frozenset[PodName]()) if one_stays and near & lesser.keys() else (near,):
        able = {name: one for name, one in lesser.items() if name not in spared}
        search = _Search.begin(wish, ground, above, able, needed)
        if search is not None:
            yield search


@dataclass(slots=True)
class _Search:
    """State shared by all nodes: which pods may go, leave anyway or must go, and the room left on the virtual node."""

    wish: Preemptor
    ground: NodeCache
    above: VirtualNodeView
    lesser: dict[PodName, Resident]
    doomed: frozenset[PodName]
    forced: frozenset[PodName]
    left: Counter[str]
    judges: list[NodeFilter] | None
    """The checks of a node, if nodes do not depend on each other."""
    weight: int = 1
    effort: int = 0

    @classmethod
    def begin(
        cls,
        wish: Preemptor,
        ground: NodeCache,
        above: VirtualNodeView,
        lesser: dict[PodName, Resident],
        needed: frozenset[PodName],
    ) -> "_Search | None":
        """Compute what all nodes share; None if no node can fit. `lesser` are the pods that may go."""
        residents = above.residents
        asks = bool(wish.above.ports or wish.above.apart)
        beside = ((name, one.pod) for name, one in residents.items() if asks or one.pod.apart)
        in_the_way = frozenset(name for name, pod in beside if _excludes(wish.above, pod, above))
        prepared = prepare(wish.below, ground.snapshot)
        if not lesser or not in_the_way <= lesser.keys() or isinstance(prepared, NodeRefusal):
            return None
        alone = {name for name, _ in prepared} <= ALONE
        nominees = (one.nominee for one in ground.nominees().values() if one.nominee is not None)
        going = {name for one in nominees if one.uid != wish.above.uid for name in one.victims}
        doomed = frozenset(name for name, one in lesser.items() if one.pod.ending or name in going)
        made = cls(
            wish,
            ground,
            above,
            lesser,
            doomed,
            in_the_way | (needed & lesser.keys()),
            _left(wish, ground, above),
            [one.judge for _, one in prepared] if alone else None,
            1 if alone else len(ground.snapshot.nodes) + ground.snapshot.population.total(),
        )
        return None if _is_short(made.left) and _is_short(made._left_without(lesser)) else made

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes that may fit, until the bound on the effort is reached."""
        judges = self._judges()
        for node in tuple(self.ground.snapshot.nodes.values()):
            if self.effort > _MOST:
                return
            reasons = first_reasons(node, judges)
            if not reasons or is_curable(self.wish.below, node, reasons):
                yield node

    def would_do(self, node: Node) -> bool:
        """Report whether the pod fits on a node once all possible victims are gone."""
        there = self._there(node)
        if not (there or self.forced or _is_short(self.left)):
            return False
        with _Cleared(self.ground, (*there, *self.forced), self.wish, node):
            return self._fits(node)

    def choice(self, node: Node, budgets: Iterable[Budget]) -> NodeVictims | None:
        """Return the victims on a node, None if preemption does not help."""
        there = self._there(node)
        going = {*there, *self.forced}
        if _is_short(self._left_without(going)):
            going = set(self.lesser)
        with _Cleared(self.ground, (*there, *self.forced), self.wish, node) as cleared:
            if not going or not self._fits(node):
                return None
            ranked = sorted(going, key=self._importance)
            violating = self._violating(ranked, budgets)
            left = self._left_without(going)
            for name in sorted(ranked, key=lambda one: (one in there, one not in violating)):
                if name in self.doomed or name in self.forced or _is_short(left, self.lesser[name].pod):
                    continue
                if name not in there or self._still_fits(node, name, cleared):
                    going.discard(name)
                    left.subtract(taken_by(self.lesser[name].pod))
        return self._made(node, [name for name in ranked if name in going], violating)

    def _still_fits(self, node: Node, name: PodName, cleared: "_Cleared") -> bool:
        """Report whether the pod fits with another one back on its node; if so, that one stays there."""
        cleared.put_back(name)
        if self._fits(node):
            return True
        cleared.take(name)
        return False

    def _made(self, node: Node, names: list[PodName], violating: frozenset[PodName]) -> NodeVictims | None:
        fresh = tuple(self.lesser[name] for name in names if name not in self.doomed)
        if not names:
            return None
        violations = sum(name in violating and name not in self.doomed for name in names)
        victims = tuple(self.lesser[name] for name in names)
        return NodeVictims(node.name, victims, frozenset(names), fresh, violations, (violations, *_cost(fresh)))

    def _there(self, node: Node) -> tuple[PodName, ...]:
        """Return the possible victims on a node: mirrors of residents, not pods that only have such a name."""
        copy_of = self.above.copy_of
        return tuple(name for name, pod in node.pods.items() if name in self.lesser and copy_of(name) == pod.uid)

    def _left_without(self, going: Iterable[PodName]) -> Counter[str]:
        """Return the room left on the virtual node once some pods are gone."""
        left = self.left.copy()
        for name in going:
            left.update(taken_by(self.lesser[name].pod))
        return left

    def _judges(self) -> list[NodeFilter]:
        """Return the checks of a node for the present pods."""
        self.effort += self.weight
        if self.judges is not None:
            return self.judges
        prepared = prepare(self.wish.below, self.ground.snapshot)
        return [_never] if isinstance(prepared, NodeRefusal) else [one.judge for _, one in prepared]

    def _fits(self, node: Node) -> bool:
        return not first_reasons(node, self._judges())

    def _importance(self, name: PodName) -> tuple[int, str, list[int], PodName]:
        """Return the sort key of a pod, as in kube-scheduler: by priority, then the longest running first.

        Among pods that started in the same second the smaller ones come first, so that fewer must go.
        """
        one = self.lesser[name]
        size = [one.pod.requests.get(resource, 0) for resource in self.wish.above.requests]
        return -one.priority, one.started or "~", size, name

    def _violating(self, ranked: list[PodName], budgets: Iterable[Budget]) -> frozenset[PodName]:
        """Return the pods that no disruption budget allows to go, if all pods before them in the order go."""
        left = {budget: budget.allowed for budget in budgets}
        found = set()
        for name in ranked:
            pod = self.lesser[name].pod
            for budget in left if pod.labels else ():
                covered = budget.namespace == pod.namespace and budget.covers(pod.labels)
                if covered and pod.name not in budget.disrupted:
                    left[budget] -= 1
                    if left[budget] < 0:
                        found.add(name)
        return frozenset(found)


class _Cleared:
    """A context manager: the cluster cache without some pods, and without a node's nominees that yield to a pod."""

    def __init__(self, ground: NodeCache, names: Iterable[PodName], wish: Preemptor, node: Node) -> None:
        self._ground = ground
        on_node = ((name, one.nominee) for name, one in ground.nominees().items() if one.node == node.name)
        self._names = (*names, *(name for name, nominee in on_node if nominee and not is_ahead(nominee, wish)))
        self._taken: dict[PodName, tuple[Pod, str]] = {}

    def __enter__(self) -> Self:
        for name in self._names:
            self.take(name)
        return self

    def __exit__(self, *_error: object) -> None:
        for name in tuple(self._taken):
            self.put_back(name)

    def take(self, name: PodName) -> None:
        """Take a pod off its node, if it has one."""
        promise = self._ground.promises.get(name)
        place = self._ground.snapshot.nodes.get(promise.node if promise else self._ground.place_of(name))
        pod = place.pods.get(name) if place else None
        if place is not None and pod is not None:
            self._ground.snapshot.remove(*name, place.name)
            self._taken[name] = pod, place.name

    def put_back(self, name: PodName) -> None:
        """Put a pod that was taken off back on its node."""
        pod, node = self._taken.pop(name)
        self._ground.snapshot.add(pod, node)


def _left(wish: Preemptor, ground: NodeCache, above: VirtualNodeView) -> Counter[str]:
    """Return what the virtual node would have left of the requested resources; negative for a shortage.

    Nominees that do not yield count, as in kube-scheduler.
    """
    ahead = [one.pod for one in ground.nominees().values() if one.nominee and is_ahead(one.nominee, wish)]
    left = Counter(
        {name: above.node.allocatable.get(name, 0) - above.used[name] for name in (*wish.above.requests, PODS)}
    )
    for pod in (wish.above, *ahead):
        amounts = taken_by(pod)
        left.subtract({name: amounts.get(name, 0) for name in left})
    return left


def _is_short(left: Counter[str], pod: Pod | None = None) -> bool:
    """Report whether more is requested than there is, or would be if a pod stayed."""
    amounts = taken_by(pod) if pod is not None else {}
    return any(amount < amounts.get(name, 0) for name, amount in left.items())


def _excludes(pod: Pod, other: Pod, above: VirtualNodeView) -> bool:
    """Report whether two pods cannot share a virtual node, because of host ports or anti-affinity."""
    if any(collide(one, each) for one in pod.ports for each in other.ports):
        return True
    keys, space = above.node.labels, above.space
    if any(term.key in keys and term.matches(other, space(other.namespace)) for term in pod.apart):
        return True
    return any(term.key in keys and term.matches(pod, space(pod.namespace)) for term in other.apart)


def _matched(pod: Pod, above: VirtualNodeView) -> Iterator[PodName]:
    """Yield the residents of a virtual node that a pod's affinity matches: beside one of them, the pod may stay."""
    terms = [term for term in pod.near if term.key in above.node.labels]
    for name, one in above.residents.items() if terms else ():
        if all(term.matches(one.pod, above.space(one.pod.namespace)) for term in terms):
            yield name


def _cost(victims: tuple[Resident, ...]) -> tuple[float, ...]:
    """Return what kube-scheduler compares, in its order; the lowest is the best."""
    if not victims:
        return (-inf, 0, 0, -inf)
    highest = max(one.priority for one in victims)
    earliest = min(_moment(one.started) for one in victims if one.priority == highest)
    return highest, sum(one.priority + _LOWEST for one in victims), len(victims), -earliest


def _moment(started: str) -> float:
    """Return when a pod started, in seconds; infinity for a pod that has not started."""
    with suppress(ValueError):
        return moment_of(started).timestamp()
    return inf


def _never(_node: Node) -> tuple[str, ...]:
    return ("never",)
