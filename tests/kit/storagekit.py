"""Claims and volumes for the storage tests: a world with a class that deletes and one that retains, both mapped."""

from typing import Any

from worldkit import OWNER_HERE, A, B, decided, home, marked, put, raised, thing, upper_pod, world

from tensile.kube.store import Entry
from tensile.names import LOWER, LOWER_CLAIM_UID, PROVISIONER
from tensile.objects import CLAIM, STORAGE_CLASS, UPPER, VOLUME, Manifest, metadata
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.rules.claim_rule import ClaimRule, key_of, lower_claim
from tensile.reconcile.rules.claims import SELECTED_NODE
from tensile.reconcile.world import Key, World

RULE = ClaimRule()
KEY = key_of(A, "default", "data")
ASKED = {"volume.kubernetes.io/storage-provisioner": PROVISIONER}
USES = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


def ground() -> World:
    """Make a world with both virtual nodes, a namespace in every cluster, and two upper storage classes."""
    classes = "storageClasses: {goes: disk, stays: disk}"
    here = world(f"name: {A}, {classes}", f"name: {B}, {classes}")
    for lower in (A, B):
        raised(here, lower)
        home(here, lower)
    for name, policy in (("goes", "Delete"), ("stays", "Retain")):
        put(here.upper.more[STORAGE_CLASS], {**thing("StorageClass", name, ""), "reclaimPolicy": policy})
    return here


def claim(
    name: str = "data", node: str = "", volume: str = "", size: str = "1Gi", word: str = "goes", **meta: Any
) -> Manifest:
    """Make an upper claim: with a selected node, or bound to a volume, or neither."""
    notes = {**({SELECTED_NODE: node, **ASKED} if node else {}), **meta.pop("annotations", {})}
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": word,
        "resources": {"requests": {"storage": size}},
        **({"volumeName": volume} if volume else {}),
    }
    status = {"phase": "Bound", "capacity": {"storage": size}} if volume else {"phase": "Pending"}
    given = {"annotations": notes, "uid": f"claim-{name}", **meta}
    return {**thing("PersistentVolumeClaim", name, **given), "spec": spec, "status": status}


def copy(of: Manifest, size: str = "", phase: str = "", **meta: Any) -> Manifest:
    """Make the lower claim of an upper one as the engine would; with a size, it is bound."""
    word = of["spec"]["storageClassName"]
    made = lower_claim(of, OWNER_HERE, metadata(of)["namespace"], {"goes": "disk", "stays": "disk"}.get(word, word))
    status = {"phase": "Bound", "capacity": {"storage": size}} if size else {"phase": phase or "Pending"}
    identity = {"uid": f"below-{metadata(of)['uid']}", **meta}
    return marked({**made, "status": status}, metadata(of)["uid"], **identity)


def volume(of: Manifest, lower: str = A, phase: str = "Bound", policy: str = "Delete", **meta: Any) -> Manifest:
    """Make the placeholder of an upper claim in a lower, as the engine and Kubernetes would."""
    holder = {field: metadata(of)[field] for field in ("namespace", "name", "uid")}
    notes = {LOWER: lower, LOWER_CLAIM_UID: f"below-{metadata(of)['uid']}", **meta.pop("annotations", {})}
    name = meta.pop("name", f"pvc-{holder['uid']}")
    spec = {"capacity": {"storage": "1Gi"}, "claimRef": holder, "persistentVolumeReclaimPolicy": policy}
    made = {**thing("PersistentVolume", name, "", annotations=notes), "spec": spec, "status": {"phase": phase}}
    return marked(made, holder["uid"], **meta)


def disk(of: Manifest, policy: str = "Delete") -> Manifest:
    """Make the lower volume of a lower claim."""
    spec = {
        "claimRef": {"uid": metadata(of)["uid"]},
        "csi": {"driver": "disk.example.com", "volumeHandle": "h"},
        "persistentVolumeReclaimPolicy": policy,
        "capacity": {"storage": "1Gi"},
    }
    return {**thing("PersistentVolume", "disk-1", ""), "spec": spec}


def above(here: World, *claims: Manifest) -> Entry:
    """Put upper claims into their cache."""
    return put(here.upper.more[CLAIM], *claims)


def below(here: World, *claims: Manifest, lower: str = A) -> Entry:
    """Put lower claims into their cache."""
    return put(here.lowers[lower].more[CLAIM], *claims)


def volumes(here: World, *found: Manifest) -> Entry:
    """Put upper volumes into their cache."""
    return put(here.upper.more[VOLUME], *found)


def bound(here: World, name: str = "web", lower: str = A, spec: Manifest | None = None, **meta: Any) -> Entry:
    """Put a pod that uses claim `data` and is bound to a lower's node into its cache."""
    return put(here.lowers[lower].upper_pods, upper_pod(name, {**(spec or USES), "nodeName": lower}, **meta))


def settled_claim(here: World, lower: str = A, **fields: Any) -> Manifest:
    """Put an upper claim bound to its placeholder, and its bound lower claim; return the upper one."""
    made = claim(volume="pvc-claim-data", **fields)
    above(here, made)
    below(here, copy(made, "1Gi"), lower=lower)
    volumes(here, volume(made, lower))
    return made


def planned(here: World, key: Key = KEY) -> Plan:
    """Return the plan of a key."""
    return decided(RULE, key, here)[1]


def the_step(here: World, key: Key = KEY) -> Step:
    """Return the one step of a plan that has no problem."""
    found = planned(here, key)
    assert found.problem is None
    (step,) = found.steps
    return step


def reason(here: World, key: Key = KEY) -> str:
    """Return the reason of a plan's problem, and require that its steps write to the upper cluster only."""
    found = planned(here, key)
    assert found.problem is not None
    assert [step for step in found.steps if step.ref.cluster != UPPER] == []
    return found.problem.reason
