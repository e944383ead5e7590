"""Upper Roles and RoleBindings, and their lower copies."""

from typing import Any

from worldkit import A, account, home, marked, put, raised, thing, upper_pod, world

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
    return {**thing("Role", "reader", api=f"{GROUP}/v1", **meta), "rules": rules}


def binding(kind: str = "Role", name: str = "reader", subjects: list[Manifest] | None = None) -> Manifest:
    """Make the upper RoleBinding, of the robot and other subjects."""
    meta = thing("RoleBinding", "reads", api=f"{GROUP}/v1")
    role_ref = {"apiGroup": GROUP, "kind": kind, "name": name}
    return {**meta, "roleRef": role_ref, "subjects": [ROBOT, *OTHERS] if subjects is None else subjects}


def granted(more: str = ON, **binding_fields: Any) -> World:
    """Make a world with a pod of the robot on lower-a, a copy of its account there, and a Role for it."""
    here = world(more=more)
    raised(here)
    home(here)
    put(here.upper.more[SERVICE_ACCOUNT], account(name="robot"))
    put(here.lowers[A].more[SERVICE_ACCOUNT], marked(account(name="robot"), "ServiceAccount-robot", uid="below-robot"))
    put(here.lowers[A].upper_pods, upper_pod(spec={"serviceAccountName": "robot"}))
    put(here.upper.more[ROLE], role())
    put(here.upper.more[ROLE_BINDING], binding(**binding_fields))
    return here


def with_role(here: World, **given: Any) -> World:
    """Put the Role into the lower as the engine creates it."""
    put(here.lowers[A].more[ROLE], marked({**role(), **given}, "Role-reader", uid="below-role"))
    return here


def with_binding(here: World, **given: Any) -> World:
    """Put the RoleBinding into the lower as the engine creates it."""
    body = {**binding(subjects=[ROBOT]), **given}
    put(here.lowers[A].more[ROLE_BINDING], marked(body, "RoleBinding-reads", uid="below-binding"))
    return here
