"""Generates random requests, as plain data, of the kinds that the engine sends, for two clusters alike.

UIDs and resourceVersions differ between clusters, so a request contains a placeholder such as "the third UID", which
each cluster's side replaces with its own. The choice depends on the seed and on the state of one of the two clusters
(`KnownObjects`), so that most requests concern an object that exists. Requests do not depend on defaults and
validation, which the dry run omits by design.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from tensile.objects import (
    CONFIG_MAP,
    EVENT,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
    Manifest,
    metadata,
)

STRANGER = "11111111-2222-4333-8444-555555555555"
FINALIZER = "example.com/hold"
HELD = "held"
MADE = "made"
"""A label of every object, as the engine sets one: without any, Kubernetes never records managedFields."""
NAMES = ("a", "b", "c")
OWN, NOWHERE = "OWN", "NOWHERE"
"""The namespace of the trial, and one that does not exist."""
_KEYS = ("l", "m", "example.com/n")
_VALUES = ("eHh4", "eXl5")
"""Values that are valid for a label and for a Secret's data."""
_TYPES = ("Ready", "Gate", "Old")
_TOKEN = re.compile(r'"@(uid|version):(\d+)@"')


@dataclass(frozen=True)
class Request:
    """One request; `namespace` is OWN, NOWHERE, or a name; strings such as "@uid:3@" are placeholders."""

    verb: str
    kind: Kind
    name: str
    namespace: str = OWN
    body: Any = None
    media: str = ""
    subresource: str = ""
    uid: str = STRANGER
    grace: int | None = None

    @property
    def place(self) -> tuple[Kind, str, str]:
        """The kind, namespace and name of its object."""
        return (self.kind, self.namespace, self.name)


@dataclass
class KnownObjects:
    """The results of earlier requests: by place, the indexes of the UIDs and of the versions that were returned."""

    find: Callable[[Kind, str, str], Manifest | None]
    uids: dict[tuple[Kind, str, str], list[int]] = field(default_factory=dict)
    versions: dict[tuple[Kind, str, str], list[int]] = field(default_factory=dict)
    namespaces: list[str] = field(default_factory=list)


def filled(body: Any, uids: list[str], versions: list[str]) -> Any:
    """Return a body with its placeholders replaced by a side's UIDs and versions."""
    known = {"uid": uids, "version": versions}
    text = _TOKEN.sub(lambda found: f'"{known[found[1]][int(found[2])]}"', orjson.dumps(body).decode())
    return orjson.loads(text)


class RequestGenerator:
    """Generates requests; the same seed and the same answers result in the same requests."""

    def __init__(self, seed: int, known_objects: KnownObjects) -> None:
        self._random = Random(seed)
        self._known_objects = known_objects

    def next(self) -> list[Request]:
        """Return the next request, or several that belong together."""
        kinds = (CONFIG_MAP, SECRET, POD, POD, SERVICE_ACCOUNT, LEASE, EVENT, NODE, NAMESPACE)
        kind = self._random.choice(kinds)
        if kind == NAMESPACE:
            return self._about_a_namespace()
        request = Request("read", kind, self._random.choice(NAMES))
        seen = self._known_objects.find(*request.place)
        if seen is None and self._chance(0.8):
            return [self._create(request)]
        sort = self._random.choice((self._create, self._read, self._delete, *[self._patch] * 5))
        return [sort(request)]

    def _about_a_namespace(self) -> list[Request]:
        """Create a namespace with an object that has a finalizer, delete one, or use a terminating one."""
        namespaces = self._known_objects.namespaces
        if len(namespaces) < 2 or self._chance(0.1):  # noqa: PLR2004 - enough of them
            name = f"space-{len(namespaces)}"
            namespaces.append(name)
            meta = {"name": HELD, "finalizers": [FINALIZER]}
            held = Request("create", CONFIG_MAP, HELD, name, {"metadata": meta})
            return [Request("create", NAMESPACE, name, "", {"metadata": {"name": name}}), held]
        request = Request("read", NAMESPACE, self._random.choice(namespaces), "")
        ending = "deletionTimestamp" in metadata(self._known_objects.find(*request.place) or {})
        sorts = [self._delete, self._read, *([self._inside] * 4 if ending else [self._marks])]
        return [self._random.choice(sorts)(request)]

    def _inside(self, request: Request) -> Request:
        """Create an object in a terminating namespace."""
        kind = self._random.choice((CONFIG_MAP, SECRET, LEASE, SERVICE_ACCOUNT, POD))
        return self._create(Request("create", kind, self._random.choice((*NAMES, HELD)), request.name))

    # Each method returns one kind of request.

    def _read(self, request: Request) -> Request:
        return request

    def _create(self, request: Request) -> Request:
        namespace = NOWHERE if request.kind.namespaced and self._chance(0.05) else request.namespace
        meta: Manifest = {"name": request.name}
        for section in ("labels", "annotations"):
            meta |= {section: {key: "1" for key in _KEYS if self._chance(0.5)}} if self._chance(0.6) else {}
        meta |= {"finalizers": [FINALIZER]} if self._chance(0.2) and request.kind != NODE else {}
        meta |= {"uid": STRANGER} if self._chance(0.1) else {}
        meta |= {"deletionTimestamp": "2020-01-01T00:00:00Z"} if self._chance(0.1) else {}
        meta |= {"namespace": "another"} if self._chance(0.05) else {}
        meta["labels"] = {**meta.get("labels", {}), MADE: "1"}
        meta = {} if self._chance(0.04) else meta
        body = {"metadata": meta, **self._content(request.kind)}
        return Request("create", request.kind, request.name, namespace, body)

    def _delete(self, request: Request) -> Request:
        grace = self._random.choice((None, None, 0, 5, 60, -1)) if request.kind == POD else None
        return Request("delete", request.kind, request.name, request.namespace, uid=self._uid(request), grace=grace)

    def _patch(self, request: Request) -> Request:
        if request.kind == POD and self._chance(0.5):
            return self._random.choice((self._status, self._status, self._image, self._tolerations, self._debug))(
                request
            )
        if request.kind == NODE and self._chance(0.5):
            return self._node_status(request)
        if request.kind in (LEASE, EVENT) and self._chance(0.5):
            return self._object_fields(request)
        return self._random.choice((self._marks, self._merge, self._merge))(request)

    def _marks(self, request: Request) -> Request:
        """Return a JSON patch of labels, annotations and data, with preconditions like the engine's."""
        fence = self._fence(request).items()
        verb = self._random.choice(("replace", "replace", "replace", "test"))
        operations = [{"op": verb, "path": f"/metadata/{key}", "value": value} for key, value in fence]
        operations += [self._operation(request.kind) for _ in range(self._random.randint(0, 3))]
        return self._written(request, "json-patch", operations)

    def _operation(self, kind: Kind) -> Manifest:
        sections = ["/metadata/labels"] + (["/metadata/annotations"] if kind != NODE else [])
        sections += ["/data"] if kind in (CONFIG_MAP, SECRET) else []
        section = self._random.choice(sections)
        if section != "/metadata/labels" and self._chance(0.15):
            whole = {"op": "add", "path": section, "value": self._random.choice(({}, {"l": "eHh4"}))}
            return self._random.choice((whole, {"op": "remove", "path": section}))
        key = "k" if section == "/data" else self._random.choice(_KEYS).replace("/", "~1")
        verb = self._random.choice(("add", "add", "replace", "remove", "test"))
        value = {} if verb == "remove" else {"value": self._random.choice(_VALUES)}
        return {"op": verb, "path": f"{section}/{key}", **value}

    def _merge(self, request: Request) -> Request:
        """Return a merge patch, plain or strategic, of the same fields."""
        meta: Manifest = self._fence(request)
        for section in ("labels", "annotations"):
            meta |= {section: self._map(_KEYS)} if self._chance(0.5) else {}
        ends = "deletionTimestamp" in metadata(self._known_objects.find(*request.place) or {})
        given = (None,) if ends or request.kind == NODE else (None, [], [FINALIZER])
        meta |= {"finalizers": self._random.choice(given)} if self._chance(0.3) else {}
        body: Manifest = {"metadata": meta}
        if request.kind in (CONFIG_MAP, SECRET) and self._chance(0.6):
            body["data"] = self._map(("k", "more"))
        media = "merge-patch" if "finalizers" in meta else self._random.choice(("merge-patch", "strategic-merge-patch"))
        return self._written(request, media, body)

    def _status(self, request: Request) -> Request:
        """Return a patch of a pod's status, like a kubelet's."""
        fields: Manifest = {}
        if self._chance(0.6):
            fields["conditions"] = [
                self._condition(one) for one in self._random.sample(_TYPES, self._random.randint(1, 3))
            ]
        if self._chance(0.4):
            fields["phase"] = self._random.choice(("Pending", "Running", "Running", "Succeeded", "Failed"))
        if self._chance(0.4):
            address = self._random.choice((None, "10.0.0.1", "10.0.0.2"))
            fields |= {"podIP": address, "podIPs": address and [{"$patch": "replace"}, {"ip": address}]}
        if self._chance(0.2):
            fields |= {"reason": self._random.choice((None, "Because"))}
        meta = self._fence(request) | ({"labels": self._map(_KEYS)} if self._chance(0.2) else {})
        body = {"metadata": meta, "status": fields}
        return self._written(
            request, "strategic-merge-patch", body, self._random.choice(("status",) * 5 + ("", "unheard"))
        )

    def _condition(self, sort: str) -> Manifest:
        if self._chance(0.2):
            return {"type": sort, "$patch": "delete"}
        return {"type": sort, "status": self._random.choice(("True", "False"))}

    def _image(self, request: Request) -> Request:
        containers = [{"name": self._random.choice(("main", "side")), "image": f"app:{self._random.randint(1, 3)}"}]
        body = {"metadata": self._fence(request), "spec": {"containers": containers}}
        return self._written(request, "strategic-merge-patch", body, self._random.choice(("", "", "status")))

    def _tolerations(self, request: Request) -> Request:
        """Return a patch that adds tolerations: none can be removed, and a merge patch lists them all."""
        seen = (self._known_objects.find(*request.place) or {}).get("spec", {}).get("tolerations", [])
        more = [{"key": f"k{len(seen)}", "operator": "Exists"}] if self._chance(0.7) else []
        body = {"metadata": self._fence(request), "spec": {"tolerations": seen + more}}
        return self._written(request, "merge-patch", body)

    def _debug(self, request: Request) -> Request:
        names = self._random.sample(("e1", "e2"), self._random.randint(1, 2))
        added = [{"name": name, "image": "debug:1"} for name in names]
        body = {"metadata": self._fence(request), "spec": {"ephemeralContainers": added}}
        return self._written(request, "strategic-merge-patch", body, "ephemeralcontainers")

    def _node_status(self, request: Request) -> Request:
        amounts: Manifest = {"cpu": self._random.choice(("4", "8"))}
        amounts |= {"$patch": "replace"} if self._chance(0.3) else {}
        fields = {
            "capacity": amounts,
            "addresses": [{"type": "InternalIP", "address": self._random.choice(("1.1.1.1", "1.1.1.2"))}],
        }
        body = {"metadata": self._uid_fence(request), "status": fields}
        return self._written(request, "strategic-merge-patch", body, self._random.choice(("status", "status", "")))

    def _object_fields(self, request: Request) -> Request:
        """Return a patch that repeats a report: it renews a lease, or counts an event."""
        number = self._random.randint(1, 3)
        fields: Manifest = {"spec": {"leaseDurationSeconds": number}} if request.kind == LEASE else {"count": number}
        return self._written(request, "merge-patch", {"metadata": self._fence(request), **fields})

    # Parts of requests.

    def _content(self, kind: Kind) -> Manifest:
        if kind == POD:
            return {"spec": self._pod()}
        if kind == LEASE:
            return {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 40}}
        if kind == EVENT:
            about = {"kind": "Pod", "name": "a", "namespace": "@own@"}
            return {"involvedObject": about, "reason": "Because", "message": "so", "type": "Normal", "count": 1}
        if kind == NODE:
            return {"status": {"capacity": {"cpu": "1", "pods": "9"}}}
        return {"data": {"k": "eHh4"}} if kind in (CONFIG_MAP, SECRET) and self._chance(0.7) else {}

    def _pod(self) -> Manifest:
        containers = [{"name": one, "image": "app:1"} for one in ("main", "side")]
        spec: Manifest = {"containers": containers, "tolerations": [{"operator": "Exists"}]}
        spec |= {"nodeName": "@node@"} if self._chance(0.8) else {"schedulerName": "nobody"}
        spec |= {"terminationGracePeriodSeconds": self._random.choice((0, 5, 20))} if self._chance(0.5) else {}
        return spec | ({"serviceAccountName": "nobody"} if self._chance(0.05) else {})

    def _map(self, keys: tuple[str, ...]) -> Manifest:
        return {key: self._random.choice((None, *_VALUES)) for key in keys if self._chance(0.6)}

    def _uid(self, request: Request) -> str:
        """Return, in most cases, the present UID, otherwise that of an earlier object or an unknown one."""
        known = self._known_objects.uids.get(request.place, [])
        if not known or self._chance(0.1):
            return STRANGER
        return f"@uid:{known[-1] if self._chance(0.9) else self._random.choice(known)}@"

    def _uid_fence(self, request: Request) -> Manifest:
        return {"uid": self._uid(request)}

    def _fence(self, request: Request) -> Manifest:
        known = self._known_objects.versions.get(request.place, [])
        found = self._uid_fence(request) if self._chance(0.9) else {}
        if known and request.kind not in (NODE, NAMESPACE) and self._chance(0.25):
            found["resourceVersion"] = f"@version:{known[-1] if self._chance(0.7) else self._random.choice(known)}@"
        return found

    def _written(self, request: Request, media: str, body: Any, subresource: str = "") -> Request:
        return Request("patch", request.kind, request.name, request.namespace, body, media, subresource)

    def _chance(self, likelihood: float) -> bool:
        return self._random.random() < likelihood
