"""Two clusters that get the same requests, and what each makes of them in a form in which the two can be compared.

UIDs become numbers in the order in which objects were made, versions whether they moved on; times are left out. Of a
real object only what the rehearsed one has is compared where Kubernetes adds defaults (spec), and everything elsewhere.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from bench.conformance.likeness.asking import OWN, Request, Stock, filled
from tensile.errors import ClusterError
from tensile.kube.cluster import Cluster, Patch
from tensile.kube.store import Cache
from tensile.objects import NAMESPACE, NODE, Kind, Manifest, Ref, annotations, labels, metadata
from tensile.reconcile.ownership import our_keys

Outcome = dict[str, Any]
_EXACT = ("name", "labels", "annotations", "finalizers", "generation", "deletionGracePeriodSeconds")
_SAID = ("phase", "podIP", "podIPs", "reason", "capacity", "addresses")
UNSTEADY = (NODE, NAMESPACE)
"""Controllers of the real cluster write these too, so that their versions move by themselves."""
_ALPHA = "node.alpha.kubernetes.io"
_LOOSE = ("spec", "status", "metadata", "apiVersion", "kind")


class Side:
    """One of the two clusters, with the UIDs and versions that it gave, in order."""

    def __init__(self, cluster: Cluster, namespace: str, node: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.node = node
        self.uids: list[str] = []
        self.versions: list[str] = []
        self.newest = 0

    def ref(self, kind: Kind, namespace: str, name: str) -> Ref:
        """Name an object here; nodes and namespaces are the trial's own."""
        own = self.namespace if namespace == OWN else f"{self.namespace}-{namespace.lower()}"
        prefix = "" if kind.namespaced else f"{self.namespace}-"
        return Ref(self.cluster.name, kind, own if kind.namespaced else "", prefix + name)

    async def ask(self, request: Request) -> Manifest | ClusterError:
        """Make a request, and return the answer, or the error that it met."""
        ref = self.ref(*request.place)
        body = self._body(request, ref)
        uid = filled(request.uid, self.uids, self.versions)
        try:
            match request.verb:
                case "create":
                    raw = await self.cluster.create(ref, body)
                case "read":
                    raw = await self.cluster.read(ref)
                case "patch":
                    raw = await self.cluster.patch(ref, Patch(request.media, body), request.subresource)
                case _:
                    raw = await self.cluster.delete(ref, uid=uid, grace=request.grace)
        except ClusterError as error:
            return error
        found: Manifest = orjson.loads(raw)
        return found

    def outcome(self, answer: Manifest | ClusterError, last: str) -> Outcome:
        """Return an answer in its comparable form; `last` is the version that the object had before, "" for none."""
        if isinstance(answer, ClusterError):
            return {"error": type(answer).__name__, "status": answer.status, "why": [answer.reason, *answer.causes]}
        if answer.get("kind") == "Status":
            about = answer.get("details", {})
            return {"Status": answer.get("status"), "kind": about.get("kind"), "uid": self.number(about.get("uid", ""))}
        return {**self.form(answer), "moved": self._moved(metadata(answer)["resourceVersion"], last)}

    def form(self, manifest: Manifest) -> Outcome:
        """Return an object in its comparable form."""
        meta, status = metadata(manifest), manifest.get("status") or {}
        form = {field: meta[field] for field in _EXACT if field in meta}
        if manifest["kind"] == NODE.name:
            form |= {"annotations": {key: value for key, value in annotations(manifest).items() if _ALPHA not in key}}
        form["name"] = meta["name"].removeprefix(f"{self.namespace}-")
        form["labels"] = {key: value.replace(self.namespace, "NS") for key, value in labels(manifest).items()}
        form |= {"uid": self.number(meta["uid"]), "ends": "deletionTimestamp" in meta, "kind": manifest["kind"]}
        form["ours"] = {section: sorted(our_keys(manifest, section)) for section in ("labels", "annotations")}
        form["status"] = {field: status[field] for field in _SAID if field in status}
        form["conditions"] = [(one["type"], one["status"]) for one in status.get("conditions") or ()]
        form["spec"] = manifest.get("spec") or {}
        return form | {field: value for field, value in manifest.items() if field not in _LOOSE}

    def events(self, told: Iterable[tuple[str, Manifest]]) -> list[Outcome]:
        """Return events in their comparable form; they have to be in the order of their versions."""
        found, newest = [], 0
        for sort, manifest in told:
            version = int(metadata(manifest)["resourceVersion"])
            found.append({**self.form(manifest), "told": sort, "moved": version > newest})
            newest = version
        return found

    def number(self, uid: str) -> int:
        """Return the number of a UID, -1 for one that was not given to anything here."""
        return self.uids.index(uid) if uid in self.uids else -1

    def take(self, answer: Manifest | ClusterError, *, is_new: bool) -> None:
        """Note the UID of a new object and the version of any."""
        if isinstance(answer, ClusterError) or answer.get("kind") == "Status":
            return
        if is_new:
            self.uids.append(metadata(answer)["uid"])
        self.versions.append(metadata(answer)["resourceVersion"])

    def _body(self, request: Request, ref: Ref) -> Any:
        text = orjson.dumps(request.body).decode().replace("@own@", ref.namespace).replace("@node@", self.node)
        body = filled(orjson.loads(text), self.uids, self.versions)
        if request.verb == "create" and not request.kind.namespaced and body["metadata"].get("name"):
            body["metadata"]["name"] = ref.name
        return body

    def _moved(self, version: str, last: str) -> str:
        """Report whether a version is a new one, and newer than all that were given before."""
        if version == last:
            return "no"
        newer = int(version) > self.newest
        self.newest = max(self.newest, int(version))
        return "yes" if newer else "back"


class Pair:
    """The two sides: what is rehearsed first, then what is real; `stock` is what the asking is told.

    `last` is the rehearsed outcome of the last request.
    """

    def __init__(self, rehearsed: Side, real: Side, stock: Stock) -> None:
        self.sides = (rehearsed, real)
        self.stock = stock
        self.last: Outcome = {}

    async def ask(self, request: Request) -> str:
        """Make a request of both, and return in what the answers differ, "" for nothing."""
        known = self.stock.versions.get(request.place, [])[-1:]
        answers = [await side.ask(request) for side in self.sides]
        self._take(request, answers)
        said = [
            side.outcome(answer, "".join(side.versions[one] for one in known))
            for side, answer in zip(self.sides, answers, strict=True)
        ]
        if request.kind in UNSTEADY:
            said = [{key: value for key, value in one.items() if key != "moved"} for one in said]
        self.last = said[0]
        return difference(*said)

    def _take(self, request: Request, answers: Iterable[Manifest | ClusterError]) -> None:
        """Note what was given, where both gave something."""
        given = list(answers)
        if any(isinstance(one, ClusterError) or one.get("kind") == "Status" for one in given):
            return
        is_new = request.verb == "create"
        for side, answer in zip(self.sides, given, strict=True):
            side.take(answer, is_new=is_new)
        if is_new:
            self.stock.uids.setdefault(request.place, []).append(len(self.sides[0].uids) - 1)
        self.stock.versions.setdefault(request.place, []).append(len(self.sides[0].versions) - 1)


def difference(rehearsed: Outcome, real: Outcome) -> str:
    """Return in what a real outcome differs from a rehearsed one, "" for nothing; defaults are no difference."""
    loose = ("spec", *(key for key in rehearsed if key not in _STRICT))
    wanted = {key: cut(value, rehearsed.get(key)) if key in loose else value for key, value in real.items()}
    wanted = {key: value for key, value in wanted.items() if key in rehearsed or key in _STRICT}
    if wanted == rehearsed:
        return ""
    unlike = sorted(key for key in rehearsed.keys() | wanted.keys() if rehearsed.get(key) != wanted.get(key))
    return "; ".join(f"{key}: rehearsed {rehearsed.get(key)!r}, really {wanted.get(key)!r}" for key in unlike)


def cut(real: Any, rehearsed: Any) -> Any:
    """Return of a real value what the rehearsed one has as well: the rest is defaults."""
    if isinstance(real, dict) and isinstance(rehearsed, dict):
        return {key: cut(value, rehearsed[key]) for key, value in real.items() if key in rehearsed}
    if isinstance(real, list) and isinstance(rehearsed, list) and len(real) == len(rehearsed):
        return [cut(*both) for both in zip(real, rehearsed, strict=True)]
    return real


_STRICT = frozenset(
    {*_EXACT, "error", "status", "why", "Status", "kind", "uid", "ends", "ours", "conditions", "moved", "data", "told"}
)


class Recorder(Cache):
    """A cache that keeps what it is told as events, as a watch would tell them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, Manifest]] = []

    def put(self, raw: bytes) -> None:
        """Keep an object that is new or changed."""
        manifest = orjson.loads(raw)
        meta = metadata(manifest)
        known = self.get(meta.get("namespace", ""), meta["name"])
        self.events.append(("MODIFIED" if known else "ADDED", manifest))
        super().put(raw)

    def remove(self, raw: bytes) -> None:
        """Keep an object's end."""
        self.events.append(("DELETED", orjson.loads(raw)))
        super().remove(raw)
