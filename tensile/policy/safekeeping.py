"""Where a pod without a controller is kept while it moves: in a Secret of ours, beside it in its namespace above.

The Secret is written before the pod is evicted and goes when the one in its place is there, so that whatever happens in
between, the next engine finds all that it needs. It is a Secret since what a pod says is only for those who may read
pods; it is in the pod's namespace since it is that namespace's, goes with it, and needs no other place.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import orjson

from tensile.cache import Entry
from tensile.cluster import Patch
from tensile.names import KEPT_POD, PLACE_TAKEN, REPLACES, WITHDRAWN, Owner
from tensile.objects import SECRET, UPPER, Manifest, Ref, annotations, as_read, metadata, moment_of, timestamp
from tensile.podform import is_pod
from tensile.reconcile.desired import Patched, Present
from tensile.reconcile.observed import is_ours, upper_uid_of
from tensile.world import LowerWorld, World

PREFIX = "tensile-pod-"
_CONTENT = "pod.json"


class Kept(NamedTuple):
    """What a Secret of ours says.

    `uid` is that of the pod which it is about, `pod` the one to make in its place, None where that cannot be read;
    `taken` is whether somebody else has its place, `withdrawn` since when the pod is not to leave after all.
    """

    uid: str
    pod: Manifest | None
    taken: bool = False
    withdrawn: datetime | None = None

    @property
    def is_safe(self) -> bool:
        """Whether the pod may leave: it can be made again, and nobody is about to let go of what that needs."""
        return self.pod is not None and self.withdrawn is None


def ref_of(namespace: str, pod_uid: str) -> Ref:
    """Say which Secret keeps the pod of that UID."""
    return Ref(UPPER, SECRET, namespace, PREFIX + pod_uid)


def present(successor: Manifest, pod: Entry, owner: Owner, reason: str) -> Present:
    """Want the Secret that keeps what is to be made in a pod's place; refused, it holds up nobody else's."""
    ref = ref_of(pod.namespace, pod.uid)
    marks = {"labels": owner.label, "annotations": owner.signed(pod.uid)}
    manifest = {
        "apiVersion": SECRET.api,
        "kind": SECRET.name,
        "metadata": {"name": ref.name, "namespace": ref.namespace, **marks},
        "type": KEPT_POD,
        "immutable": True,
        "data": {_CONTENT: b64encode(orjson.dumps(successor)).decode()},
    }
    return Present(ref, manifest, reason, apart=True)


def kept_of(pod: Entry, world: World) -> Kept | None:
    """Give what is kept of a pod above, None for nothing; what has another name is not it."""
    ref = ref_of(pod.namespace, pod.uid)
    entry = world.upper.secrets.get(ref.namespace, ref.name)
    kept = kept_in(entry, world.owner) if entry is not None else None
    is_other = kept is not None and kept.pod is not None and metadata(kept.pod)["name"] != pod.name
    return kept._replace(pod=None) if kept is not None and is_other else kept


def kept_in(entry: Entry, owner: Owner) -> Kept | None:
    """Read such a Secret, None for one that is not ours."""
    secret = entry.manifest()
    pod_uid = upper_uid_of(secret)
    if entry.name != PREFIX + pod_uid or not is_ours(secret, owner):
        return None
    notes = annotations(secret)
    return Kept(pod_uid, _content(secret, pod_uid), PLACE_TAKEN in notes, _moment(notes.get(WITHDRAWN)))


def of_pod(secret: Entry, lower: LowerWorld) -> Iterator[Entry]:
    """Give the pod on a lower's node that such a Secret is about, none for another Secret."""
    if secret.name.startswith(PREFIX):
        yield from lower.upper_pods.select("uid", secret.name.removeprefix(PREFIX))


def noted(entry: Entry, key: str, value: str | None, reason: str) -> Patched:
    """Want an annotation on such a Secret, None: not any more; unless somebody has written it since it was read."""
    patch = Patch("merge-patch", {"metadata": {**as_read(entry.manifest()), "annotations": {key: value}}})
    return Patched(Ref(UPPER, SECRET, entry.namespace, entry.name), patch, reason)


def withdrawal(pod: Entry, world: World, reason: str) -> Patched:
    """Want it noted on the Secret that keeps a pod that nobody may rely on it: it goes after a while."""
    ref = ref_of(pod.namespace, pod.uid)
    entry = world.upper.secrets.get(ref.namespace, ref.name)
    assert entry is not None
    return noted(entry, WITHDRAWN, timestamp(world.now), reason)


def _moment(noted: str | None) -> datetime | None:
    """Read a moment; what is none says nothing."""
    try:
        return moment_of(noted) if noted else None
    except ValueError:
        return None


def _content(secret: Manifest, pod_uid: str) -> Manifest | None:
    """Read the pod; what is none, or is not in the place that the Secret may speak of, counts as none.

    Whoever may write Secrets there can have written it, and one that cannot be read must not keep others from moving.
    """
    try:
        pod: Manifest = orjson.loads(b64decode(secret["data"][_CONTENT]))
    except (KeyError, TypeError, ValueError):
        return None
    if not is_pod(pod) or not metadata(pod).get("name"):
        return None
    is_there = metadata(pod).get("namespace") == metadata(secret)["namespace"]
    return pod if is_there and annotations(pod).get(REPLACES) == pod_uid else None
