"""Adopt lower pods that lost their owner for the upper pods that they may be for.

Whatever its marks say, a lower pod is adopted only if it runs what the upper pod asks for: anyone who may create a pod
there can write marks. Kubernetes would not let us change the program, and another program under the pod's name would be
a false report.
"""

from collections.abc import Iterator

from tensile.kube.cluster import Patch
from tensile.kube.store import Entry
from tensile.kubelet.pods.placement_context import LowerContext
from tensile.kubelet.pods.projection import lower_pod
from tensile.kubelet.pods.sync import placement, report_blocked
from tensile.objects import POD, Manifest, Ref, metadata
from tensile.reconcile.desired import Decision, Patched
from tensile.reconcile.diff import marking
from tensile.reconcile.ownership import UNMARKED, conflict, objection
from tensile.reconcile.pods.index import view_of
from tensile.reconcile.pods.references import is_token_volume
from tensile.reconcile.world import Key, LowerWorld, World

LOOK_AGAIN = 15.0
"""Seconds until it is checked again whether the other owner is gone."""
_LISTS = ("containers", "initContainers")
_PROGRAM = ("image", "command", "args", "workingDir", "securityContext")
_POD_WIDE = ("restartPolicy", "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "securityContext")
_SECTIONS = ("metadata.labels", "metadata.annotations", "metadata.ownerReferences")


def adopt(upper: Entry, found: Entry, lower: LowerWorld, world: World) -> Decision:
    """Adopt a lower pod that is not ours for an upper pod, or report on the upper pod why not.

    `found` is the whole pod, or only its facts where nothing indicates that it may be adopted.
    """
    ref = Ref(lower.name, POD, found.namespace, found.name)
    wanted = lower_pod(upper.manifest(), _place(upper, lower, world))
    why = _objection_to(ref, upper, found, wanted, world) if found.raw else _objection_by_facts(found)
    if why:
        said = report_blocked(view_of(upper.manifest()), conflict(ref, why), world.now)
        return said._replace(requeue_after=LOOK_AGAIN)
    operations = marking(wanted, found.manifest(), _SECTIONS)
    fence = [
        {"op": "replace", "path": "/metadata/uid", "value": found.uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": str(found.version)},
    ]
    return Decision((Patched(ref, Patch("json-patch", fence + operations), "onConflict: adopt", in_plan=True),))


def _objection_by_facts(found: Entry) -> str:
    """Return why a pod without any mark is not adopted."""
    return "it is being deleted" if found.facts.ending else UNMARKED


def _objection_to(ref: Ref, upper: Entry, found: Entry, wanted: Manifest, world: World) -> str:
    """Return why a whole pod is not adopted, "" where it is."""
    pod = found.manifest()
    return objection(ref, pod, upper.uid, world) or next(misfits(wanted, pod, token_volumes(upper.manifest())), "")


def token_volumes(upper_pod: Manifest) -> frozenset[str]:
    """Return the names of the volumes that admission added to an upper pod."""
    return frozenset(one["name"] for one in upper_pod["spec"].get("volumes") or () if is_token_volume(one))


def misfits(wanted: Manifest, found: Manifest, token: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield how a running pod differs from the wanted one; nothing if it can be adopted.

    Node constraints were met when it was scheduled. The account and its `token` volumes, or what replaces them, are not
    compared.
    """
    others = metadata(found).get("ownerReferences") or []
    if others not in ([], metadata(wanted).get("ownerReferences")):
        yield f"it is owned by {others[0].get('kind')} {others[0].get('name')}"
    want, have = wanted["spec"], found["spec"]
    yield from (f"its {field} is different" for field in _POD_WIDE if _differs(want, have, field))
    for field in _LISTS:
        containers = [_without_mounts(one, token) for one in want.get(field) or ()]
        yield from _container_misfits(field, containers, have.get(field) or [])
    known = {volume["name"]: volume for volume in have.get("volumes") or ()}
    for volume in want.get("volumes") or ():
        if volume["name"] not in token and known.get(volume["name"]) != volume:
            yield f"its volume {volume['name']} is different"


def _without_mounts(container: Manifest, volumes: frozenset[str]) -> Manifest:
    """Return a container without its mounts of some volumes: each cluster names token volumes differently."""
    mounts = [mount for mount in container.get("volumeMounts") or () if mount["name"] not in volumes]
    return {**container, "volumeMounts": mounts}


def _container_misfits(field: str, want: list[Manifest], have: list[Manifest]) -> Iterator[str]:
    """Yield how containers differ."""
    if [one["name"] for one in want] != [one["name"] for one in have]:
        yield f"its {field} are different"
        return
    for one, other in zip(want, have, strict=True):
        for part in _PROGRAM:
            if _differs(one, other, part):
                yield f"container {one['name']} has a different {part}"
        yield from _environment_misfits(one, other)


def _differs(want: Manifest, have: Manifest, field: str) -> bool:
    """Report whether a field differs; empty and absent are equal."""
    return (want.get(field) or None) != (have.get(field) or None)


def _environment_misfits(want: Manifest, have: Manifest) -> Iterator[str]:
    """Yield which variable or mount differs; not those with `valueFrom`, which tensile-kube resolved to values."""
    known = {variable["name"]: variable for variable in have.get("env") or ()}
    for variable in want.get("env") or ():
        other = known.get(variable["name"])
        if other is None or ("valueFrom" not in variable and other.get("value") != variable.get("value")):
            yield f"container {want['name']} has a different value of {variable['name']}"
    mounts = [(mount["name"], mount["mountPath"]) for mount in have.get("volumeMounts") or ()]
    for mount in want.get("volumeMounts") or ():
        if (mount["name"], mount["mountPath"]) not in mounts:
            yield f"container {want['name']} does not mount {mount['name']}"


def _place(upper: Entry, lower: LowerWorld, world: World) -> LowerContext:
    """Return the `LowerContext` of the pod."""
    space = lower.namespaces.get("", lower.namespace(upper.namespace))
    key = Key("pod", lower.name, upper.namespace, upper.name)
    return placement(space.uid if space else "", key, lower, world)
