"""The controllers of Kubernetes itself: they schedule and end pods, bind claims, and release objects in use.

They are level-triggered like the real ones: a moment after any change, they check all objects.
"""

import asyncio
from collections.abc import Callable, Iterator

import orjson

from tensile.objects import CLAIM, NAMESPACE, POD, UPPER, VOLUME, Kind, Manifest, Ref, annotations, metadata, uid
from tensile.reconcile.dryrun.cluster import DryRunCluster

MOMENT = 0.06
GIVES_AT_ONCE = "goes"
"""The storage class whose volumes are created immediately and deleted with their claims.

Volumes of other classes are created when a pod uses the claim, and are retained.
"""
_BOUND = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
"""The annotations that Kubernetes sets on a claim whose volume it chose."""
ObjectCallback = Callable[[Kind, str, Manifest], None]
_FOLLOWED = (POD, CLAIM, VOLUME, NAMESPACE)


class Record:
    """All objects of one kind that a cluster holds, with a callback that receives PUT or DELETED and the object."""

    def __init__(self, kind: Kind, on_change: ObjectCallback) -> None:
        self.held: dict[tuple[str, str], Manifest] = {}
        self._kind = kind
        self._on_change = on_change

    def get(self, _namespace: str, _name: str) -> bool:
        """Report that every object is known, so that every change is delivered."""
        return True

    def put(self, raw: bytes) -> None:
        """Record an object that is new or changed."""
        found = orjson.loads(raw)
        self.held[metadata(found).get("namespace", ""), metadata(found)["name"]] = found
        self._on_change(self._kind, "PUT", found)

    def remove(self, raw: bytes) -> None:
        """Record the deletion of an object."""
        found = orjson.loads(raw)
        self.held.pop((metadata(found).get("namespace", ""), metadata(found)["name"]), None)
        self._on_change(self._kind, "DELETED", found)


class Controllers:
    """The controllers of one cluster; with `keeps_terminating_pods`, deleted pods stay terminating."""

    def __init__(self, cluster: DryRunCluster, on_change: ObjectCallback) -> None:
        self.keeps_terminating_pods = False
        self._cluster = cluster
        self._on_change = on_change
        self._is_upper = cluster.name == UPPER
        self._due: asyncio.TimerHandle | None = None
        self._records = {kind: Record(kind, self._changed) for kind in _FOLLOWED}
        for kind, record in self._records.items():
            cluster.follow(kind, record, lambda _manifest: True)

    def enqueue_all(self) -> None:
        """Check all objects in a moment."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(MOMENT, self._check_all)

    def _changed(self, kind: Kind, what: str, manifest: Manifest) -> None:
        self._on_change(kind, what, manifest)
        self.enqueue_all()

    def _check_all(self) -> None:
        self._due = None
        for pod in () if self._is_upper else self._all(POD):
            self._run(pod)
        for claim in self._all(CLAIM):
            self._serve(claim)
        for volume in self._all(VOLUME):
            self._reclaim(volume)
        for space in self._all(NAMESPACE):
            self._empty(space)

    def _run(self, pod: Manifest) -> None:
        """Schedule a pod, and remove it once it is deleted."""
        if "deletionTimestamp" in metadata(pod) and not self.keeps_terminating_pods:
            self._cluster.vanish(self._ref(POD, pod))
        elif not pod["spec"].get("nodeName"):
            self._cluster.alter(self._ref(POD, pod), lambda found: found["spec"].update(nodeName="n1"))

    def _serve(self, claim: Manifest) -> None:
        """Remove a deleted claim that is not in use; in a lower cluster, create the volume of a claim that has none."""
        if "deletionTimestamp" in metadata(claim):
            if not self._is_used(claim):
                self._cluster.vanish(self._ref(CLAIM, claim))
            return
        if self._is_upper or claim["status"].get("phase") == "Bound":
            return
        if claim["spec"].get("storageClassName") == GIVES_AT_ONCE or self._is_used(claim):
            self._make_volume(claim)

    def _make_volume(self, claim: Manifest) -> None:
        policy = "Delete" if claim["spec"].get("storageClassName") == GIVES_AT_ONCE else "Retain"
        spec = {
            "claimRef": {field: metadata(claim)[field] for field in ("namespace", "name", "uid")},
            "persistentVolumeReclaimPolicy": policy,
            "capacity": claim["spec"]["resources"]["requests"],
            "csi": {"driver": "disk", "volumeHandle": uid(claim)},
        }
        name = f"disk-{uid(claim)}"
        self._cluster.place(VOLUME, {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Bound"}})
        self._bind(claim, name)

    def _bind(self, claim: Manifest, volume: str) -> None:
        size = claim["spec"]["resources"]["requests"]
        bound = {"spec": {**claim["spec"], "volumeName": volume}, "status": {"phase": "Bound", "capacity": size}}
        meta = {**metadata(claim), "annotations": {**annotations(claim), **_BOUND}}
        self._cluster.alter(self._ref(CLAIM, claim), lambda found: found.update({**bound, "metadata": meta}))

    def _reclaim(self, volume: Manifest) -> None:
        """Bind a volume to its claim; without a claim, release it, or remove it if that is requested."""
        holder = volume["spec"]["claimRef"]
        claim = self._records[CLAIM].held.get((holder["namespace"], holder["name"]))
        phase = (volume.get("status") or {}).get("phase")
        if claim is not None and uid(claim) == holder["uid"]:
            if phase != "Bound":
                self._phase(volume, "Bound")
            if self._is_upper and not claim["spec"].get("volumeName"):
                self._bind(claim, metadata(volume)["name"])
            return
        deletes = not self._is_upper and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        if deletes or "deletionTimestamp" in metadata(volume):
            self._cluster.vanish(self._ref(VOLUME, volume))
        elif phase != "Released":
            self._phase(volume, "Released")

    def _phase(self, volume: Manifest, phase: str) -> None:
        self._cluster.alter(self._ref(VOLUME, volume), lambda found: found.update(status={"phase": phase}))

    def _empty(self, space: Manifest) -> None:
        """Delete the objects of a deleted namespace, and then the namespace."""
        if "deletionTimestamp" in metadata(space):
            for kind in (POD, CLAIM):
                for found in self._all(kind):
                    if metadata(found)["namespace"] == metadata(space)["name"]:
                        self._cluster.vanish(self._ref(kind, found))
            self._cluster.vanish(self._ref(NAMESPACE, space))

    def _is_used(self, claim: Manifest) -> bool:
        """Report whether a pod that has not ended uses a claim."""
        return any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == metadata(claim)["name"]
            for pod in self._all(POD)
            if metadata(pod)["namespace"] == metadata(claim)["namespace"]
            and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
            for volume in pod["spec"].get("volumes") or ()
        )

    def _all(self, kind: Kind) -> Iterator[Manifest]:
        yield from tuple(self._records[kind].held.values())

    def _ref(self, kind: Kind, found: Manifest) -> Ref:
        return Ref(self._cluster.name, kind, metadata(found).get("namespace", ""), metadata(found)["name"])
