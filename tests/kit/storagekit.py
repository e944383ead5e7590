"""Claims and volumes for the storage tests: a world with a class that deletes and one that retains, both mapped."""

from typing import Any

from worldkit import (
    OWNER_HERE,
    A,
    B,
    add_namespace,
    add_virtual_node,
    decision_and_plan,
    make_object,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.kube.store import Entry
from tensile.names import LOWER, LOWER_CLAIM_UID, PROVISIONER
from tensile.objects import CLAIM, STORAGE_CLASS, UPPER, VOLUME, Manifest, metadata
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.rules.claim_rule import ClaimRule, key_of, lower_claim
from tensile.reconcile.rules.claims import SELECTED_NODE
from tensile.reconcile.world import Key, World

RULE = ClaimRule()
KEY = key_of(A, "default", "data")
PROVISIONER_ANNOTATION = {"volume.kubernetes.io/storage-provisioner": PROVISIONER}
USES = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


def storage_world() -> World:
    """Make a world with both virtual nodes, a namespace in every cluster, and two upper storage classes."""
    classes = "storageClasses: {goes: disk, stays: disk}"
    world = make_world(f"name: {A}, {classes}", f"name: {B}, {classes}")
    for lower in (A, B):
        add_virtual_node(world, lower)
        add_namespace(world, lower)
    for name, policy in (("goes", "Delete"), ("stays", "Retain")):
        put(world.upper.more[STORAGE_CLASS], {**make_object("StorageClass", name, ""), "reclaimPolicy": policy})
    return world


def make_claim(
    name: str = "data", node: str = "", volume: str = "", size: str = "1Gi", storage_class: str = "goes", **meta: Any
) -> Manifest:
    """Make an upper claim: with a selected node, or bound to a volume, or neither."""
    notes = {**({SELECTED_NODE: node, **PROVISIONER_ANNOTATION} if node else {}), **meta.pop("annotations", {})}
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
        **({"volumeName": volume} if volume else {}),
    }
    status = {"phase": "Bound", "capacity": {"storage": size}} if volume else {"phase": "Pending"}
    given = {"annotations": notes, "uid": f"claim-{name}", **meta}
    return {**make_object("PersistentVolumeClaim", name, **given), "spec": spec, "status": status}


def make_lower_claim(of: Manifest, size: str = "", phase: str = "", **meta: Any) -> Manifest:
    """Make the lower claim of an upper one as the engine would; with a size, it is bound."""
    word = of["spec"]["storageClassName"]
    made = lower_claim(of, OWNER_HERE, metadata(of)["namespace"], {"goes": "disk", "stays": "disk"}.get(word, word))
    status = {"phase": "Bound", "capacity": {"storage": size}} if size else {"phase": phase or "Pending"}
    identity = {"uid": f"below-{metadata(of)['uid']}", **meta}
    return with_owner_marks({**made, "status": status}, metadata(of)["uid"], **identity)


def make_placeholder(
    of: Manifest, lower: str = A, phase: str = "Bound", policy: str = "Delete", **meta: Any
) -> Manifest:
    """Make the placeholder of an upper claim in a lower, as the engine and Kubernetes would."""
    holder = {field: metadata(of)[field] for field in ("namespace", "name", "uid")}
    notes = {LOWER: lower, LOWER_CLAIM_UID: f"below-{metadata(of)['uid']}", **meta.pop("annotations", {})}
    name = meta.pop("name", f"pvc-{holder['uid']}")
    spec = {"capacity": {"storage": "1Gi"}, "claimRef": holder, "persistentVolumeReclaimPolicy": policy}
    made = {**make_object("PersistentVolume", name, "", annotations=notes), "spec": spec, "status": {"phase": phase}}
    return with_owner_marks(made, holder["uid"], **meta)


def make_lower_volume(of: Manifest, policy: str = "Delete") -> Manifest:
    """Make the lower volume of a lower claim."""
    spec = {
        "claimRef": {"uid": metadata(of)["uid"]},
        "csi": {"driver": "disk.example.com", "volumeHandle": "h"},
        "persistentVolumeReclaimPolicy": policy,
        "capacity": {"storage": "1Gi"},
    }
    return {**make_object("PersistentVolume", "disk-1", ""), "spec": spec}


def put_upper_claims(world: World, *claims: Manifest) -> Entry:
    """Put upper claims into their cache."""
    return put(world.upper.more[CLAIM], *claims)


def put_lower_claims(world: World, *claims: Manifest, lower: str = A) -> Entry:
    """Put lower claims into their cache."""
    return put(world.lowers[lower].more[CLAIM], *claims)


def put_upper_volumes(world: World, *found: Manifest) -> Entry:
    """Put upper volumes into their cache."""
    return put(world.upper.more[VOLUME], *found)


def put_bound_pod(world: World, name: str = "web", lower: str = A, spec: Manifest | None = None, **meta: Any) -> Entry:
    """Put a pod that uses claim `data` and is bound to a lower's node into its cache."""
    return put(world.lowers[lower].upper_pods, make_upper_pod(name, {**(spec or USES), "nodeName": lower}, **meta))


def put_bound_claim(world: World, lower: str = A, **fields: Any) -> Manifest:
    """Put an upper claim bound to its placeholder, and its bound lower claim; return the upper one."""
    made = make_claim(volume="pvc-claim-data", **fields)
    put_upper_claims(world, made)
    put_lower_claims(world, make_lower_claim(made, "1Gi"), lower=lower)
    put_upper_volumes(world, make_placeholder(made, lower))
    return made


def plan_of(world: World, key: Key = KEY) -> Plan:
    """Return the plan of a key."""
    return decision_and_plan(RULE, key, world)[1]


def only_step(world: World, key: Key = KEY) -> Step:
    """Return the one step of a plan that has no problem."""
    found = plan_of(world, key)
    assert found.problem is None
    (step,) = found.steps
    return step


def problem_reason(world: World, key: Key = KEY) -> str:
    """Return the reason of a plan's problem, and require that its steps write to the upper cluster only."""
    found = plan_of(world, key)
    assert found.problem is not None
    assert [step for step in found.steps if step.ref.cluster != UPPER] == []
    return found.problem.reason
