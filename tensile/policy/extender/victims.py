"""The pods that are bound to a virtual node, as far as it matters who of them goes when another one needs the room.

A pod is read once: of what is told of it later, only its start and its end change who is chosen.

Which pods would have to go so that one of higher priority fits on a real node behind a virtual one.

They are chosen as the kube-scheduler chooses: all of lower priority leave a node, the pod has to fit then, and as many
as possible are reprieved, first those whose disruption budget would be broken, then the more important ones. A set has
to do twice, though: below, for one real node, and above, where the virtual node counts as one host. Where none does
both, there is none, and nobody goes in vain.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

from tensile.objects import Manifest, labels, metadata, moment_of, uid
from tensile.policy.extender.reservations import Ground, Nominee, PodName
from tensile.policy.extender.search import first_reasons
from tensile.policy.placement.fit import ALONE
from tensile.policy.placement.node_checks import collide
from tensile.policy.placement.placement import Refusal, is_curable, prepare
from tensile.policy.placement.reader import pod_of
from tensile.policy.placement.selectors import Labels, Test, is_empty, label_test
from tensile.policy.placement.snapshot import Judge, Node, Pod

PODS, _WHOLE = "pods", 1000
_PREEMPTED = ("DisruptionTarget", "True", "PreemptionByScheduler")


class Resident(NamedTuple):
    """An upper pod that is bound to the virtual node; `pod` is as it is there, `started` a timestamp or "".

    `preempted` is whether a scheduler has it end for another pod, `generation` that of the spec that was read.
    """

    pod: Pod
    priority: int
    started: str = ""
    preempted: bool = False
    generation: int = 0


class Residents:
    """The residents of one virtual node by their names below; `changed` counts what may change who could go."""

    def __init__(self) -> None:
        self.pods: dict[PodName, Resident] = {}
        self.changed = 0
        self.used: Counter[str] = Counter()
        """What they ask for together, in milli-units, their places included."""
        self._priorities: Counter[int] = Counter()

    @property
    def lowest(self) -> float:
        """The lowest priority that there is."""
        return min(self._priorities, default=inf)

    def put(self, name: PodName, manifest: Manifest) -> None:
        """Take a pod as it is now."""
        known, found = self.pods.get(name), resident_of(manifest, self.pods.get(name))
        if known == found:
            return
        self.remove(name)
        self.pods[name] = found
        self._priorities[found.priority] += 1
        self.used.update(taken_by(found.pod))
        self.changed += 1

    def remove(self, name: PodName) -> None:
        """Forget a pod."""
        known = self.pods.pop(name, None)
        if known is not None:
            self._priorities[known.priority] -= 1
            self.used.subtract(taken_by(known.pod))
            self._priorities += Counter()
            self.changed += 1

    def is_awaited(self, priority: int) -> bool:
        """Report whether a pod of lower priority is ending for another one."""
        return any(one.preempted and one.pod.ending and one.priority < priority for one in self.pods.values())


def taken_by(pod: Pod) -> dict[str, int]:
    """Return what a pod takes of a node, its place included."""
    return {**pod.requests, PODS: _WHOLE}


def resident_of(manifest: Manifest, known: Resident | None = None) -> Resident:
    """Read a pod; what is `known` of it already stands where it cannot have changed."""
    meta, status = metadata(manifest), manifest.get("status") or {}
    said = ((one["type"], one["status"], one.get("reason")) for one in status.get("conditions") or ())
    generation = meta.get("generation") or 0
    read = known.pod if known and _is_same(known, manifest, generation) else pod_of(manifest, settled=True)
    return Resident(read, priority_of(manifest), status.get("startTime") or "", _PREEMPTED in said, generation)


def _is_same(known: Resident, manifest: Manifest, generation: int) -> bool:
    """Report whether what was read of a pod is what would be read now; pods without a generation are read anew."""
    ending = bool(metadata(manifest).get("deletionTimestamp"))
    seen = (known.pod.uid, known.generation, known.pod.ending, known.pod.labels)
    return bool(generation) and seen == (uid(manifest), generation, ending, labels(manifest))


def may_preempt(pod: Manifest) -> bool:
    """Report whether a pod lets others go at all."""
    return bool(pod["spec"].get("preemptionPolicy") != "Never")


def priority_of(pod: Manifest) -> int:
    """Return a pod's priority."""
    return int(pod["spec"].get("priority") or 0)


_LOWEST = 1 << 31
"""What the kube-scheduler adds to each priority, so that more pods never weigh less."""
_ENOUGH, _SHARE = 100, 10
"""Candidates after which the kube-scheduler looks at no further node, and the share (a tenth) of a large cluster."""
_MOST = 1_000_000
"""Pods and nodes that are looked at where nodes depend on each other: some hundred milliseconds in all."""


class Above(NamedTuple):
    """A virtual node as the kube-scheduler sees it: the node, its pods by their names below, and what they ask for.

    `copy_of` gives the UID of the pod below that is the mirror of the resident of that name, "" where there is none;
    `is_ours` whether a resident is one that is mirrored at all, `space` the labels of an upper namespace.
    """

    node: Node
    residents: Mapping[PodName, Resident]
    used: Counter[str]
    copy_of: Callable[[PodName], str]
    is_ours: Callable[[PodName], bool]
    space: Callable[[str], Labels | None]


class Wish(NamedTuple):
    """A pod that looks for a node, as it is `above` and as it would be `below`."""

    above: Pod
    below: Pod
    priority: int


class Budget(NamedTuple):
    """A PodDisruptionBudget: whose it is, and how many of those may go; `disrupted` are on their way already."""

    namespace: str
    covers: Test
    allowed: int
    disrupted: frozenset[str]


class Choice(NamedTuple):
    """A real node, and who has to go from it, the most important first. The lowest `cost` is the best choice.

    `names` are theirs below, `fresh` are those of them that are not going anyway, `violations` is how many of these no
    disruption budget allows.
    """

    node: str
    victims: tuple[Resident, ...]
    names: frozenset[PodName]
    fresh: tuple[Resident, ...]
    violations: int
    cost: tuple[float, ...]


def is_ahead(nominee: Nominee, wish: Wish) -> bool:
    """Report whether a nominee is another pod, and one that does not yield to this."""
    return nominee.uid != wish.above.uid and nominee.priority >= wish.priority


def counted(wish: Wish, above: Above, uids: Container[str]) -> frozenset[PodName]:
    """Return those of some residents that a topology spread constraint of a pod counts, above.

    What is in other domains is not seen here, so how many of them may stay is the kube-scheduler's to say.
    """
    constraints = wish.above.spec.get("topologySpreadConstraints") or ()
    selectors = (one.get("labelSelector") for one in constraints if one.get("whenUnsatisfiable") != "ScheduleAnyway")
    tests = [label_test(selector) for selector in selectors]
    found = ((name, one.pod) for name, one in above.residents.items() if tests and one.pod.uid in uids)
    own = wish.above.namespace
    return frozenset(name for name, pod in found if pod.namespace == own and any(test(pod.labels) for test in tests))


def budget_of(manifest: Manifest) -> Budget:
    """Read a PodDisruptionBudget; without a selector, or with an empty one, it covers no pod."""
    selector, status = manifest["spec"].get("selector"), manifest.get("status") or {}
    covers = label_test(None if is_empty(selector) else selector)
    gone = frozenset(status.get("disruptedPods") or ())
    return Budget(metadata(manifest)["namespace"], covers, status.get("disruptionsAllowed") or 0, gone)


def is_possible(wish: Wish, ground: Ground, above: Above) -> bool:
    """Report whether there is a set of pods that would do, without choosing one."""
    search = _Search.begin(wish, ground, above)
    return search is not None and any(search.would_do(node) for node in search.nodes())


def choices(
    wish: Wish, ground: Ground, above: Above, budgets: Iterable[Budget], needed: frozenset[PodName] = frozenset()
) -> Iterator[Choice | None]:
    """Return what could be chosen, a real node at a time: None for one that does not do.

    `needed` are pods that have to go for a reason that is not seen here.
    """
    search = _Search.begin(wish, ground, above, needed)
    if search is None:
        return
    found: list[int] = []
    enough = max(_ENOUGH, len(ground.snapshot.nodes) // _SHARE)
    for node in search.nodes():
        choice = search.choice(node, budgets)
        yield choice
        found += [choice.violations] if choice is not None else []
        if len(found) >= enough and 0 in found:
            return


@dataclass(slots=True)
class _Search:
    """What is the same for all nodes: who may go, who is going anyway, who has to, and how much room is left above."""

    wish: Wish
    ground: Ground
    above: Above
    lesser: dict[PodName, Resident]
    doomed: frozenset[PodName]
    forced: frozenset[PodName]
    left: Counter[str]
    judges: list[Judge] | None
    """How nodes are judged, where they do not depend on each other."""
    weight: int = 1
    effort: int = 0

    @classmethod
    def begin(
        cls, wish: Wish, ground: Ground, above: Above, needed: frozenset[PodName] = frozenset()
    ) -> "_Search | None":
        """Look at what is the same for all nodes; None where none can do."""
        residents = above.residents
        lesser = {name: one for name, one in residents.items() if one.priority < wish.priority and above.is_ours(name)}
        asks = bool(wish.above.ports or wish.above.apart)
        beside = ((name, one.pod) for name, one in residents.items() if asks or one.pod.apart)
        in_the_way = frozenset(name for name, pod in beside if _excludes(wish.above, pod, above))
        prepared = prepare(wish.below, ground.snapshot)
        if not lesser or not in_the_way <= lesser.keys() or isinstance(prepared, Refusal):
            return None
        alone = {name for name, _ in prepared} <= ALONE
        going = {name for one in ground.nominees().values() if one.nominee for name in one.nominee.victims}
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
        """Return the nodes that may do, as long as that does not take too long."""
        judges = self._judges()
        for node in tuple(self.ground.snapshot.nodes.values()):
            if self.effort > _MOST:
                return
            reasons = first_reasons(node, judges)
            if not reasons or is_curable(self.wish.below, node, reasons):
                yield node

    def would_do(self, node: Node) -> bool:
        """Report whether the pod fits on a node once all have gone that may."""
        there = self._there(node)
        if not (there or self.forced or _is_short(self.left)):
            return False
        with _Cleared(self.ground, (*there, *self.forced), self.wish, node):
            return self._fits(node)

    def choice(self, node: Node, budgets: Iterable[Budget]) -> Choice | None:
        """Return who has to go from a node, None where that does not help."""
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
        """Report whether the pod fits with another one back in its place, where that stays then."""
        cleared.put_back(name)
        if self._fits(node):
            return True
        cleared.take(name)
        return False

    def _made(self, node: Node, names: list[PodName], violating: frozenset[PodName]) -> Choice | None:
        fresh = tuple(self.lesser[name] for name in names if name not in self.doomed)
        if not names:
            return None
        violations = sum(name in violating and name not in self.doomed for name in names)
        victims = tuple(self.lesser[name] for name in names)
        return Choice(node.name, victims, frozenset(names), fresh, violations, (violations, *_cost(fresh)))

    def _there(self, node: Node) -> tuple[PodName, ...]:
        """Return the pods on a node that may go: mirrors of residents, and nothing that only has such a name."""
        copy_of = self.above.copy_of
        return tuple(name for name, pod in node.pods.items() if name in self.lesser and copy_of(name) == pod.uid)

    def _left_without(self, going: Iterable[PodName]) -> Counter[str]:
        """Return what is left above once these have gone."""
        left = self.left.copy()
        for name in going:
            left.update(taken_by(self.lesser[name].pod))
        return left

    def _judges(self) -> list[Judge]:
        """Return how nodes are judged as pods are now."""
        self.effort += self.weight
        if self.judges is not None:
            return self.judges
        prepared = prepare(self.wish.below, self.ground.snapshot)
        return [_never] if isinstance(prepared, Refusal) else [one.judge for _, one in prepared]

    def _fits(self, node: Node) -> bool:
        return not first_reasons(node, self._judges())

    def _importance(self, name: PodName) -> tuple[int, str, list[int], PodName]:
        """Order pods as the kube-scheduler does: those of higher priority first, then those that have run longest.

        Of those that started in the same second the smaller ones come first, so that fewer have to go.
        """
        one = self.lesser[name]
        size = [one.pod.requests.get(resource, 0) for resource in self.wish.above.requests]
        return -one.priority, one.started or "~", size, name

    def _violating(self, ranked: list[PodName], budgets: Iterable[Budget]) -> frozenset[PodName]:
        """Return those that no disruption budget has left, where all before them in the order go."""
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
    """A ground without some pods, and without nominees on a node that yield to a pod; used with `with`."""

    def __init__(self, ground: Ground, names: Iterable[PodName], wish: Wish, node: Node) -> None:
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
        """Put a pod that was taken off its node back there."""
        pod, node = self._taken.pop(name)
        self._ground.snapshot.add(pod, node)


def _left(wish: Wish, ground: Ground, above: Above) -> Counter[str]:
    """Return what the virtual node would have left of what a pod asks for, negative where it is short of it.

    Nominees that do not yield count, as they do for the kube-scheduler.
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
    """Report whether more is asked for than there is, or would be if a pod stayed."""
    amounts = taken_by(pod) if pod is not None else {}
    return any(amount < amounts.get(name, 0) for name, amount in left.items())


def _excludes(pod: Pod, other: Pod, above: Above) -> bool:
    """Report whether two pods cannot be on one virtual node, by host ports or by anti-affinity."""
    if any(collide(one, each) for one in pod.ports for each in other.ports):
        return True
    keys, space = above.node.labels, above.space
    if any(term.key in keys and term.matches(other, space(other.namespace)) for term in pod.apart):
        return True
    return any(term.key in keys and term.matches(pod, space(pod.namespace)) for term in other.apart)


def _cost(victims: tuple[Resident, ...]) -> tuple[float, ...]:
    """Return what the kube-scheduler compares, in its order: the least is the best."""
    if not victims:
        return (-inf, 0, 0, -inf)
    highest = max(one.priority for one in victims)
    earliest = min(_moment(one.started) for one in victims if one.priority == highest)
    return highest, sum(one.priority + _LOWEST for one in victims), len(victims), -earliest


def _moment(started: str) -> float:
    """Return when a pod started, in seconds; one that has not starts later than any."""
    with suppress(ValueError):
        return moment_of(started).timestamp()
    return inf


def _never(_node: Node) -> tuple[str, ...]:
    return ("never",)
