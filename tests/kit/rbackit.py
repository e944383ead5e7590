"""Upper Roles and RoleBindings, and their lower copies."""

from typing import Any

from worldkit import (
    A,
    add_namespace,
    add_virtual_node,
    make_object,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.objects import ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Manifest
from tensile.reconcile.rules.rbac import key_of
from tensile.reconcile.world import World

ROLE_KEY, BINDING_KEY = key_of(A, "default", ROLE, "reader"), key_of(A, "default", ROLE_BINDING, "reads")
GROUP = "rbac.authorization.k8s.io"
ON = "controllers: [ServiceAccount, RBAC]\n"
RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
ROBOT = {"kind": "ServiceAccount", "namespace": "default", "name": "robot"}
OTHERS = [
    {"kind": "User", "apiGroup": GROUP, "name": "alice"},
    {"kind": "Group", "apiGroup": GROUP, "name": "system:authenticated"},
    {"kind": "ServiceAccount", "namespace": "default", "name": "default"},
    {"kind": "ServiceAccount", "namespace": "elsewhere", "name": "robot"},
]


def role(rules: Any = RULES, **meta: Any) -> Manifest:
    """Make the upper Role."""
    return {**make_object("Role", "reader", api=f"{GROUP}/v1", **meta), "rules": rules}


def binding(kind: str = "Role", name: str = "reader", subjects: list[Manifest] | None = None) -> Manifest:
    """Make the upper RoleBinding, of the robot and other subjects."""
    meta = make_object("RoleBinding", "reads", api=f"{GROUP}/v1")
    role_ref = {"apiGroup": GROUP, "kind": kind, "name": name}
    return {**meta, "roleRef": role_ref, "subjects": [ROBOT, *OTHERS] if subjects is None else subjects}


def rbac_world(more: str = ON, **binding_fields: Any) -> World:
    """Make a world with a pod of the robot on lower-a, a copy of its account there, and a Role for it."""
    world = make_world(more=more)
    add_virtual_node(world)
    add_namespace(world)
    put(world.upper.more[SERVICE_ACCOUNT], make_service_account(name="robot"))
    put(
        world.lowers[A].more[SERVICE_ACCOUNT],
        with_owner_marks(make_service_account(name="robot"), "ServiceAccount-robot", uid="below-robot"),
    )
    put(world.lowers[A].upper_pods, make_upper_pod(spec={"serviceAccountName": "robot"}))
    put(world.upper.more[ROLE], role())
    put(world.upper.more[ROLE_BINDING], binding(**binding_fields))
    return world


def put_lower_role(world: World, **given: Any) -> World:
    """Put the Role into the lower as the engine creates it."""
    put(world.lowers[A].more[ROLE], with_owner_marks({**role(), **given}, "Role-reader", uid="below-role"))
    return world


def put_lower_binding(world: World, **given: Any) -> World:
    """Put the RoleBinding into the lower as the engine creates it."""
    body = {**binding(subjects=[ROBOT]), **given}
    put(world.lowers[A].more[ROLE_BINDING], with_owner_marks(body, "RoleBinding-reads", uid="below-binding"))
    return world
