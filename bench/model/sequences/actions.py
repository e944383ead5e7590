"""Actions in a simulation: of users, kubelets and other owners, and faults of networks, engine and topology file.

An action is a sort and a number that determines its object and its details; an action that does not apply has no
effect. So a sequence stays valid if actions are removed from it, and the same seed always gives the same sequence.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

from bench.kit.oracles import ENDED, upper_uid_of
from bench.model.sequences.connections import Fault, WatchConnection
from bench.model.sequences.contents import DRIFTED, content, endpoints
from bench.model.sequences.model import (
    ACCOUNTS,
    CLAIMS,
    LABEL,
    LOWERS,
    MAPS,
    PODS,
    SECRETS,
    SERVICES,
    SLICES,
    SPACE,
    Model,
)
from bench.model.sequences.simulation import CLUSTERS, OWNER, Simulation
from tensile.names import OWNER as OWNER_LABEL
from tensile.names import UPPER_UID
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Manifest,
    Ref,
    metadata,
    uid,
)

FAULTS: tuple[Fault, ...] = ("dropped", "lost", "late", "slow", "conflict", "throttled", "denied")
RANGE = 120
"""The upper bound of the numbers of actions: it has every small divisor."""
SORTS = (
    "pod", "pod", "pod", "pod", "delete", "delete", "again", "again", "serve", "change", "change", "unmake",
    "run", "run", "run", "end", "kill", "evict", "drift", "unseat", "stranger", "stranger", "leave",
    "fault", "fault", "fault", "fault", "hold", "deaf", "repeat", "relist", "release", "away", "back", "back",
    "slow", "miss", "anew", "linger", "crash", "crash", "edit", "wait", "wait", "wait", "wait", "wait",
)  # fmt: skip
_WATCHES = ("hold", "slow", "deaf", "miss", "repeat", "release")
_EDITABLE = ((CONFIG_MAP, MAPS[0]), (CONFIG_MAP, MAPS[1]), (SECRET, SECRETS[0]), (SERVICE, SERVICES[0]),
             (ENDPOINT_SLICE, SLICES[0]), (SERVICE_ACCOUNT, ACCOUNTS[0]), (POD, PODS[0]), (POD, PODS[1]))  # fmt: skip
_ORIGINALS = (*_EDITABLE[:6], (CLAIM, CLAIMS[0]))


class Action(NamedTuple):
    """One action: its sort, and a number that determines its object and its details."""

    sort: str
    number: int

    def __str__(self) -> str:
        return f"{self.sort}:{self.number}"


def random_actions(seed: int, most: int = 30) -> list[Action]:
    """Return the sequence of a seed; the same seed gives the same sequence."""
    random = Random(seed)
    return [Action(random.choice(SORTS), random.randrange(RANGE)) for _ in range(random.randint(most // 3, most))]


def read(texts: Iterable[str]) -> list[Action]:
    """Parse actions in their printed form, SORT:NUMBER."""
    return [Action(sort, int(number)) for sort, _, number in (one.partition(":") for one in texts)]


class ActionRunner:
    """Runs actions on a simulation, and informs the model of what it cannot see there."""

    def __init__(self, simulation: Simulation, model: Model) -> None:
        self.simulation = simulation
        self.model = model
        self._sorts: dict[str, Callable[[int], object]] = {
            "pod": lambda number: self._make(PODS[number % 3], number // 3),
            "again": self._again,
            "anew": self._anew,
            "serve": self._serve,
            "change": self._change,
            "run": lambda number: self._phase(number, "Running"),
            "end": lambda number: self._phase(number, ("Succeeded", "Failed")[number % 2]),
            "kill": self._kill,
            "drift": self._drift,
            "stranger": self._stranger,
            "leave": self._leave,
            "fault": self._fault,
            "linger": self._linger,
            "away": lambda number: simulation.disconnect(
                CLUSTERS[number % 3], (3.0, 11.0, 41.0, 600.0)[number // 3 % 4]
            ),
            "edit": self._edit_file,
        }
        self._longer = {
            "delete": self._delete,
            "unmake": self._unmake,
            "evict": self._evict,
            "unseat": self._unseat,
            "relist": lambda number: simulation.relist(CLUSTERS[number % 3]),
            "back": lambda number: simulation.reconnect(CLUSTERS[number % 3]),
            "crash": self._crash,
            "steps": simulation.pause,
            "wait": lambda number: simulation.let_time_pass((0.05, 0.3, 1.0, 7.0)[number % 4]),
        }

    async def run(self, action: Action) -> None:
        """Carry out one action, and let a little time pass."""
        if action.sort in self._longer:
            await self._longer[action.sort](action.number)
        elif action.sort in _WATCHES:
            self._watches(action)
        else:
            self._sorts[action.sort](action.number)
        if action.sort != "steps":
            await self.simulation.pause(action.number % 5)

    # Actions of users.

    def _make(self, name: str, number: int) -> None:
        """Bind a pod that refers to other objects, and create those that are missing."""
        if self._find(UPPER, POD, name) is not None:
            return
        volumes: list[Manifest] = [{"name": "m", "configMap": {"name": MAPS[number % 2]}}]
        self._provide(CONFIG_MAP, MAPS[number % 2], {"data": {"k": "0"}})
        if number // 2 % 2:
            volumes.append({"name": "s", "secret": {"secretName": SECRETS[0]}})
            self._provide(SECRET, SECRETS[0], {"type": "Opaque", "data": {"k": "MA=="}})
        if number % 5 == 0:
            volumes.append({"name": "c", "persistentVolumeClaim": {"claimName": CLAIMS[0]}})
            self._provide(CLAIM, CLAIMS[0], _claim(("goes", "stays")[number // 5 % 2]))
        spec: Manifest = {
            "nodeName": LOWERS[number // 4 % 2],
            "containers": [{"name": "c", "image": "app:1"}],
            "volumes": volumes,
            "restartPolicy": "Never" if number % 7 == 0 else "Always",
        }
        if number % 3 == 0:
            spec["serviceAccountName"] = ACCOUNTS[0]
            self._provide(SERVICE_ACCOUNT, ACCOUNTS[0], {"imagePullSecrets": [{"name": "pull"}]})
        meta = {**_named(name), "labels": {LABEL: "0"}}
        self.simulation.clusters[UPPER].place(POD, {"metadata": meta, "spec": spec})
        self.model.made()

    def _provide(self, kind: Kind, name: str, body: Manifest) -> None:
        if self._find(UPPER, kind, name) is None:
            meta = {**_named(name), **body.pop("metadata", {})}
            self.simulation.clusters[UPPER].place(kind, {"metadata": meta, **body})

    async def _delete(self, number: int) -> None:
        """Delete a pod as kubectl does, sometimes by force."""
        await self._ask(UPPER, POD, PODS[number % 3], (None, 5, None, 0)[number // 3 % 4])

    def _again(self, number: int) -> None:
        """Replace a pod immediately by another with its name."""
        name = PODS[number % 3]
        if self._find(UPPER, POD, name) is not None:
            self.simulation.clusters[UPPER].vanish(_ref(UPPER, POD, name))
            self._make(name, number // 3)

    def _anew(self, number: int) -> None:
        """Replace a pod and its claim, even if that is in use, immediately by others with their names."""
        for kind, name in ((POD, PODS[number % 3]), (CLAIM, CLAIMS[0])):
            if self._find(UPPER, kind, name) is not None:
                self.simulation.clusters[UPPER].vanish(_ref(UPPER, kind, name))
        self._make(PODS[number % 3], number // 3)

    def _serve(self, number: int) -> None:
        """Create a Service and its EndpointSlice."""
        ports = [{"name": "http", "port": 80 + number % 3, "protocol": "TCP"}]
        spec = {"type": "ClusterIP", "clusterIP": "10.0.0.1", "ports": ports, "selector": {"app": "x"}}
        self._provide(SERVICE, SERVICES[0], {"spec": spec})
        marks = {"kubernetes.io/service-name": SERVICES[0]}
        body = {"metadata": {"labels": marks}, "addressType": "IPv4", "endpoints": endpoints(number), "ports": []}
        self._provide(ENDPOINT_SLICE, SLICES[0], body)

    def _change(self, number: int) -> None:
        """Change the content of an upper object."""
        self._edit(UPPER, *_EDITABLE[number % len(_EDITABLE)], number)

    async def _unmake(self, number: int) -> None:
        """Delete an object that pods may need; every other time it is recreated immediately."""
        kind, name = _ORIGINALS[number % len(_ORIGINALS)]
        found = self._find(UPPER, kind, name)
        await self._ask(UPPER, kind, name)
        if number % 2 and found is not None and self._find(UPPER, kind, name) is None:
            meta = {key: value for key, value in metadata(found).items() if key in ("name", "namespace", "labels")}
            self.simulation.clusters[UPPER].place(kind, {**found, "metadata": meta})

    # Actions in lower clusters.

    def _phase(self, number: int, phase: str) -> None:
        """Write a pod's status as its kubelet does; a pod that ended keeps its phase."""
        for lower, found in self._mirrors(PODS[number % 3]):
            if (found.get("status") or {}).get("phase") not in ENDED and found["spec"].get("nodeName"):
                ready = [{"type": "Ready", "status": str(phase == "Running")}]
                status = {"phase": phase, "conditions": ready}
                self.model.phases.setdefault(upper_uid_of(found), set()).add(phase)
                self._alter(lower, POD, PODS[number % 3], {"status": status})

    def _kill(self, number: int) -> None:
        """Remove a lower pod whose upper pod was not deleted."""
        for lower, found in self._mirrors(PODS[number % 3]):
            self.model.killed.add(upper_uid_of(found))
            self.simulation.clusters[lower].vanish(_ref(lower, POD, PODS[number % 3]))

    async def _evict(self, number: int) -> None:
        """Delete a lower pod as another client."""
        for lower, found in self._mirrors(PODS[number % 3]):
            self.model.killed.add(upper_uid_of(found))
            await self._ask(lower, POD, PODS[number % 3])

    def _drift(self, number: int) -> None:
        """Edit a mirrored object in the lower cluster."""
        kind, name = _EDITABLE[number % len(_EDITABLE)]
        for lower in LOWERS:
            if self.model.ours(lower, kind, name):
                self._edit(lower, kind, name, DRIFTED)

    async def _unseat(self, number: int) -> None:
        """Delete a mirrored object in the lower cluster."""
        kind, name = _ORIGINALS[number % len(_ORIGINALS)]
        for lower in LOWERS:
            found = self.model.ours(lower, kind, name)
            if found:
                self.model.killed.add(upper_uid_of(found))
                await self._ask(lower, kind, name)

    def _stranger(self, number: int) -> None:
        """Create another owner's object with an unused name in a lower cluster, sometimes with forged marks."""
        every = (*_ORIGINALS, (POD, PODS[0]), (POD, PODS[1]), (POD, PODS[2]))
        kind, name = every[number % len(every)]
        lower = LOWERS[number // 2 % 2]
        if self._find(lower, kind, name) is None:
            if self.simulation.find(Ref(lower, NAMESPACE, "", SPACE)) is None:
                self._put_stranger(lower, NAMESPACE, {"metadata": {"name": SPACE}})
            meta = {**_named(name), **_forged(number // 4 % 3)}
            self._put_stranger(lower, kind, {**_body(kind), "metadata": meta})

    def _put_stranger(self, lower: str, kind: Kind, manifest: Manifest) -> None:
        stored = self.simulation.clusters[lower].place(kind, manifest)
        meta = metadata(stored)
        self.model.strangers[Ref(lower, kind, meta.get("namespace", ""), meta["name"])] = stored

    def _leave(self, number: int) -> None:
        """Delete another owner's object."""
        found = [ref for ref in sorted(self.model.strangers) if ref.kind != NAMESPACE]
        if found:
            ref = found[number % len(found)]
            self.simulation.clusters[ref.cluster].vanish(ref)
            del self.model.strangers[ref]

    # Faults.

    def _fault(self, number: int) -> None:
        """Let one of the next writes fail."""
        self.simulation.connections[CLUSTERS[number % 3]].faults.append(FAULTS[number // 3 % len(FAULTS)])

    def _linger(self, number: int) -> None:
        """Let pods of a lower cluster stay terminating, or let them end again."""
        controllers = self.simulation.controllers[LOWERS[number % 2]]
        controllers.keeps_terminating_pods = not controllers.keeps_terminating_pods
        controllers.enqueue_all()

    def _edit_file(self, number: int) -> None:
        """Edit the topology file."""
        self.model.is_edited = True
        self.simulation.reload(number)

    def _watches(self, action: Action) -> None:
        """Make watches late, lossy or repetitive; or let all deliver what they held back."""
        lines = self.simulation.watch_connections
        if action.sort in ("slow", "miss"):
            lines = [line for line in lines if line.feed.cluster == CLUSTERS[action.number % 3]]
        elif action.sort != "release":
            lines = [lines[action.number * 7 % len(lines)]]
        for line in lines:
            _disturb(line, action.sort)

    async def _crash(self, _number: int) -> None:
        """End the engine at any point of its work, and start another."""
        await self.simulation.crash()
        await self.simulation.start()

    def _mirrors(self, name: str) -> list[tuple[str, Manifest]]:
        """Return the engine's lower pods of a name, and their lower clusters."""
        found = [(lower, self.model.ours(lower, POD, name)) for lower in LOWERS]
        return [(lower, pod) for lower, pod in found if pod]

    def _find(self, cluster: str, kind: Kind, name: str) -> Manifest | None:
        return self.simulation.find(_ref(cluster, kind, name))

    async def _ask(self, cluster: str, kind: Kind, name: str, grace: int | None = None) -> None:
        """Delete an object, if it exists, with a single request."""
        found = self._find(cluster, kind, name)
        if found is not None:
            await self.simulation.clusters[cluster].delete(_ref(cluster, kind, name), uid=uid(found), grace=grace)

    def _edit(self, cluster: str, kind: Kind, name: str, number: int) -> None:
        if self._find(cluster, kind, name) is not None:
            self._alter(cluster, kind, name, content(kind, number))

    def _alter(self, cluster: str, kind: Kind, name: str, change: Manifest) -> None:
        def lay_over(found: Manifest) -> None:
            """Merge a change into an object, two levels deep."""
            for section, value in change.items():
                found[section] = {**(found.get(section) or {}), **value} if section in ("spec", "metadata") else value
            if "labels" in change.get("metadata", {}):
                found["metadata"]["labels"] = {**known, **change["metadata"]["labels"]}

        seen = self._find(cluster, kind, name)
        assert seen is not None
        known = metadata(seen).get("labels") or {}
        self.simulation.clusters[cluster].alter(_ref(cluster, kind, name), lay_over)


def _disturb(watch: WatchConnection, how: str) -> None:
    """Disturb a watch as an action requires."""
    match how:
        case "hold" | "slow":
            watch.is_held = True
        case "deaf" | "miss":
            watch.drops_events = True
        case "repeat":
            watch.repeat()
        case _:
            watch.is_held = False
            watch.deliver()


def _claim(storage_class: str) -> Manifest:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}, "spec": spec}


def _body(kind: Kind) -> Manifest:
    """Return the fields that another owner's object needs to be valid."""
    match kind.name:
        case "Pod":
            return {"spec": {"containers": [{"name": "c", "image": "other:1"}], "nodeName": "n1"}}
        case "Service":
            return {"spec": {"type": "ClusterIP", "ports": []}}
        case "EndpointSlice":
            return {"addressType": "IPv4", "endpoints": [], "ports": []}
        case "PersistentVolumeClaim":
            return _claim("other") | {"status": {"phase": "Bound"}}
    return {}


def _forged(how: int) -> Manifest:
    """Return no ownership marks, the label alone, or all marks, written by another client."""
    notes = {UPPER_UID: "somebody's"} if how > 1 else {}
    return {"labels": {OWNER_LABEL: OWNER.mark}, "annotations": notes} if how else {}


def _named(name: str) -> Manifest:
    return {"name": name, "namespace": SPACE}


def _ref(cluster: str, kind: Kind, name: str) -> Ref:
    return Ref(cluster, kind, SPACE, name)
