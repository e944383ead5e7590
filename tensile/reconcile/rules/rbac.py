"""The rule for rights of accounts that pods run as: Roles and RoleBindings of accounts that have a copy of ours.

A binding is copied only with those of its subjects that are accounts with a copy of ours. A user or group of the same
name is another subject in the lower cluster, and the account `default` serves other pods too. A ClusterRole is referred
to by name if the lower cluster has it. The lower apiserver decides whether we may grant a role. Pods run meanwhile, so
a refusal is reported in events and retried with back-off. A right that was seen deleted is deleted at once; for a right
that is merely missing, `rbac_orphans.py` decides within the guard.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from tensile.kube.store import Delta, Entry, Transformed, decoded
from tensile.kube.tombstones import Tombstone
from tensile.objects import (
    CLUSTER_ROLE,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Manifest,
    Ref,
    annotations,
    labels,
    uid,
)
from tensile.reconcile.desired import Absent, Decision, EmitEvent, MapKeys, Present, Watch
from tensile.reconcile.ownership import has_node, is_of, is_ours
from tensile.reconcile.rules import namespaces, service_accounts
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "rights"
_KINDS = {kind.name: kind for kind in (ROLE, ROLE_BINDING)}
_SECTIONS = ("metadata.labels", "metadata.annotations", "rules", "subjects")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_TOLD_AT_MOST = 5
"""Maximum pods of one account that get an event about a refusal: one is enough to find the reason."""


class BindingFacts(NamedTuple):
    """The facts of a RoleBinding: its role's kind and name, and its accounts, as (namespace, name)."""

    kind: str
    role: str
    accounts: tuple[tuple[str, str], ...]


_Accounts = tuple[tuple[str, str], ...]


def digest(raw: bytes) -> Transformed:
    """Transform a RoleBinding: its bytes and facts."""
    manifest = decoded(raw)
    role = manifest.get("roleRef") or {}
    found = (
        (one.get("namespace", ""), one.get("name", ""))
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


INDEXES = {"account": _by_account, "role": _by_role}


def key_of(lower: str, namespace: str, kind: Kind, name: str) -> Key:
    """Return the key of a Role or RoleBinding, by its upper namespace and name."""
    return Key(NAME, lower, namespace, f"{kind.name}/{name}")


class RBACRule:
    """The rule with one key for each RoleBinding of a mirrored account, each Role in one, and each copy."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch roles and bindings on both sides, and accounts that become or cease to be ours in the lower cluster."""
        return (
            Watch("upper.Role", _original(ROLE)),
            Watch("upper.RoleBinding", _binding),
            Watch("Role", _copy(ROLE)),
            Watch("RoleBinding", _binding_below),
            Watch("ClusterRole", _cluster_role),
            Watch("ServiceAccount", _account),
            Watch("upper_pods", _user, facts=()),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of every binding of an account of ours, its role, and every copy."""
        here = world.lowers[lower]
        found = {key for entry in here.more[SERVICE_ACCOUNT] for key in _of_account(world, here, entry)}
        for kind in _KINDS.values():
            found |= {key for entry in here.more[kind] for key in _below(here, kind, entry)}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the copy while an account of ours has rights by it."""
        lower = world.lowers[key.lower]
        kind_name, _, name = key.name.partition("/")
        kind = _KINDS[kind_name]
        originals, copies = world.upper.more[kind], lower.more[kind]
        if not (is_known(world, lower) and lower.settled):
            return Decision()
        ref = Ref(lower.name, kind, lower.namespace(key.namespace), name)
        original = originals.get(key.namespace, name)
        users = _users(world, lower, kind, key.namespace, name)
        copy = copies.get(ref.namespace, name)
        if original is None:
            return _without_original(world, ref, copy, originals.tombstone(key.namespace, name))
        if not users:
            is_kept = kind == ROLE and _is_granted_yet(world, lower, ref)
            return Decision() if is_kept else _end(world, ref, copy)
        if not any(service_accounts.is_asked(world, lower, *account) for account in users):
            return Decision()
        return _kept(world, lower, ref, original, users)


def is_known(world: World, lower: LowerWorld) -> bool:
    """Report whether all that rights rest on is listed: an account that is not listed yet would seem to have none."""
    above = (world.upper.more[kind] for kind in (ROLE, ROLE_BINDING))
    below = (lower.more[kind] for kind in (ROLE, ROLE_BINDING, CLUSTER_ROLE))
    return service_accounts.known(world, lower) and all(cache.synced for cache in (*above, *below))


def _users(world: World, lower: LowerWorld, kind: Kind, namespace: str, name: str) -> _Accounts:
    """Return the accounts, by upper name, that have rights by a role or binding and a copy of ours."""
    bindings = world.upper.more[ROLE_BINDING]
    if kind == ROLE:
        entries = bindings.select("role", (ROLE.name, namespace, name))
    else:
        entry = bindings.get(namespace, name)
        entries = () if entry is None else (entry,)
    found = {one for entry in entries for one in entry.facts.accounts if _is_ours(world, lower, one)}
    return tuple(sorted(found))


def _is_ours(world: World, lower: LowerWorld, account: tuple[str, str]) -> bool:
    """Report whether an upper account has a copy that pods use, with the lower cluster's tokens."""
    is_enabled = "RBAC" in lower.spec.controllers and lower.spec.service_accounts.identity == "lower"
    return (
        is_enabled
        and service_accounts.is_used(world, lower, *account)
        and service_accounts.standing(world, lower, *account) is not None
    )


def _is_granted_yet(world: World, lower: LowerWorld, role: Ref) -> bool:
    """Report whether a lower binding whose original is merely missing grants a role; the role is deleted after it."""
    missing = (
        one.manifest()
        for one in lower.more[ROLE_BINDING]
        if one.namespace == role.namespace and _is_merely_missing(world, lower, one)
    )
    refs = (one["roleRef"] for one in missing if is_ours(one, world.owner))
    return any(ref["kind"] == ROLE.name and ref["name"] == role.name for ref in refs)


def _is_merely_missing(world: World, lower: LowerWorld, copy: Entry) -> bool:
    """Report whether a lower binding has no upper one, though that was not seen deleted."""
    originals, place = world.upper.more[ROLE_BINDING], (lower.upper_namespace(copy.namespace), copy.name)
    departed = originals.tombstone(*place)
    return bool(place[0]) and originals.get(*place) is None and not (departed is not None and departed.seen)


def _without_original(world: World, ref: Ref, copy: Entry | None, departed: Tombstone | None) -> Decision:
    """Delete the copy if its original was seen deleted; if that is merely missing, nothing is decided here."""
    if copy is None or departed is None or not departed.seen:
        return Decision()
    return _end(world, ref, copy) if is_of(copy.manifest(), world.owner, departed.uid) else Decision()


def _kept(world: World, lower: LowerWorld, ref: Ref, original: Entry, users: _Accounts) -> Decision:
    if not (has_node(lower, world) and namespaces.ready(lower, original.namespace)):
        return Decision()
    obstacle = _obstacle(world, lower, original) if ref.kind == ROLE_BINDING else None
    if obstacle is not None:
        told = _told(obstacle.problem, lower, original, ref.kind, users)
        return obstacle._replace(wanted=(*obstacle.wanted, *told))
    manifest = _copy_of(original, ref, users, lower, world)
    reason = f"pods on node {lower.node} have rights by it"
    wanted = Present(ref, manifest, reason, sections=_SECTIONS, replaceable=True, independent=True)
    refusal = world.problems.get(key_of(lower.name, original.namespace, ref.kind, original.name))
    return Decision((wanted, *_told(refusal, lower, original, ref.kind, users)))


def _is_spared(upper_namespace: str, role: Entry, world: World) -> bool:
    """Report whether a lower role is ours and its upper role merely missing: it may soon be back."""
    departed = world.upper.more[ROLE].tombstone(upper_namespace, role.name)
    return is_ours(role.manifest(), world.owner) and not (departed is not None and departed.seen)


def _obstacle(world: World, lower: LowerWorld, binding: Entry) -> Decision | None:
    """Return what keeps a binding from being in the lower cluster as it should be, None for nothing.

    A role that the lower cluster lacks cannot be granted. Nor can one that is foreign by now: a remaining binding would
    give our accounts the rights of that role.
    """
    facts: BindingFacts = binding.facts
    ref = Ref(lower.name, ROLE_BINDING, lower.namespace(binding.namespace), binding.name)
    copy = lower.more[ROLE_BINDING].get(ref.namespace, ref.name)
    ours = copy if copy is not None and is_ours(copy.manifest(), world.owner) else None
    if ours is not None and not _grants(ours.manifest(), facts):
        return Decision((Absent(ref, ours.uid, "it grants another role, which cannot be changed"),))
    if facts.kind == ROLE.name:
        role = lower.more[ROLE].get(lower.namespace(binding.namespace), facts.role)
        above = world.upper.more[ROLE].get(binding.namespace, facts.role)
        if above is not None and role is not None and is_of(role.manifest(), world.owner, above.uid):
            return None
        if above is None and role is not None and _is_spared(binding.namespace, role, world):
            return Decision()
        left = () if ours is None else (Absent(ref, ours.uid, f"Role {facts.role} is not there, or not ours"),)
        return Decision(left, () if above is None else (key_of(lower.name, binding.namespace, ROLE, facts.role),))
    if lower.more[CLUSTER_ROLE].get("", facts.role) is not None:
        return None
    where = f"RoleBinding {binding.namespace}/{binding.name}"
    missing = f"{where}: lower cluster {lower.name} has no ClusterRole {facts.role}: make it there, or use a Role"
    return Decision(problem=Problem("ClusterRoleNotFound", missing))


def _grants(seen: Manifest, facts: BindingFacts) -> bool:
    """Report whether a lower binding refers to the same role as the upper one."""
    role = seen.get("roleRef") or {}
    return (role.get("kind"), role.get("name")) == (facts.kind, facts.role)


def _copy_of(original: Entry, ref: Ref, users: _Accounts, lower: LowerWorld, world: World) -> Manifest:
    above = original.manifest()
    kept = {key: value for key, value in annotations(above).items() if key != _LAST_APPLIED}
    marks = world.owner.signed(uid(above))
    meta = {
        "name": ref.name,
        "namespace": ref.namespace,
        "labels": labels(above) | world.owner.label,
        "annotations": kept | marks,
    }
    content = {"rules": above.get("rules") or []} if ref.kind == ROLE else _content(above, users, lower)
    return {"apiVersion": ref.kind.api, "kind": ref.kind.name, "metadata": meta, **content}


def _content(binding: Manifest, users: _Accounts, lower: LowerWorld) -> Manifest:
    """Return a binding's role, and those of its subjects that are accounts of ours in the lower cluster."""
    subjects = [
        {"kind": SERVICE_ACCOUNT.name, "namespace": lower.namespace(namespace), "name": name}
        for namespace, name in users
    ]
    return {"roleRef": binding["roleRef"], "subjects": subjects}


def _told(
    problem: Problem | None, lower: LowerWorld, original: Entry, kind: Kind, users: _Accounts
) -> Iterator[EmitEvent]:
    """Yield events about a refusal: on the upper object, and on some of the pods that lack the rights."""
    if problem is None:
        return
    message = (
        f"{kind.name} {original.namespace}/{original.name} is not in lower cluster {lower.name}: {problem.message}"
    )
    yield EmitEvent(Ref(UPPER, kind, original.namespace, original.name), original.uid, problem.reason, message)
    for namespace, name in users:
        pods = lower.upper_pods.select("reference", (SERVICE_ACCOUNT.name, namespace, name))
        for pod in sorted(pods, key=lambda one: one.name)[:_TOLD_AT_MOST]:
            yield EmitEvent(Ref(UPPER, POD, namespace, pod.name), pod.uid, problem.reason, message)


def _end(world: World, ref: Ref, copy: Entry | None) -> Decision:
    if copy is None or not is_ours(copy.manifest(), world.owner):
        return Decision()
    return Decision((Absent(ref, copy.uid, "no mirrored account has rights by it any more"),))


def _of_binding(lower: str, entry: Entry) -> Iterator[Key]:
    yield key_of(lower, entry.namespace, ROLE_BINDING, entry.name)
    if entry.facts.kind == ROLE.name:
        yield key_of(lower, entry.namespace, ROLE, entry.facts.role)


def _of_account(world: World, lower: LowerWorld, account: Entry) -> Iterator[Key]:
    """Yield the keys of the bindings and roles of an account, by its copy."""
    for namespace in lower.above(account.namespace):
        for entry in world.upper.more[ROLE_BINDING].select("account", (namespace, account.name)):
            yield from _of_binding(lower.name, entry)


def _below(lower: LowerWorld, kind: Kind, entry: Entry) -> Iterator[Key]:
    for namespace in lower.above(entry.namespace):
        yield key_of(lower.name, namespace, kind, entry.name)


def _original(kind: Kind) -> MapKeys:
    def keys(world: World, lower: str, delta: Delta) -> Iterator[Key]:
        """Yield a role's key if an account has rights by it, or a copy exists."""
        here, entry = world.lowers[lower], delta.entry
        used = _users(world, here, kind, entry.namespace, entry.name)
        if used or here.more[kind].get(here.namespace(entry.namespace), entry.name) is not None:
            yield key_of(lower, entry.namespace, kind, entry.name)

    return keys


def _binding(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of a binding and its role, if it gives or gave rights to an account of ours, or has a copy."""
    here = world.lowers[lower]
    for entry in (one for one in delta if one is not None):
        used = any(_is_ours(world, here, one) for one in entry.facts.accounts)
        if used or here.more[ROLE_BINDING].get(here.namespace(entry.namespace), entry.name) is not None:
            yield from _of_binding(lower, entry)


def _copy(kind: Kind) -> MapKeys:
    def keys(world: World, lower: str, delta: Delta) -> Iterable[Key]:
        """Yield the key of a copy."""
        yield from _below(world.lowers[lower], kind, delta.entry)

    return keys


def _binding_below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key of a binding's copy, and on its deletion that of its role, which may have stayed for it."""
    here, entry = world.lowers[lower], delta.entry
    for key in _below(here, ROLE_BINDING, entry):
        yield key
        if delta.after is None:
            yield key_of(lower, key.namespace, ROLE, entry.manifest()["roleRef"]["name"])


def _cluster_role(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the bindings that wait for a ClusterRole, or would be refused without it."""
    if (delta.before is None) == (delta.after is None):
        return
    for entry in world.upper.more[ROLE_BINDING].select("role", (CLUSTER_ROLE.name, "", delta.entry.name)):
        if any(_is_ours(world, world.lowers[lower], one) for one in entry.facts.accounts):
            yield key_of(lower, entry.namespace, ROLE_BINDING, entry.name)


def _user(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of the rights of accounts that a pod is the first to need: they may not be up to date."""
    here = world.lowers[lower]
    if delta.before is not None or delta.after is None or "RBAC" not in here.spec.controllers:
        return
    for name in sorted(service_accounts.named(delta.after)):
        askers = service_accounts.pods_using(world, here, delta.after.namespace, name)
        copy = service_accounts.standing(world, here, delta.after.namespace, name)
        if copy is not None and len(list(islice(askers, 2))) == 1:
            yield from _of_account(world, here, copy)


def _account(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the keys of the rights of an account that appears, changes or is deleted: it may have become ours."""
    if delta.before is None or delta.after is None or delta.before.version != delta.after.version:
        yield from _of_account(world, world.lowers[lower], delta.entry)
