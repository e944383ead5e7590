"""Names that pods refer to and that the upper cluster does not have: an empty object of ours holds them below.

Kubernetes starts a pod whose `optional` ConfigMap, Secret or pull secret does not exist, and gives it the object once
there is one. Below, that name may be another's: a pod could be bound to read what exists in the lower cluster alone, a
token of an account there for one. So the name is taken before the pod is made, by an empty ConfigMap or Secret with our
marks and no upper UID. To a kubelet that is the same as none: no variables, no files, no credential to pull with.

Two other ways were weighed. A look at the name when the pod is made says nothing of an object that somebody makes there
later, which the kubelet would bring into the pod. And a reference that is left out of the lower pod never comes back,
since a pod cannot be changed: a pull secret that is made a moment after its pods would be missing for good. The price
is an object for each such name, which is bounded, and one write before the first pod that names it.

A name stays held while a pod that goes on below refers to it, also where its original was deleted above: the pod would
read whatever comes to stand there next. Where the name is taken already, the pod waits with `NameConflict`: nothing is
adopted for a name that the upper cluster does not have.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from tensile.cache import Entry
from tensile.names import NO_ORIGINAL, Owner
from tensile.objects import POD, SECRET, UPPER, Manifest, Ref
from tensile.reconcile.adoption import REASON
from tensile.reconcile.desired import Present, Told
from tensile.world import Problem

LIMIT = 1_000
"""Names of one kind that are held in a namespace of a lower: no tenant has another fill the lower's store for it."""
LOOK_AGAIN = 60.0
"""Seconds until it is looked again whether there is room for one more."""
_TOLD = 5
"""Pods that are told of a name which was taken while they ran."""
_SECTIONS = ("metadata.labels", "metadata.annotations", "data", "binaryData")


def is_held(copy: Entry) -> bool:
    """Return whether a ConfigMap or Secret of ours below stands for none above."""
    return bool(copy.facts.upper_uid == NO_ORIGINAL)


def held(ref: Ref, owner: Owner) -> Present:
    """Return the empty object that holds a name; what stood there for an earlier upper object is replaced."""
    manifest: Manifest = {
        "apiVersion": ref.kind.api,
        "kind": ref.kind.name,
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": owner.label,
            "annotations": owner.signed(NO_ORIGINAL),
        },
    } | ({"type": "Opaque"} if ref.kind == SECRET else {})
    reason = "holds the name: pods refer to it, and the upper cluster has none"
    return Present(ref, manifest, reason, sections=_SECTIONS, replaceable=True)


def too_many(ref: Ref, names: int) -> Problem | None:
    """Return why a name is not held beside `names` others of its kind and namespace, None where it may be."""
    if names < LIMIT:
        return None
    words = f"pods of it refer to more than {LIMIT} {ref.kind.name}s that the upper cluster does not have"
    advice = "make those, or take the optional references out"
    return Problem("TooManyNamesHeld", f"namespace {ref.namespace} of lower cluster {ref.cluster}: {words}: {advice}")


def exposed(pods: Iterable[Entry], problem: Problem) -> Iterator[Told]:
    """Tell pods that run already that a name they refer to is another's below."""
    for pod in islice(pods, _TOLD if problem.reason == REASON else 0):
        ref = Ref(UPPER, POD, pod.namespace, pod.name)
        yield Told(ref, pod.uid, problem.reason, f"the pod may read what is not its own, delete it: {problem.message}")
