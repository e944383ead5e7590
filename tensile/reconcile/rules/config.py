"""ConfigMaps and Secrets that pods refer to: created before the pod, updated, deleted after the last one.

Copies are created and updated for upper pods only (`copies.py`), because anyone may create a lower pod that names a
Secret. A lower pod of ours only keeps an existing copy from deletion, as it is: what the guard keeps running must keep
its configuration. The pull secrets of a pod's account count as references. Lower Secrets with tokens of the upper
cluster are not copies and are ignored. A name that pods can do without, and that the upper cluster does not have, is
held by an empty object, see `_hold`.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from tensile.kube.store import Delta, Entry
from tensile.names import NO_ORIGINAL, ProblemReason
from tensile.objects import CONFIG_MAP, POD, SECRET, SERVICE_ACCOUNT, UPPER, Kind, Manifest, Ref
from tensile.reconcile.copies import is_referenced_in_lower, mirror_of
from tensile.reconcile.desired import Decision, EmitEvent, Present, Watch
from tensile.reconcile.ownership import NAME_CONFLICT, has_node, is_copy
from tensile.reconcile.pods.references import Reference, copy_of, never_copied
from tensile.reconcile.rules import service_accounts
from tensile.reconcile.rules.mirror_rule import (
    MirroredKind,
    MirrorRule,
    Need,
    Pair,
    Users,
    follow_deletion,
    pods_referring,
)
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "dependency"
KINDS = {CONFIG_MAP.name: CONFIG_MAP, SECRET.name: SECRET}
CONFIG_MAP_NOT_FOUND: ProblemReason = "ConfigMapNotFound"
"""A pod needs a ConfigMap that the upper cluster does not have. Remedy: create it in the namespace of the pod."""
SECRET_NOT_FOUND: ProblemReason = "SecretNotFound"  # noqa: S105 - a reason
"""A pod needs a Secret that the upper cluster does not have. Remedy: create it in the namespace of the pod."""
SECRET_NOT_MIRRORED: ProblemReason = "SecretNotMirrored"  # noqa: S105 - a reason
"""A pod needs a Secret that must not leave the upper cluster, such as a token of a service account. Remedy: see the
message, and [identities](../identity.md)."""
TOO_MANY_RESERVED: ProblemReason = "TooManyReservedNames"
"""Pods of the namespace refer to too many optional ConfigMaps or Secrets that the upper cluster does not have.
Remedy: create them, or remove the references."""
_NOT_FOUND = {CONFIG_MAP.name: CONFIG_MAP_NOT_FOUND, SECRET.name: SECRET_NOT_FOUND}
_SECTIONS = ("metadata.labels", "metadata.annotations", "data", "binaryData", "immutable")

LIMIT = 1_000
"""Maximum names of one kind held in a lower namespace, so that no tenant can fill the lower's store."""
RETRY_SECONDS = 60.0
"""Seconds until the next check whether there is room for one more."""
_MAX_EVENTS = 5
"""Maximum pods that get an event about a name that was taken while they ran."""
_HELD_SECTIONS = ("metadata.labels", "metadata.annotations", "data", "binaryData")


def key_of(lower: str, namespace: str, kind: str, name: str) -> Key:
    """Return the key of one copied object, by its upper namespace and name."""
    return Key(NAME, lower, namespace, f"{kind}/{name}")


def missing(world: World, lower: LowerWorld, namespace: str, wanted: Iterable[Reference]) -> list[Key]:
    """Return the keys of the objects that a pod has to wait for: those it names, and its account's pull secrets.

    An optional object has to exist in the lower cluster too, or its name has to be held.
    """
    wanted = tuple(wanted)
    if lower.spec.service_accounts.identity != "none":
        pulls = service_accounts.secrets_of(world, namespace, wanted)
        wanted = (*wanted, *(Reference(SECRET.name, name, optional=True) for name in pulls))
    found = {
        key_of(lower.name, namespace, reference.kind, reference.name)
        for reference in wanted
        if reference.kind in KINDS and not _is_in_lower(world, lower, namespace, reference)
    }
    return sorted(found)


def _is_in_lower(world: World, lower: LowerWorld, namespace: str, reference: Reference) -> bool:
    kind = KINDS[reference.kind]
    originals, copies = world.upper.cache(kind), lower.cache(kind)
    assert originals is not None
    assert copies is not None
    original, copy = originals.get(namespace, reference.name), copies.get(lower.namespace(namespace), reference.name)
    if copy is None or not is_copy(copy, world.owner):
        return False
    if original is None:
        return reference.optional
    if copy.facts.upper_uid == original.uid:
        return True
    return reference.optional and _is_name_held(copy) and bool(never_copied(original.manifest()))


def _is_name_held(copy: Entry) -> bool:
    """Report whether a lower ConfigMap or Secret of ours only holds its name."""
    return bool(copy.facts.upper_uid == NO_ORIGINAL)


def _need(pair: Pair) -> Need:
    """Return what needs an object; nothing is unneeded before it is known which accounts pull images with it."""
    if any(True for _ in _pods_needing(pair)):
        return Need.ASKED
    if not service_accounts.known(pair.world, pair.lower) or pair.is_kept:
        return Need.KEPT
    accounts, namespace = _pulling(pair.ref.kind, pair.world, pair.key.namespace, pair.ref.name), pair.key.namespace
    is_kept = any(is_referenced_in_lower(pair.lower, SERVICE_ACCOUNT.name, namespace, account) for account in accounts)
    return Need.KEPT if is_kept else Need.NONE


def _pods_needing(pair: Pair) -> Iterator[Entry]:
    """Yield the upper pods that need an object, by naming it or by the account that they run as."""
    yield from pair.referring()
    for account in _pulling(pair.ref.kind, pair.world, pair.key.namespace, pair.ref.name):
        yield from service_accounts.pods_using(pair.world, pair.lower, pair.key.namespace, account)


def _pulling(kind: Kind, world: World, namespace: str, name: str) -> list[str]:
    """Return the upper accounts that pull images with an object, if it is a Secret."""
    return service_accounts.pulling(world, namespace, name) if kind == SECRET else []


def _present(pair: Pair, original: Entry) -> Decision:
    """Return the copy, unless the object must not leave the upper cluster."""
    refused = never_copied(original.manifest())
    if refused:
        return _hold(pair, Decision(problem=_needed(pair, SECRET_NOT_MIRRORED, refused)))
    obstacle = pair.obstacle(_pods_needing(pair))
    if obstacle is not None:
        return obstacle
    wanted = Present(
        pair.ref,
        copy_of(original.manifest(), pair.world.owner, pair.ref.namespace),
        f"pods on node {pair.lower.node} refer to it",
        sections=_SECTIONS,
        replaceable=True,
    )
    return Decision((*_refused(pair), wanted))


def _refused(pair: Pair) -> Iterator[EmitEvent]:
    """Yield an event on the upper object that a change of it is refused: its pods run on without a sign of that."""
    copy, is_blocked = pair.copy, pair.key in pair.world.problems
    if is_blocked and copy is not None and is_copy(copy, pair.world.owner) and not _is_name_held(copy):
        what = f"{pair.ref.kind.name} {pair.key.namespace}/{pair.ref.name}"
        yield from pair.report_problem(f"{what} is not up to date in lower cluster {pair.lower.name}: ")


def _missing(pair: Pair, need: Need) -> Decision:
    """Follow a deletion that was seen; report an object that pods need, or hold its name for pods that do without."""
    decision = follow_deletion(pair)
    if need is not Need.ASKED:
        return decision
    problem = _needed(pair, _NOT_FOUND[pair.ref.kind.name], "does not exist in the upper cluster")
    return _hold(pair, decision._replace(problem=problem))


def _needed(pair: Pair, reason: str, message: str) -> Problem | None:
    """Return the problem with an object if some pod cannot start for it."""
    upper_ref = pair.upper_ref
    needed = Reference(upper_ref.kind.name, upper_ref.name, optional=False)
    is_needed = any(needed in pod.facts.references for pod in pair.referring())
    return (
        Problem(reason, f"{upper_ref.kind.name} {upper_ref.namespace}/{upper_ref.name} {message}")
        if is_needed
        else None
    )


def _hold(pair: Pair, decision: Decision) -> Decision:
    """Hold a name without an object to copy, in addition to `decision`, if pods run without the object.

    Kubernetes starts a pod whose `optional` ConfigMap, Secret or pull secret does not exist, and gives it the object
    once it exists. In the lower cluster that name may be another's: a pod could be bound to read what exists only
    there, such as an account's token. So before the pod is created, the name is taken by an empty object with our marks
    and no upper UID. To a kubelet that is the same as no object: no variables, no files, no pull credential.

    Two alternatives were rejected. A check at the pod's creation misses an object that is created later, which the
    kubelet would give to the pod. A reference left out of the lower pod can never be added, since a pod cannot be
    changed. A pull secret created a moment after its pods would be missing permanently. The price is one object for
    each such name, which is bounded, and one write before the first pod that names it.

    A name stays held while a lower pod refers to it, even after its upper object was deleted: the pod would read
    whatever is created there next. Where the name is taken already, the pod waits with `NameConflict`: nothing is
    adopted for a name that the upper cluster does not have.
    """
    ref, copy, lower = pair.ref, pair.copy, pair.lower
    if decision.wanted or not has_node(lower, pair.world) or not _is_to_be_held(pair):
        return decision
    obstacle = pair.obstacle()
    if obstacle is not None:
        return obstacle
    if copy is None and pair.copies.count("held", ref.namespace) >= LIMIT:
        message = f"its pods refer to more than {LIMIT} {ref.kind.name}s that the upper cluster does not have"
        advice = "create them, or remove the optional references"
        where = f"namespace {ref.namespace} of lower cluster {lower.name}"
        return Decision(
            problem=Problem(TOO_MANY_RESERVED, f"{where}: {message}: {advice}"), requeue_after=RETRY_SECONDS
        )
    manifest: Manifest = {
        "apiVersion": ref.kind.api,
        "kind": ref.kind.name,
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": pair.world.owner.label,
            "annotations": pair.world.owner.signed(NO_ORIGINAL),
        },
    } | ({"type": "Opaque"} if ref.kind == SECRET else {})
    reason = "it reserves the name: pods refer to it, and the upper cluster has no such object"
    held = Present(ref, manifest, reason, sections=_HELD_SECTIONS, replaceable=True)
    # The problem of pods that need the object is reported once the name is held: others wait for that alone.
    return Decision((*_exposed(pair), held), problem=None if copy is None else decision.problem)


def _is_to_be_held(pair: Pair) -> bool:
    """Report whether pods run without an object, unless a copy of it exists that may still be needed."""
    ref, namespace, copy, world = pair.ref, pair.key.namespace, pair.copy, pair.world
    is_copied = copy is not None and is_copy(copy, world.owner) and not _is_name_held(copy)
    if pair.original is None and is_copied:
        return False
    optional = Reference(ref.kind.name, ref.name, optional=True)
    if any(optional in pod.facts.references for pod in pair.referring()) or any(True for _ in _running(pair)):
        return True
    return _pulls(ref.kind, world, pair.lower, namespace, ref.name)


def _running(pair: Pair) -> Iterator[Entry]:
    """Yield the upper pods whose lower pod refers to a name: it would read whatever is created there next."""
    mentions = {Reference(pair.ref.kind.name, pair.ref.name, optional) for optional in (False, True)}
    for pod in pair.referring():
        lower_pod = mirror_of(pod, pair.lower, pair.world.owner)
        if lower_pod is not None and mentions & lower_pod.facts.references:
            yield pod


def _exposed(pair: Pair) -> Iterator[EmitEvent]:
    """Yield events for running pods that a name they refer to is another's in the lower cluster."""
    problem = pair.world.problems.get(pair.key)
    if problem is not None and problem.reason == NAME_CONFLICT:
        message = f"delete this pod, it may read an object of another owner: {problem.message}"
        for pod in islice(_running(pair), _MAX_EVENTS):
            yield EmitEvent(Ref(UPPER, POD, pod.namespace, pod.name), pod.uid, problem.reason, message)


def _concerns(world: World, lower: LowerWorld, kind: Kind, original: Entry) -> bool:
    """Report whether upper pods refer to an object, or run as an account that pulls images with it."""
    namespace, name = original.namespace, original.name
    is_named = lower.upper_pods.count("reference", (kind.name, namespace, name)) > 0
    return is_named or _pulls(kind, world, lower, namespace, name)


def _pulls(kind: Kind, world: World, lower: LowerWorld, namespace: str, name: str) -> bool:
    """Report whether upper pods run as an account that pulls images with an object."""
    accounts = _pulling(kind, world, namespace, name)
    return any(service_accounts.is_requested(world, lower, namespace, account) for account in accounts)


def _keys_of(world: World, lower: str, namespace: str, references: Iterable[Reference]) -> Iterator[Key]:
    for reference in references:
        if reference.kind in KINDS:
            yield key_of(lower, namespace, reference.kind, reference.name)
    for secret in service_accounts.secrets_of(world, namespace, references):
        yield key_of(lower, namespace, SECRET.name, secret)


def _of_account(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the pull secrets that an upper account gains or loses, if its pods run in this lower cluster."""
    entry = delta.entry
    if service_accounts.is_used(world, world.lowers[lower], entry.namespace, entry.name):
        before, after = (frozenset(one.facts) if one else frozenset() for one in delta)
        for secret in sorted(before ^ after):
            yield key_of(lower, entry.namespace, SECRET.name, secret)


_PODS = pods_referring(_keys_of)
RULE = MirrorRule(
    name=NAME,
    kinds=tuple(
        MirroredKind(
            kind=kind,
            cache=cache,
            need=_need,
            present=_present,
            missing=_missing,
            unneeded="no pod refers to it any more",
            concerns=_concerns,
            is_copy=lambda copy: copy.facts.token is None,
        )
        for kind, cache in ((CONFIG_MAP, "config_maps"), (SECRET, "secrets"))
    ),
    users=Users(_PODS.used, (*_PODS.watches, Watch("upper.ServiceAccount", _of_account))),
)
"""One key for each ConfigMap and Secret that a virtual node's pod refers to, or that has a copy."""
