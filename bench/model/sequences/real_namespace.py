"""A namespace on real control planes, in the form that the model expects, and the actions there.

Object names are those of every stage, whatever the names of the namespace and its nodes, so that the same model can be
used. There are no claims, because no driver provisions volumes on these clusters.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.kit.histories import PodEvent
from bench.kit.oracles import upper_uid_of
from bench.kit.rig import LOWERS
from bench.kit.sites import MERGE, Manifest, Refused
from bench.kit.trial_namespace import TrialNamespace
from bench.model.sequences.actions import Action
from bench.model.sequences.contents import DRIFTED, content, endpoints
from bench.model.sequences.history_checks import NamespaceHistory, violations
from bench.model.sequences.model import ACCOUNTS, LABEL, MAPS, PODS, SECRETS, SERVICES, SLICES, SPACE, Model
from tensile.names import OWNER, UPPER_UID
from tensile.objects import (
    CONFIG_MAP,
    ENDPOINT_SLICE,
    NODE,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Ref,
    labels,
    metadata,
    uid,
)
from tensile.sandbox.state import UPPER as ABOVE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KINDS = (POD, CONFIG_MAP, SECRET, SERVICE_ACCOUNT, SERVICE, ENDPOINT_SLICE)
WAITS = (0.05, 0.3, 1.0, 2.0)
_THINGS = ((CONFIG_MAP, MAPS[0]), (CONFIG_MAP, MAPS[1]), (SECRET, SECRETS[0]), (SERVICE_ACCOUNT, ACCOUNTS[0]),
           (SERVICE, SERVICES[0]), (ENDPOINT_SLICE, SLICES[0]))  # fmt: skip
_EDITABLE = (*_THINGS, (POD, PODS[0]), (POD, PODS[1]))


class Snapshot(NamedTuple):
    """The objects of a namespace at one moment, with the same names for every sequence, in the form of a simulation."""

    objects: dict[Ref, Manifest]
    pod_events: list[PodEvent]
    defects: tuple[str, ...] = ()
    connections: dict[str, Any] = {}  # noqa: RUF012 - it is never changed

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object."""
        return self.objects.get(ref)


class RealNamespace:
    """Runs actions in a namespace of real clusters, and informs the model of what cannot be seen there.

    `deleted` holds the UIDs of the upper objects that users have deleted, and a second set those of all objects that
    other owners ever had in the lower clusters.
    """

    def __init__(self, ns: TrialNamespace) -> None:
        self.ns = ns
        self.model = Model(ns.rig.mark)
        self.deleted: set[str] = set()
        self.strangers: set[str] = set()
        self._start = len(ns.rig.journal)
        self._sorts: dict[str, Callable[[int], Awaitable[object]]] = {
            "pod": lambda number: self._make(PODS[number % 3], number // 3),
            "delete": lambda number: self._delete(POD, PODS[number % 3], (None, 0)[number // 3 % 2]),
            "again": self._again,
            "serve": self._serve,
            "change": lambda number: self._edit(ABOVE, *_EDITABLE[number % len(_EDITABLE)], number),
            "unmake": self._unmake,
            "kill": lambda number: self._end(PODS[number % 3], 0),
            "evict": lambda number: self._end(PODS[number % 3], None),
            "drift": self._drift,
            "unseat": self._unseat,
            "stranger": self._stranger,
            "leave": self._leave,
            "wait": lambda number: asyncio.sleep(WAITS[number % len(WAITS)]),
        }

    @property
    def sorts(self) -> frozenset[str]:
        """The sorts of actions that are possible here."""
        return frozenset(self._sorts)

    async def run(self, action: Action) -> None:
        """Carry out one action; it has no effect if Kubernetes refuses it because of another client's write."""
        with suppress(Refused):
            await self._sorts[action.sort](action.number)
        await asyncio.sleep(action.number % 5 * 0.01)

    async def wrong(self) -> list[str]:
        """Return what is wrong at this moment."""
        snapshot = await self.snapshot()
        self.model.attach(snapshot)  # type: ignore[arg-type]
        return list(dict.fromkeys([*self.model.wrong(), *violations(self._history())]))

    async def snapshot(self) -> Snapshot:
        """Return a snapshot of all objects."""
        nodes = {node: lower for lower, node in self.ns.rig.nodes.items()}
        found: dict[Ref, Manifest] = {}
        for cluster in (ABOVE, *LOWERS):
            for kind in KINDS:
                for one in await self.ns.rig.sites[cluster].items(self._path(kind)):
                    place = Ref(_cluster(cluster), kind, SPACE, metadata(one)["name"])
                    found[place] = _plain(one, nodes if cluster == ABOVE else {})
        for node in await self.ns.rig.list_nodes():
            found[Ref(UPPER, NODE, "", nodes.get(metadata(node)["name"], ""))] = node
        return Snapshot(found, [one._replace(cluster=_cluster(one.cluster)) for one in self._own_pod_events()])

    def history_lines(self) -> list[str]:
        """Return the history of the pods and the engine's writes, one per line, for a person to read."""
        lines = [f"{one.cluster} {one.type} {_words(one.pod)}" for one in self._own_pod_events()]
        return lines + [f"{one.request} {one.request.uid} {one.fault} {one.status}" for one in self._history().writes]

    def _history(self) -> NamespaceHistory:
        writes = [one for one in self.ns.rig.journal.since(self._start) if self.ns.contains(one.request)]
        pod_events = self._own_pod_events()
        phases: dict[str, set[str]] = {}
        for pod_event in pod_events:
            if pod_event.cluster != ABOVE:
                phases.setdefault(upper_uid_of(pod_event.pod), set()).add(pod_event.pod["status"].get("phase", ""))
        self.model.phases = phases
        return NamespaceHistory(pod_events, writes, self.deleted, self.model.killed, self.strangers, phases)

    def _own_pod_events(self) -> list[PodEvent]:
        """Return the observed states of upper pods and of the engine's lower pods."""
        mark = self.ns.rig.mark
        return [one for one in self.ns.pod_events if one.cluster == ABOVE or labels(one.pod).get(OWNER) == mark]

    # Actions of users.

    async def _make(self, name: str, number: int) -> None:
        """Create a pod that refers to other objects, and those of them that are missing."""
        volumes: list[Manifest] = [{"name": "m", "configMap": {"name": MAPS[number % 2]}}]
        await self._provide(CONFIG_MAP, MAPS[number % 2], {"data": {"k": "0"}})
        if number // 2 % 2:
            volumes.append({"name": "s", "secret": {"secretName": SECRETS[0]}})
            await self._provide(SECRET, SECRETS[0], {"data": {"k": "MA=="}})
        spec: Manifest = {
            "nodeName": self.ns.rig.nodes[LOWERS[number // 4 % 2]],
            "containers": [{"name": "c", "image": "app:1"}],
            "volumes": volumes,
            "restartPolicy": "Never" if number % 7 == 0 else "Always",
            "terminationGracePeriodSeconds": 1,
        }
        if number % 3 == 0:
            spec["serviceAccountName"] = ACCOUNTS[0]
            await self._provide(SERVICE_ACCOUNT, ACCOUNTS[0], {"imagePullSecrets": [{"name": "pull"}]})
        await self._put(ABOVE, POD, name, {"metadata": {"labels": {LABEL: "0"}}, "spec": spec})

    async def _delete(self, kind: Kind, name: str, grace: int | None = None) -> None:
        answer = await self._remove(ABOVE, kind, name, grace)
        self.deleted.add(uid(answer) if metadata(answer).get("uid") else answer["details"]["uid"])

    async def _again(self, number: int) -> None:
        """Replace a pod immediately by another with its name."""
        await self._delete(POD, PODS[number % 3], 0)
        await self._make(PODS[number % 3], number // 3)

    async def _serve(self, number: int) -> None:
        """Create a Service and its EndpointSlice."""
        spec = {"ports": [{"name": "http", "port": 80 + number % 3, "protocol": "TCP"}]}
        await self._provide(SERVICE, SERVICES[0], {"spec": spec})
        marks = {"kubernetes.io/service-name": SERVICES[0]}
        body = {"metadata": {"labels": marks}, "addressType": "IPv4", "endpoints": endpoints(number), "ports": []}
        await self._provide(ENDPOINT_SLICE, SLICES[0], body)

    async def _unmake(self, number: int) -> None:
        """Delete an object that pods may need; every other time, a ConfigMap or Secret is recreated immediately."""
        kind, name = _THINGS[number % len(_THINGS)]
        await self._delete(kind, name)
        if number % 2 and kind in (CONFIG_MAP, SECRET):
            await self._put(ABOVE, kind, name, {"data": {"k": "Mg=="}})

    # Actions in lower clusters.

    async def _end(self, name: str, grace: int | None) -> None:
        """Delete a lower pod, by force or as kubectl does."""
        for lower in LOWERS:
            found = await self._ours(lower, POD, name)
            if found:
                self.model.killed.add(upper_uid_of(found))
                await self._remove(lower, POD, name, grace)

    async def _drift(self, number: int) -> None:
        """Edit a mirrored object in the lower cluster."""
        kind, name = _EDITABLE[number % len(_EDITABLE)]
        for lower in LOWERS:
            found = await self._ours(lower, kind, name)
            if found:
                await self._edit(lower, kind, name, DRIFTED, uid(found))

    async def _unseat(self, number: int) -> None:
        """Delete a mirrored object in the lower cluster."""
        kind, name = _THINGS[number % len(_THINGS)]
        for lower in LOWERS:
            if await self._ours(lower, kind, name):
                await self._remove(lower, kind, name)

    async def _stranger(self, number: int) -> None:
        """Create another owner's object with an unused name in a lower cluster, sometimes with forged marks."""
        kind, name = _THINGS[number % len(_THINGS)]
        lower = LOWERS[number // 6 % 2]
        body = {"metadata": self._forged(number // 12 % 3), **_body(kind)}
        made = await self._put(lower, kind, name, body)
        self.model.strangers[Ref(lower, kind, SPACE, name)] = _plain(made, {})
        self.strangers.add(uid(made))

    async def _leave(self, number: int) -> None:
        """Delete another owner's object."""
        found = sorted(self.model.strangers)
        if found:
            ref = found[number % len(found)]
            await self._remove(ref.cluster, ref.kind, ref.name)
            del self.model.strangers[ref]

    def _forged(self, how: int) -> Manifest:
        """Return no ownership marks, the label alone, or all marks, written by another client."""
        notes = {UPPER_UID: "somebody's"} if how > 1 else {}
        return {"labels": {OWNER: self.ns.rig.mark}, "annotations": notes} if how else {}

    async def _ours(self, lower: str, kind: Kind, name: str) -> Manifest | None:
        """Return the engine's lower object of a name."""
        with suppress(Refused):
            found = await self.ns.rig.sites[lower].call("GET", self._path(kind, name))
            is_marked = labels(found).get(OWNER) == self.ns.rig.mark
            return found if is_marked and uid(found) not in self.strangers else None
        return None

    async def _provide(self, kind: Kind, name: str, body: Manifest) -> None:
        with suppress(Refused):
            await self._put(ABOVE, kind, name, body)

    async def _put(self, cluster: str, kind: Kind, name: str, body: Manifest) -> Manifest:
        meta = {**body.get("metadata", {}), "name": name}
        return await self.ns.rig.sites[cluster].call("POST", self._path(kind), {**body, "metadata": meta})

    async def _edit(self, cluster: str, kind: Kind, name: str, number: int, of: str = "") -> None:
        """Change the content of the object of that name, or only of the one with that UID."""
        body = content(kind, number)
        fence = {"metadata": {**body.get("metadata", {}), "uid": of}} if of else {}
        await self.ns.rig.sites[cluster].call("PATCH", self._path(kind, name), {**body, **fence}, MERGE)

    async def _remove(self, cluster: str, kind: Kind, name: str, grace: int | None = None) -> Manifest:
        query = "" if grace is None else f"?gracePeriodSeconds={grace}"
        return await self.ns.rig.sites[cluster].call("DELETE", self._path(kind, name) + query)

    def _path(self, kind: Kind, name: str = "") -> str:
        return kind.path(self.ns.namespace, name)


def _body(kind: Kind) -> Manifest:
    """Return the fields that another owner's object needs to be valid."""
    match kind.name:
        case "Service":
            return {"spec": {"ports": [{"port": 1}]}}
        case "EndpointSlice":
            return {"addressType": "IPv4", "endpoints": [], "ports": []}
    return {}


def _plain(found: Manifest, nodes: dict[str, str]) -> Manifest:
    """Return an object in the form that it has in a list, with its node's name replaced as `nodes` maps it."""
    plain = {field: value for field, value in found.items() if field not in ("apiVersion", "kind")}
    node = (found.get("spec") or {}).get("nodeName")
    return {**plain, "spec": {**found["spec"], "nodeName": nodes[node]}} if node in nodes else plain


def _words(pod: Manifest) -> str:
    """Return the parts of a pod that matter in a history."""
    meta, phase = metadata(pod), (pod.get("status") or {}).get("phase")
    ending = " ending" if "deletionTimestamp" in meta else ""
    return f"{meta['name']} {meta['uid']} of {upper_uid_of(pod) or 'itself'} {phase}{ending} {meta['resourceVersion']}"


def _cluster(name: str) -> str:
    return UPPER if name == ABOVE else name
