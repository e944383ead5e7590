"""What somebody does to the clusters, at random, and what has to be in the end, whatever went wrong meanwhile.

The model knows nothing of how the engine works: it holds what was asked for above and what others have below, and says
which objects there have to be. A pod that somebody killed below may have been told as running above or not, so that it
may be made anew or be called lost: both are right, and nothing else is.
"""

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from bench import histories
from bench.oracles import ENDED, upper_uid_of
from bench.sequences.stage import LOWER, OWNER, SPACE, Fault, Stage
from tensile.names import OWNER as MARK
from tensile.objects import CONFIG_MAP, POD, UPPER, Kind, Manifest, Ref, labels, uid

if TYPE_CHECKING:
    from collections.abc import Callable

PODS, MAPS = ("p0", "p1", "p2"), ("m0", "m1")
FAULTS: tuple[Fault, ...] = ("dropped", "lost", "conflict", "throttled")
LONG = 900.0
"""Seconds in which everything that rests has been tried again."""


class Deed(NamedTuple):
    """One thing that happens: its sort, and a number that says to what, and how."""

    sort: str
    number: int


class Play:
    """Carries deeds out on a stage, and knows what has to come of them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.killed: set[str] = set()
        self.strangers: dict[Ref, Manifest] = {}
        self.sorts: dict[str, Callable[[int], object]] = {
            "pod": self._pod,
            "change": self._change,
            "run": lambda number: self._phase(number, "Running"),
            "end": lambda number: self._phase(number, ("Succeeded", "Failed")[number % 2]),
            "kill": self._kill,
            "drift": self._drift,
            "stranger": self._stranger,
            "hold": stage.hold,
            "release": lambda _: stage.release(),
            "fault": self._fault,
        }

    async def carry_out(self, deed: Deed) -> None:
        """Do one thing, and let a little time pass."""
        if deed.sort == "delete":
            await self._delete(deed.number)
        elif deed.sort == "crash":
            await self.stage.crash()
            await self.stage.start()
        elif deed.sort == "wait":
            await self.stage.rest((0.05, 1.0, 60.0)[deed.number % 3])
        else:
            self.sorts[deed.sort](deed.number)
        await self.stage.pause(deed.number % 4)

    # What somebody does above.

    def _pod(self, number: int) -> None:
        """Make a pod that refers to a ConfigMap, and that, where they are not there."""
        name, needed = PODS[number % 3], MAPS[number % 2]
        if self.stage.upper.find(CONFIG_MAP, SPACE, needed) is None:
            self.stage.upper.place(CONFIG_MAP, {"metadata": _named(needed), "data": {"k": "0"}})
        if self.stage.upper.find(POD, SPACE, name) is None:
            volumes = [{"name": "v", "configMap": {"name": needed}}]
            spec = {"nodeName": LOWER, "containers": [{"name": "c", "image": "app:1"}], "volumes": volumes}
            self.stage.upper.place(POD, {"metadata": _named(name), "spec": spec})

    async def _delete(self, number: int) -> None:
        """Ask for a pod's end, as kubectl does."""
        found = self.stage.upper.find(POD, SPACE, PODS[number % 3])
        if found is not None:
            await self.stage.upper.delete(_ref(UPPER, POD, PODS[number % 3]), uid=uid(found))

    def _change(self, number: int) -> None:
        """Change a ConfigMap's data."""
        if self.stage.upper.find(CONFIG_MAP, SPACE, MAPS[number % 2]):
            change = lambda found: found.update(data={"k": str(number)})  # noqa: E731 - one line of a change
            self.stage.upper.alter(_ref(UPPER, CONFIG_MAP, MAPS[number % 2]), change)

    # What happens below.

    def _phase(self, number: int, phase: str) -> None:
        """Have a kubelet say how a pod is; one that ended stays so."""
        found = self._ours(POD, PODS[number % 3])
        if found and (found.get("status") or {}).get("phase") not in ENDED:
            ready = [{"type": "Ready", "status": str(phase == "Running")}]
            change = lambda pod: pod.update(status={"phase": phase, "conditions": ready})  # noqa: E731
            self.stage.lower.alter(_ref(LOWER, POD, PODS[number % 3]), change)

    def _kill(self, number: int) -> None:
        """Have a lower pod go without anybody having asked for it above."""
        found = self._ours(POD, PODS[number % 3])
        if found:
            self.killed.add(upper_uid_of(found))
            self.stage.lower.vanish(_ref(LOWER, POD, PODS[number % 3]))

    def _drift(self, number: int) -> None:
        """Edit a copy."""
        if self._ours(CONFIG_MAP, MAPS[number % 2]):
            change = lambda found: found.update(data={"k": "drifted"})  # noqa: E731
            self.stage.lower.alter(_ref(LOWER, CONFIG_MAP, MAPS[number % 2]), change)

    def _stranger(self, number: int) -> None:
        """Put something of somebody else under a name that is free below."""
        kind, name = (POD, PODS[number % 3]) if number % 5 == 0 else (CONFIG_MAP, MAPS[number % 2])
        if self.stage.lower.find(kind, SPACE, name) is None and number % 2:
            body: Manifest = {"metadata": _named(name)}
            body |= {"spec": {"containers": [{"name": "c", "image": "other:1"}]}} if kind == POD else {}
            self.strangers[_ref(LOWER, kind, name)] = self.stage.lower.place(kind, body)

    def _fault(self, number: int) -> None:
        """Have one of the next writes fail."""
        way = self.stage.ways[UPPER if number % 2 else LOWER]
        way.faults.append(FAULTS[number // 2 % len(FAULTS)])

    def _ours(self, kind: Kind, name: str) -> Manifest | None:
        found = self.stage.lower.find(kind, SPACE, name)
        return found if found and labels(found).get(MARK) == OWNER.mark else None

    # What has to be in the end.

    def wrong(self) -> list[str]:
        """Say in what the clusters are not as they have to be."""
        said = [*self.stage.heard.defects, *histories.lived_twice(self.stage.sights)]
        said += [words for way in self.stage.ways.values() for words in way.unfenced]
        for ref, before in self.strangers.items():
            if self.stage.lower.find(ref.kind, ref.namespace, ref.name) != before:
                said.append(f"{ref} is a stranger's and was touched")
        needed = {words for name in PODS for words in self._wrong_pod(name, said)}
        for name in MAPS:
            said += self._wrong_map(name, is_needed=name in needed)
        return said

    def _wrong_pod(self, name: str, said: list[str]) -> list[str]:
        """Say what is wrong about a pod; gives the ConfigMaps that have to be below for it."""
        above, below = self.stage.upper.find(POD, SPACE, name), self._ours(POD, name)
        if above is None:
            said += [f"{name} is gone above and there below"] if below else []
            return []
        needed = [one["configMap"]["name"] for one in above["spec"]["volumes"] if "configMap" in one]
        phase = above["status"].get("phase")
        if "deletionTimestamp" in above["metadata"]:
            said.append(f"{name} does not come to its end")
        blocked = [_ref(LOWER, POD, name), *(_ref(LOWER, CONFIG_MAP, one) for one in needed)]
        if below is None:
            is_lost = uid(above) in self.killed and phase in ENDED
            said += [] if is_lost or self.strangers.keys() & set(blocked) else [f"{name} is not below, {phase} above"]
            return []
        if upper_uid_of(below) != uid(above):
            said.append(f"{name} below is of another pod")
        if phase != below["status"].get("phase"):
            said.append(f"{name} is {phase} above and {below['status'].get('phase')} below")
        return needed

    def _wrong_map(self, name: str, *, is_needed: bool) -> list[str]:
        above, below = self.stage.upper.find(CONFIG_MAP, SPACE, name), self._ours(CONFIG_MAP, name)
        if is_needed and _ref(LOWER, CONFIG_MAP, name) not in self.strangers:
            same = above is not None and below is not None and above["data"] == below["data"]
            return [] if same else [f"{name} is not below as it is above"]
        return [f"{name} is below for nobody"] if below and not is_needed else []


async def played(deeds: list[Deed]) -> list[str]:
    """Carry a sequence out with an engine at work, let everything come to rest, and say what is wrong then."""
    stage = Stage()
    play = Play(stage)
    await stage.start()
    for deed in deeds:
        await play.carry_out(deed)
    stage.release()
    for way in stage.ways.values():
        way.faults.clear()
    await stage.rest(LONG)
    wrong = play.wrong()
    await stage.crash()
    return wrong


SORTS = ("pod", "pod", "pod", "delete", "delete", "change", "run", "run", "end", "kill", "drift", "stranger",
         "fault", "fault", "hold", "release", "wait", "wait", "wait", "crash")  # fmt: skip


def thought_up(seed: int, most: int = 30) -> list[Deed]:
    """Think up a sequence; the same seed gives the same."""
    die = Random(seed)
    return [Deed(die.choice(SORTS), die.randrange(60)) for _ in range(die.randint(1, most))]


def _named(name: str) -> Manifest:
    return {"name": name, "namespace": SPACE}


def _ref(cluster: str, kind: Kind, name: str) -> Ref:
    return Ref(cluster, kind, SPACE, name)
