"""Sends the same requests to two clusters, and converts the results to a form in which they can be compared.

UIDs become indexes in the order of creation, and versions become whether they changed; times are left out. If
Kubernetes adds defaults (spec), only the fields of a real object that the dry-run one also has are compared; in all
other places, every field is.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from bench.conformance.dryrun.request_generator import OWN, KnownObjects, Request, filled
from tensile.errors import ClusterError
from tensile.kube.cluster import Cluster, Patch
from tensile.kube.store import Cache
from tensile.objects import NAMESPACE, NODE, Kind, Manifest, Ref, annotations, labels, metadata
from tensile.reconcile.ownership import our_keys

Outcome = dict[str, Any]
_EXACT = ("name", "labels", "annotations", "finalizers", "generation", "deletionGracePeriodSeconds")
_SAID = ("phase", "podIP", "podIPs", "reason", "capacity", "addresses")
UNSTEADY = (NODE, NAMESPACE)
"""Kinds that controllers of the real cluster write too, so that their versions change between requests."""
_ALPHA = "node.alpha.kubernetes.io"
_LOOSE = ("spec", "status", "metadata", "apiVersion", "kind")


class Side:
    """One of the two clusters, with the UIDs and versions that it returned, in order."""

    def __init__(self, cluster: Cluster, namespace: str, node: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.node = node
        self.uids: list[str] = []
        self.versions: list[str] = []
        self.newest = 0

    def ref(self, kind: Kind, namespace: str, name: str) -> Ref:
        """Return the reference of an object in this cluster; names of nodes and namespaces get the trial's prefix."""
        own = self.namespace if namespace == OWN else f"{self.namespace}-{namespace.lower()}"
        prefix = "" if kind.namespaced else f"{self.namespace}-"
        return Ref(self.cluster.name, kind, own if kind.namespaced else "", prefix + name)

    async def send(self, request: Request) -> Manifest | ClusterError:
        """Send a request, and return the answer or the error."""
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
        """Return an answer in its comparable form; `last` is the object's version before, "" if it had none."""
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

    def events(self, watch_events: Iterable[tuple[str, Manifest]]) -> list[Outcome]:
        """Return events in their comparable form, each with whether its version is newer than the one before."""
        found, newest = [], 0
        for sort, manifest in watch_events:
            version = int(metadata(manifest)["resourceVersion"])
            found.append({**self.form(manifest), "told": sort, "moved": version > newest})
            newest = version
        return found

    def number(self, uid: str) -> int:
        """Return the index of a UID, -1 if no object here has it."""
        return self.uids.index(uid) if uid in self.uids else -1

    def take(self, answer: Manifest | ClusterError, *, is_new: bool) -> None:
        """Record the UID of a new object, and the version of any object."""
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
        """Return whether a version changed ("yes" or "no"), or is not newer than all before ("back")."""
        if version == last:
            return "no"
        newer = int(version) > self.newest
        self.newest = max(self.newest, int(version))
        return "yes" if newer else "back"


class Pair:
    """The two sides, the dry-run one first; `known_objects` is the state from which requests are generated.

    `last` is the dry run's outcome of the last request.
    """

    def __init__(self, rehearsed: Side, real: Side, known_objects: KnownObjects) -> None:
        self.sides = (rehearsed, real)
        self.known_objects = known_objects
        self.last: Outcome = {}

    async def send(self, request: Request) -> str:
        """Send a request to both sides, and return how the answers differ, "" if they do not."""
        known = self.known_objects.versions.get(request.place, [])[-1:]
        answers = [await side.send(request) for side in self.sides]
        self._take(request, answers)
        results = [
            side.outcome(answer, "".join(side.versions[one] for one in known))
            for side, answer in zip(self.sides, answers, strict=True)
        ]
        if request.kind in UNSTEADY:
            results = [{key: value for key, value in one.items() if key != "moved"} for one in results]
        self.last = results[0]
        return difference(*results)

    def _take(self, request: Request, answers: Iterable[Manifest | ClusterError]) -> None:
        """Record the UIDs and versions, if both sides returned an object."""
        given = list(answers)
        if any(isinstance(one, ClusterError) or one.get("kind") == "Status" for one in given):
            return
        is_new = request.verb == "create"
        for side, answer in zip(self.sides, given, strict=True):
            side.take(answer, is_new=is_new)
        if is_new:
            self.known_objects.uids.setdefault(request.place, []).append(len(self.sides[0].uids) - 1)
        self.known_objects.versions.setdefault(request.place, []).append(len(self.sides[0].versions) - 1)


def difference(rehearsed: Outcome, real: Outcome) -> str:
    """Return how a real outcome differs from that of the dry run, "" if not; defaults are ignored."""
    loose = ("spec", *(key for key in rehearsed if key not in _STRICT))
    wanted = {key: cut(value, rehearsed.get(key)) if key in loose else value for key, value in real.items()}
    wanted = {key: value for key, value in wanted.items() if key in rehearsed or key in _STRICT}
    if wanted == rehearsed:
        return ""
    unlike = sorted(key for key in rehearsed.keys() | wanted.keys() if rehearsed.get(key) != wanted.get(key))
    return "; ".join(f"{key}: rehearsed {rehearsed.get(key)!r}, really {wanted.get(key)!r}" for key in unlike)


def cut(real: Any, rehearsed: Any) -> Any:
    """Return the part of a real value that the dry run's value has as well: the rest is defaults."""
    if isinstance(real, dict) and isinstance(rehearsed, dict):
        return {key: cut(value, rehearsed[key]) for key, value in real.items() if key in rehearsed}
    if isinstance(real, list) and isinstance(rehearsed, list) and len(real) == len(rehearsed):
        return [cut(*both) for both in zip(real, rehearsed, strict=True)]
    return real


_STRICT = frozenset(
    {*_EXACT, "error", "status", "why", "Status", "kind", "uid", "ends", "ours", "conditions", "moved", "data", "told"}
)


class Recorder(Cache):
    """A cache that records its updates as events of a watch."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, Manifest]] = []

    def put(self, raw: bytes) -> None:
        """Record an object that is new or changed."""
        manifest = orjson.loads(raw)
        meta = metadata(manifest)
        known = self.get(meta.get("namespace", ""), meta["name"])
        self.events.append(("MODIFIED" if known else "ADDED", manifest))
        super().put(raw)

    def remove(self, raw: bytes) -> None:
        """Record the deletion of an object."""
        self.events.append(("DELETED", orjson.loads(raw)))
        super().remove(raw)
