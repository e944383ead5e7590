"""Rights of accounts that pods run as: Roles and RoleBindings of accounts that have a copy of ours.

A binding is copied only with those of its subjects that are accounts with a copy of ours. A user or group of the same
name is another subject in the lower cluster, and the account `default` serves other pods too. A ClusterRole is referred
to by name if the lower cluster has it. The lower apiserver decides whether we may grant a role. Pods run meanwhile, so
a refusal is reported in events and retried with back-off. A right that was seen deleted is deleted at once; for a right
that is merely missing, the orphan rule (`orphans.py`) decides within the guard.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from tensile.kube.store import Delta, Entry, Transformed, decoded
from tensile.names import ProblemReason
from tensile.objects import CLUSTER_ROLE, POD, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, UPPER, Kind, Manifest, Ref, metadata
from tensile.reconcile.copies import is_missing_undeleted
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Watch
from tensile.reconcile.ownership import is_copy, is_copy_of
from tensile.reconcile.rules import service_accounts
from tensile.reconcile.rules.mirror_rule import (
    MirroredKind,
    MirrorRule,
    Need,
    Pair,
    Users,
    follow_deletion,
    when_node_appears,
)
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "rights"
CLUSTER_ROLE_NOT_FOUND: ProblemReason = "ClusterRoleNotFound"
"""A RoleBinding refers to a ClusterRole that the lower cluster does not have; ClusterRoles are not mirrored. Remedy:
create the ClusterRole there, or use a Role."""
_UNNEEDED = "it grants nothing to a mirrored ServiceAccount any more"
_MAX_PODS_WITH_EVENT = 5
"""Maximum pods of one account that get an event about a refusal: one is enough to find the reason."""


class BindingFacts(NamedTuple):
    """The facts of a RoleBinding: its role's kind and name, and its accounts, as (namespace, name)."""

    kind: str
    role: str
    accounts: tuple[tuple[str, str], ...]


_Accounts = tuple[tuple[str, str], ...]


def transform(raw: bytes) -> Transformed:
    """Transform a RoleBinding: its bytes and facts. An account without a namespace is of that of the binding."""
    manifest = decoded(raw)
    role, own = manifest.get("roleRef") or {}, metadata(manifest).get("namespace", "")
    found = (
        (one.get("namespace") or own, one.get("name", ""))
        for one in manifest.get("subjects") or ()
        if one.get("kind") == SERVICE_ACCOUNT.name
    )
    return Transformed(raw, BindingFacts(role.get("kind", ""), role.get("name", ""), tuple(found)))


def existence(_raw: bytes) -> Transformed:
    """Keep nothing of an object but its existence."""
    return Transformed(b"", None)


def _by_account(entry: Entry) -> Iterator[tuple[str, str]]:
    yield from entry.facts.accounts


def _by_role(entry: Entry) -> Iterator[tuple[str, str, str]]:
    yield (entry.facts.kind, entry.namespace if entry.facts.kind == ROLE.name else "", entry.facts.role)


def key_of(lower: str, namespace: str, kind: Kind, name: str) -> Key:
    """Return the key of a Role or RoleBinding, by its upper namespace and name."""
    return Key(NAME, lower, namespace, f"{kind.name}/{name}")


def is_known(world: World, lower: LowerWorld) -> bool:
    """Report whether all that rights rest on is listed: an account that is not listed yet would seem to have none."""
    upper_caches = (world.upper.more[kind] for kind in (ROLE, ROLE_BINDING))
    lower_caches = (lower.more[kind] for kind in (ROLE, ROLE_BINDING, CLUSTER_ROLE))
    is_listed = lower.settled and all(cache.synced for cache in (*upper_caches, *lower_caches))
    return is_listed and service_accounts.known(world, lower)


def _need(pair: Pair) -> Need:
    """Return what has rights by a role or binding; while that is missing, the orphan rule decides."""
    users = _users(pair.world, pair.lower, *pair.upper_ref[1:])
    if any(service_accounts.is_requested(pair.world, pair.lower, *account) for account in users):
        return Need.ASKED
    if pair.original is None or users or (pair.ref.kind == ROLE and _is_granted_yet(pair)):
        return Need.KEPT
    return Need.NONE


def _users(world: World, lower: LowerWorld, kind: Kind, namespace: str, name: str) -> _Accounts:
    """Return the accounts, by upper name, that have rights by a role or binding and a copy of ours."""
    bindings = world.upper.more[ROLE_BINDING]
    role = (ROLE.name, namespace, name)
    entries = bindings.select("role", role) if kind == ROLE else (bindings.get(namespace, name),)
    given = {one for entry in entries if entry is not None for one in entry.facts.accounts}
    found = (one for one in given if _is_ours(world, lower, one))
    return tuple(sorted(found))


def _is_ours(world: World, lower: LowerWorld, account: tuple[str, str]) -> bool:
    """Report whether an upper account has a copy that pods use, with the lower cluster's tokens."""
    is_enabled = "RBAC" in lower.spec.controllers and lower.spec.service_accounts.identity == "lower"
    return (
        is_enabled
        and service_accounts.is_used(world, lower, *account)
        and service_accounts.usable_copy(world, lower, *account) is not None
    )


def _is_granted_yet(pair: Pair) -> bool:
    """Report whether a lower binding whose original is merely missing grants a role; the role is deleted after it."""
    originals, namespace = pair.world.upper.more[ROLE_BINDING], pair.lower.upper_namespace(pair.ref.namespace)
    refs = (
        one.manifest()["roleRef"]
        for one in (pair.lower.more[ROLE_BINDING] if namespace else ())
        if one.namespace == pair.ref.namespace and is_copy(one, pair.world.owner)
        if is_missing_undeleted(originals, namespace, one.name)
    )
    return any((ref["kind"], ref["name"]) == (ROLE.name, pair.ref.name) for ref in refs)


def _present(pair: Pair, original: Entry) -> Decision:
    """Return the copy, or what keeps it from being there, with events about a refusal."""
    blocked = pair.obstacle()
    if blocked is not None:
        return blocked
    users, ref, manifest = _users(pair.world, pair.lower, *pair.upper_ref[1:]), pair.ref, original.manifest()
    obstacle = _obstacle(pair, original) if ref.kind == ROLE_BINDING else None
    if obstacle is not None:
        return obstacle._replace(wanted=(*obstacle.wanted, *_refusal_events(pair, obstacle.problem, users)))
    content = {"rules": manifest.get("rules") or []} if ref.kind == ROLE else _content(manifest, users, pair.lower)
    reason = f"it grants permissions to pods on node {pair.lower.node}"
    wanted = pair.copied(original, content, reason, ("rules", "subjects"), independent=True)
    return Decision((wanted, *_refusal_events(pair, pair.world.problems.get(pair.key), users)))


def _content(binding: Manifest, users: _Accounts, lower: LowerWorld) -> Manifest:
    """Return a binding's role, and those of its subjects that are accounts of ours in the lower cluster."""
    subjects = [
        {"kind": SERVICE_ACCOUNT.name, "namespace": lower.namespace(namespace), "name": name}
        for namespace, name in users
    ]
    return {"roleRef": binding["roleRef"], "subjects": subjects}


def _obstacle(pair: Pair, binding: Entry) -> Decision | None:
    """Return what keeps a binding from being in the lower cluster as it should be, None for nothing.

    A role that the lower cluster lacks cannot be granted. Nor can one that is foreign by now: a remaining binding would
    give our accounts the rights of that role.
    """
    facts: BindingFacts = binding.facts
    ref, copy, lower, world = pair.ref, pair.copy, pair.lower, pair.world
    ours = copy if copy is not None and is_copy(copy, world.owner) else None
    if ours is not None and not _grants(ours.manifest(), facts):
        return Decision((Absent(ref, ours.uid, "its roleRef is different, and cannot be changed"),))
    if facts.kind == ROLE.name:
        role = lower.more[ROLE].get(ref.namespace, facts.role)
        upper_role = world.upper.more[ROLE].get(binding.namespace, facts.role)
        if upper_role is not None and is_copy_of(role, world.owner, upper_role.uid):
            return None
        is_missing = is_missing_undeleted(world.upper.more[ROLE], binding.namespace, facts.role)
        if is_missing and role is not None and is_copy(role, world.owner):  # it may soon be back
            return Decision()
        left = (
            ()
            if ours is None
            else (Absent(ref, ours.uid, f"Role {facts.role} does not exist there, or has another owner"),)
        )
        return Decision(left, () if upper_role is None else (key_of(lower.name, binding.namespace, ROLE, facts.role),))
    if lower.more[CLUSTER_ROLE].get("", facts.role) is not None:
        return None
    where = f"RoleBinding {binding.namespace}/{binding.name}"
    missing = f"{where}: lower cluster {lower.name} has no ClusterRole {facts.role}: create it there, or use a Role"
    return Decision(problem=Problem(CLUSTER_ROLE_NOT_FOUND, missing))


def _grants(seen: Manifest, facts: BindingFacts) -> bool:
    """Report whether a lower binding refers to the same role as the upper one."""
    role = seen.get("roleRef") or {}
    return (role.get("kind"), role.get("name")) == (facts.kind, facts.role)


def _refusal_events(pair: Pair, problem: Problem | None, users: _Accounts) -> Iterator[EmitEvent]:
    """Yield events about a refusal: on the upper object, and on some of the pods that lack the rights."""
    if problem is None or pair.original is None:
        return
    upper_ref, lower = pair.upper_ref, pair.lower
    what = f"{upper_ref.kind.name} {upper_ref.namespace}/{upper_ref.name}"
    message = f"{what} is not mirrored to lower cluster {lower.name}: {problem.message}"
    yield EmitEvent(upper_ref, pair.original.uid, problem.reason, message)
    for namespace, name in users:
        pods = lower.upper_pods.select("reference", (SERVICE_ACCOUNT.name, namespace, name))
        for pod in sorted(pods, key=lambda one: one.name)[:_MAX_PODS_WITH_EVENT]:
            yield EmitEvent(Ref(UPPER, POD, namespace, pod.name), pod.uid, problem.reason, message)


def _of_binding(lower: str, entry: Entry) -> Iterator[Key]:
    yield key_of(lower, entry.namespace, ROLE_BINDING, entry.name)
    if entry.facts.kind == ROLE.name:
        yield key_of(lower, entry.namespace, ROLE, entry.facts.role)


def _of_account(world: World, lower: LowerWorld, account: Entry) -> Iterator[Key]:
    """Yield the keys of the bindings and roles of an account, by its copy."""
    for namespace in lower.upper_namespaces_of(account.namespace):
        for entry in world.upper.more[ROLE_BINDING].select("account", (namespace, account.name)):
            yield from _of_binding(lower.name, entry)


def _used(world: World, lower: LowerWorld) -> Iterator[Key]:
    for account in lower.more[SERVICE_ACCOUNT]:
        yield from _of_account(world, lower, account)


def _binding(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of a binding and its role, if it gives or gave rights to an account of ours, or has a copy."""
    lower_world = world.lowers[lower]
    for entry in (one for one in delta if one is not None):
        used = any(_is_ours(world, lower_world, one) for one in entry.facts.accounts)
        if used or lower_world.more[ROLE_BINDING].get(lower_world.namespace(entry.namespace), entry.name) is not None:
            yield from _of_binding(lower, entry)


def _on_lower_binding(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key of a binding's copy, and on its deletion that of its role, which may have stayed for it."""
    lower_world, entry = world.lowers[lower], delta.entry
    for namespace in lower_world.upper_namespaces_of(entry.namespace):
        yield key_of(lower, namespace, ROLE_BINDING, entry.name)
        if delta.after is None:
            yield key_of(lower, namespace, ROLE, entry.manifest()["roleRef"]["name"])


def _on_lower_role(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of a role's copy, and of the bindings that grant it: they come after it, and go with it."""
    for namespace in world.lowers[lower].upper_namespaces_of(delta.entry.namespace):
        yield key_of(lower, namespace, ROLE, delta.entry.name)
        if delta.before is None or delta.after is None:
            for one in world.upper.more[ROLE_BINDING].select("role", (ROLE.name, namespace, delta.entry.name)):
                yield key_of(lower, namespace, ROLE_BINDING, one.name)


def _cluster_role(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the bindings that wait for a ClusterRole, or would be refused without it."""
    if (delta.before is None) == (delta.after is None):
        return
    for entry in world.upper.more[ROLE_BINDING].select("role", (CLUSTER_ROLE.name, "", delta.entry.name)):
        if any(_is_ours(world, world.lowers[lower], one) for one in entry.facts.accounts):
            yield key_of(lower, entry.namespace, ROLE_BINDING, entry.name)


def _user(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of the rights of accounts that a pod is the first to need: they may not be up to date."""
    lower_world = world.lowers[lower]
    if delta.before is not None or delta.after is None or "RBAC" not in lower_world.spec.controllers:
        return
    for name in sorted(service_accounts.named(delta.after.facts.references)):
        pods = service_accounts.pods_using(world, lower_world, delta.after.namespace, name)
        copy = service_accounts.usable_copy(world, lower_world, delta.after.namespace, name)
        if copy is not None and len(list(islice(pods, 2))) == 1:
            yield from _of_account(world, lower_world, copy)


def _account(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of the rights of an account that appears, changes or is deleted: it may have become ours."""
    if delta.before is None or delta.after is None or delta.before.version != delta.after.version:
        yield from _of_account(world, world.lowers[lower], delta.entry)


def _concerns(world: World, lower: LowerWorld, kind: Kind, original: Entry) -> bool:
    return bool(_users(world, lower, kind, original.namespace, original.name))


_right = partial(
    MirroredKind,
    need=_need,
    present=_present,
    missing=partial(follow_deletion, guarded=True, reason=_UNNEEDED),
    unneeded=_UNNEEDED,
    concerns=_concerns,
)
RULE = MirrorRule(
    name=NAME,
    kinds=(
        _right(kind=ROLE, on_copy=_on_lower_role),
        _right(
            kind=ROLE_BINDING,
            on_original=_binding,
            on_copy=_on_lower_binding,
            transform_upper=transform,
            upper_indexes={"account": _by_account, "role": _by_role},
        ),
    ),
    controller="RBAC",
    users=Users(
        _used,
        (
            Watch("ClusterRole", _cluster_role),
            Watch("ServiceAccount", _account),
            Watch("upper_pods", _user, facts=()),
            Watch("upper.nodes", when_node_appears(_used)),
        ),
    ),
    is_known=is_known,
)
"""One key for each RoleBinding of a mirrored account, each Role in one, and each copy."""
