"""Random scenes of preemption, the same for any seed: nodes of various sizes, pods on them, and a preemptor.

A scene can be built twice: as real nodes behind virtual ones, and as the same nodes in one cluster. Scenes avoid an
intended difference: a virtual node is one host, so a host port that is used on any of its real nodes is used on all.
The same holds for pods with anti-affinity.
"""

from dataclasses import dataclass
from random import Random

CLASSES = {"low": 100, "mid": 500, "high": 1000, "never": 1000, "top": 5000, "stranger": 1_000_000}
"""Priority classes by name; pods of `never` preempt no pods."""
PORT = 8080
SIZES = (1000, 2000, 3000, 4000, 6000, 8000)
AMOUNTS = (250, 500, 1000, 1500, 2000, 3000)
COMERS = (1000, 1500, 2000, 3000, 4000, 6000, 8000)
_STEP = 250
_MOST = 8
"""The most pods on a node."""
_CORDONED, _CROWDED, _COVERED, _LOOSE, _MARKED = 0.1, 0.8, 0.3, 0.3, 0.5
_PORT, _EXCLUSIVE = 0.15, 0.1
"""The probabilities that a node is cordoned, that nodes are full, that a pod has a budget, and so on."""


@dataclass(frozen=True)
class SceneNode:
    """A real node behind the virtual node `lower`; `cpu` is in thousandths."""

    name: str
    lower: str
    cpu: int
    cordoned: bool = False


@dataclass(frozen=True)
class Member:
    """A pod; `node` is its real node, "" for the preemptor.

    If a pod on a node is `exclusive`, it has the label of the anti-affinity; if the preemptor is, it has the
    anti-affinity.
    """

    name: str
    node: str
    cpu: int
    kind: str
    app: str = ""
    port: bool = False
    exclusive: bool = False

    @property
    def priority(self) -> int:
        """The value of its priority class."""
        return CLASSES[self.kind]


@dataclass(frozen=True)
class Scene:
    """The nodes and pods before, and the preemptor; `budgets` are the minimum numbers of pods by app."""

    places: tuple[SceneNode, ...]
    members: tuple[Member, ...]
    budgets: dict[str, int]
    comer: Member


SITUATIONS = {"fragments": 35, "full": 30, "fragments in vain": 15, "full in vain": 10, "room": 10}
"""The kinds of scenes, and how many of a hundred are of each.

The preemptor fits ("room"), or only by the sum of free capacity ("fragments"), or not even by that ("full"). With
"in vain", evicting all pods of lower priority would not help, or the preemptor may not preempt.
"""


def scene(random: Random, number: int, lowers: tuple[str, ...]) -> Scene:
    """Return a random scene behind one or two virtual nodes."""
    (wanted,) = random.choices(tuple(SITUATIONS), tuple(SITUATIONS.values()))
    while not is_same(made := _any(random, number, lowers)) or situation(made) != wanted:
        pass
    return made


def is_same(scene: Scene) -> bool:
    """Report whether it makes no difference to the preemptor that a virtual node is one host."""
    names = [place.name for place in scene.places]
    return all(
        any(fits(scene, name, gone, virtual=True) for name in names)
        == any(fits(scene, name, gone, virtual=False) for name in names)
        for gone in (frozenset[str](), _lesser(scene))
    )


def _lesser(scene: Scene) -> frozenset[str]:
    """Return the possible victims of the preemptor."""
    return frozenset(one.name for one in scene.members if one.priority < scene.comer.priority)


def situation(scene: Scene) -> str:
    """Return the kind of a scene, which neither scheduler knows."""
    names = [place.name for place in scene.places]
    if any(fits(scene, name, frozenset(), virtual=True) for name in names):
        return "room"
    lowers = {place.lower for place in scene.places}
    beside = [frozenset(place.name for place in scene.places if place.lower == lower) for lower in lowers]
    kind = "fragments" if any(_has_room(scene, nodes, frozenset()) for nodes in beside) else "full"
    helps = scene.comer.kind != "never" and any(fits(scene, name, _lesser(scene), virtual=True) for name in names)
    return kind if helps else f"{kind} in vain"


def _any(random: Random, number: int, lowers: tuple[str, ...]) -> Scene:
    """Return a random scene of any kind."""
    used = random.sample(lowers, random.randint(1, len(lowers)))
    places = tuple(
        SceneNode(f"s{number}-{lower}-{each}", lower, random.choice(SIZES), random.random() < _CORDONED)
        for lower in used
        for each in range(random.randint(2, 4))
    )
    crowded = random.random() < _CROWDED
    members: list[Member] = []
    for place in places:
        if not place.cordoned:
            members += _members(random, place, len(members), crowded=crowded)
    members = _marked(random, members, {place.name: place.lower for place in places})
    apps = {one.app: sum(one.app == other.app for other in members) for one in members if one.app}
    budgets = {app: random.randint(max(0, count - 1), count) for app, count in apps.items()}
    largest = max(place.cpu for place in places)
    kind = random.choices(("mid", "high", "top", "never"), (2, 5, 2, 1))[0]
    comer = Member(
        f"comer-{number}",
        "",
        min(random.choice(COMERS), largest + random.choice((0, 0, 0, 1000))),
        kind,
        port=random.random() < _PORT,
        exclusive=random.random() < _EXCLUSIVE,
    )
    return Scene(places, tuple(members), budgets, comer)


def _members(random: Random, place: SceneNode, first: int, *, crowded: bool) -> list[Member]:
    """Return random pods that fill a node, completely or in part."""
    left = place.cpu - (0 if crowded else random.randrange(0, place.cpu, _STEP))
    found: list[Member] = []
    while left >= AMOUNTS[0] and len(found) < _MOST:
        cpu = random.choice([amount for amount in AMOUNTS if amount <= left])
        kind = random.choices(("low", "mid", "high", "top", "stranger"), (8, 4, 3, 1, 2))[0]
        app = f"app-{random.randint(1, 2)}" if kind != "stranger" and random.random() < _COVERED else ""
        found.append(Member(f"m{first + len(found)}", place.name, cpu, kind, app))
        left -= cpu
        if random.random() < _LOOSE:
            break
    return found


def _marked(random: Random, members: list[Member], lowers: dict[str, str]) -> list[Member]:
    """Let one pod of the lowest priority behind each virtual node use the port, and one be exclusive, at random."""
    found = list(members)
    for field in ("port", "exclusive"):
        for lower in sorted(set(lowers.values())):
            free = [at for at, one in enumerate(found) if lowers[one.node] == lower and one.kind == "low"]
            if free and random.random() < _MARKED:
                at = random.choice(free)
                one = found[at]
                port, exclusive = one.port or field == "port", one.exclusive or field == "exclusive"
                found[at] = Member(one.name, one.node, one.cpu, one.kind, one.app, port, exclusive)
    return found


def fits(scene: Scene, node: str, gone: frozenset[str], *, virtual: bool) -> bool:
    """Report whether the preemptor fits on a real node after some pods were evicted.

    With `virtual` it has to fit on its virtual node as well, which is one host with the capacity of all its real nodes.
    """
    place = next(one for one in scene.places if one.name == node)
    beside = frozenset(one.name for one in scene.places if one.lower == place.lower)
    return (
        not place.cordoned
        and _has_room(scene, frozenset({node}), gone)
        and (not virtual or _has_room(scene, beside, gone))
    )


def needless(scene: Scene, node: str, gone: frozenset[str], *, virtual: bool) -> list[str]:
    """Return the evicted pods without whose eviction the preemptor would fit too; all of them if it has no node."""
    if not node:
        return sorted(gone)
    return sorted(name for name in gone if fits(scene, node, gone - {name}, virtual=virtual))


def _has_room(scene: Scene, nodes: frozenset[str], gone: frozenset[str]) -> bool:
    """Report whether nodes together have the capacity that the preemptor requests."""
    there = [one for one in scene.members if one.node in nodes and one.name not in gone]
    offered = sum(place.cpu for place in scene.places if place.name in nodes and not place.cordoned)
    collide = any((one.port and scene.comer.port) or (one.exclusive and scene.comer.exclusive) for one in there)
    return not collide and scene.comer.cpu <= offered - sum(one.cpu for one in there)
