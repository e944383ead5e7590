"""The rule for ConfigMaps and Secrets that pods refer to: created before the pod, updated, deleted after the last one.

Copies are created and updated for upper pods only (`copies.py`), because anyone may create a lower pod that names a
Secret. A lower pod of ours only keeps an existing copy from deletion, as it is: what the guard keeps running must keep
its configuration. The pull secrets of a pod's account count as references. Lower Secrets with tokens of the upper
cluster are not copies and are ignored. A name that pods can do without, and that the upper cluster does not have, is
held by an empty object, see `held`.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from tensile.kube.store import Cache, Delta, Entry
from tensile.names import NO_ORIGINAL, Owner
from tensile.objects import CONFIG_MAP, POD, SECRET, SERVICE_ACCOUNT, UPPER, Kind, Manifest, Ref
from tensile.reconcile.adoption import REASON
from tensile.reconcile.copies import asking, keeps, may_be_made, mirror_of
from tensile.reconcile.desired import Absent, Decision, EmitEvent, MapKeys, Present, Watch
from tensile.reconcile.ownership import has_node, is_ours
from tensile.reconcile.pods.index import lives_below
from tensile.reconcile.pods.references import Reference, copy_of, never_copied
from tensile.reconcile.rules import namespaces, service_accounts
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "dependency"
KINDS = {CONFIG_MAP.name: CONFIG_MAP, SECRET.name: SECRET}
_SECTIONS = ("metadata.labels", "metadata.annotations", "data", "binaryData", "immutable")

LIMIT = 1_000
"""Maximum names of one kind held in a lower namespace, so that no tenant can fill the lower's store."""
LOOK_AGAIN = 60.0
"""Seconds until the next check whether there is room for one more."""
_TOLD = 5
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
        if reference.kind in KINDS and not _is_there(world, lower, namespace, reference)
    }
    return sorted(found)


class ConfigRule:
    """The rule with one key for each ConfigMap and Secret that a virtual node's pod refers to, or that has a copy."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch the originals, the copies, and pods on both sides that begin or cease to refer to them."""
        return (
            Watch("upper.config_maps", _original(CONFIG_MAP)),
            Watch("upper.secrets", _original(SECRET)),
            Watch("config_maps", _copy(CONFIG_MAP)),
            Watch("secrets", _copy(SECRET)),
            Watch("upper.ServiceAccount", _of_account),
            Watch("upper_pods", _referrer, facts=("terminal", "daemon", "references")),
            Watch("pods", _referrer_below, facts=("references",)),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of everything referred to and of every copy."""
        here = world.lowers[lower]
        found = {
            key_of(lower, entry.namespace, reference.kind, reference.name)
            for entry in here.upper_pods
            for reference in entry.facts.references
            if reference.kind in KINDS
        }
        found |= {key for entry in here.upper_pods for key in _by_account(world, lower, entry)}
        for kind, cache in ((CONFIG_MAP, here.config_maps), (SECRET, here.secrets)):
            copies = (entry for entry in cache if entry.facts.token is None)
            found |= {key for entry in copies for key in _of_copy(here, kind, entry)}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the copy while something refers to it."""
        lower = world.lowers[key.lower]
        kind_name, _, name = key.name.partition("/")
        kind = KINDS[kind_name]
        originals, copies = world.upper.cache(kind), lower.below(kind)
        assert originals is not None
        assert copies is not None
        if not (originals.synced and lower.settled):
            return Decision()
        ref = Ref(lower.name, kind, lower.namespace(key.namespace), name)
        original, copy = originals.get(key.namespace, name), copies.get(ref.namespace, name)
        if copy is not None and copy.facts.token is not None:
            return Decision()
        if not _is_asked(world, lower, key.namespace, kind, name):
            return _unasked(world, ref, copy, originals, key)
        if original is None:
            return _held(world, ref, copy, key, _without_original(world, ref, copy, originals, key))
        refused = never_copied(original.manifest())
        if refused:
            problem = _needed(world, lower, key, Problem("SecretNotCopied", refused))
            return _held(world, ref, copy, key, Decision(problem=problem))
        return _kept(world, ref, original, copy, key)


def is_name_held(copy: Entry) -> bool:
    """Report whether a lower ConfigMap or Secret of ours only holds its name."""
    return bool(copy.facts.upper_uid == NO_ORIGINAL)


def held(ref: Ref, owner: Owner) -> Present:
    """Return the empty object that holds a name; a copy made there for an earlier upper object is replaced.

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
    return Present(ref, manifest, reason, sections=_HELD_SECTIONS, replaceable=True)


def too_many(ref: Ref, names: int) -> Problem | None:
    """Return why a name is not held beside `names` others of its kind and namespace, None where it may be."""
    if names < LIMIT:
        return None
    words = f"pods of it refer to more than {LIMIT} {ref.kind.name}s that the upper cluster does not have"
    advice = "make those, or take the optional references out"
    return Problem("TooManyNamesHeld", f"namespace {ref.namespace} of lower cluster {ref.cluster}: {words}: {advice}")


def exposed(pods: Iterable[Entry], problem: Problem) -> Iterator[EmitEvent]:
    """Yield events for running pods that a name they refer to is another's in the lower cluster."""
    for pod in islice(pods, _TOLD if problem.reason == REASON else 0):
        ref = Ref(UPPER, POD, pod.namespace, pod.name)
        yield EmitEvent(
            ref, pod.uid, problem.reason, f"the pod may read what is not its own, delete it: {problem.message}"
        )


def _kept(world: World, ref: Ref, original: Entry, copy: Entry | None, key: Key) -> Decision:
    lower = world.lowers[key.lower]
    if not has_node(lower, world) or (copy is None and not _may_be_made(world, lower, original, ref.kind)):
        return Decision()
    if not namespaces.ready(lower, key.namespace):
        return Decision(depends_on=(namespaces.key_of(lower.name, key.namespace),))
    wanted = Present(
        ref,
        copy_of(original.manifest(), world.owner, ref.namespace),
        f"pods on node {lower.node} refer to it",
        sections=_SECTIONS,
        replaceable=True,
    )
    return Decision((*_said(world, ref, original, copy, key), wanted))


def _unasked(world: World, ref: Ref, copy: Entry | None, originals: Cache, key: Key) -> Decision:
    """Delete a copy that no upper pod needs; one that a lower pod of ours keeps is deleted only with its original."""
    lower = world.lowers[key.lower]
    if copy is None or not service_accounts.known(world, lower):
        return Decision()
    if not _is_kept(world, lower, key.namespace, ref.kind, ref.name):
        return _end(world, ref, copy, "no pod refers to it any more")
    is_deleted = _is_deleted(originals, key.namespace, copy)
    return _end(world, ref, copy, f"the upper {ref.kind.name} was deleted") if is_deleted else Decision()


def _held(world: World, ref: Ref, copy: Entry | None, key: Key, decision: Decision) -> Decision:
    """Hold a name without an object to copy, in addition to `decision`, if pods run without the object."""
    lower, copies = world.lowers[key.lower], world.lowers[key.lower].below(ref.kind)
    assert copies is not None
    if decision.wanted or not has_node(lower, world) or not _is_to_be_held(world, ref, copy, key):
        return decision
    if not namespaces.ready(lower, key.namespace):
        return Decision(depends_on=(namespaces.key_of(lower.name, key.namespace),))
    problem = too_many(ref, copies.count("held", ref.namespace)) if copy is None else None
    if problem is not None:
        return Decision(problem=problem, requeue_after=LOOK_AGAIN)
    taken = world.problems.get(key)
    told = exposed(_running(world, ref, key), taken) if taken is not None else ()
    # The problem of pods that need the object is reported once the name is held: others wait for that alone.
    problem = None if copy is None else decision.problem
    return Decision((*told, held(ref, world.owner)), problem=problem)


def _is_to_be_held(world: World, ref: Ref, copy: Entry | None, key: Key) -> bool:
    """Report whether pods run without an object, unless a copy of it exists that may still be needed."""
    originals, lower = world.upper.cache(ref.kind), world.lowers[key.lower]
    is_missing = originals is not None and originals.get(key.namespace, ref.name) is None
    if is_missing and copy is not None and copy.facts.owner == world.owner.mark and not is_name_held(copy):
        return False
    optional = Reference(ref.kind.name, ref.name, optional=True)
    named = asking(lower, world, ref.kind.name, key.namespace, ref.name)
    if any(optional in pod.facts.references for pod in named) or any(True for _ in _running(world, ref, key)):
        return True
    pulling = service_accounts.pulling(world, key.namespace, ref.name) if ref.kind == SECRET else ()
    return any(service_accounts.is_asked(world, lower, key.namespace, account) for account in pulling)


def _running(world: World, ref: Ref, key: Key) -> Iterator[Entry]:
    """Yield the upper pods whose lower pod refers to a name: it would read whatever is created there next."""
    lower = world.lowers[key.lower]
    mentions = {Reference(ref.kind.name, ref.name, optional) for optional in (False, True)}
    for pod in asking(lower, world, ref.kind.name, key.namespace, ref.name):
        below = mirror_of(pod, lower, world.owner)
        if below is not None and mentions & below.facts.references:
            yield pod


def _said(world: World, ref: Ref, original: Entry, copy: Entry | None, key: Key) -> Iterator[EmitEvent]:
    """Yield an event on the upper object that a change of it is refused: its pods run on without a sign of that."""
    problem = world.problems.get(key)
    if problem is None or copy is None or is_name_held(copy):
        return
    if is_ours(copy.manifest(), world.owner):
        message = f"{ref.kind.name} {original.namespace}/{original.name} is not in step in lower cluster {ref.cluster}"
        above = Ref(UPPER, ref.kind, original.namespace, original.name)
        yield EmitEvent(above, original.uid, problem.reason, f"{message}: {problem.message}")


def _without_original(world: World, ref: Ref, copy: Entry | None, originals: Cache, key: Key) -> Decision:
    """Delete the copy if its original was seen deleted; keep it if the original is merely missing."""
    problem = _needed(world, world.lowers[key.lower], key, Problem(f"{ref.kind.name}NotFound", "it does not exist"))
    if copy is None or not _is_deleted(originals, key.namespace, copy):
        return Decision(problem=problem)
    return _end(world, ref, copy, f"the upper {ref.kind.name} was deleted")._replace(problem=problem)


def _is_deleted(originals: Cache, namespace: str, copy: Entry) -> bool:
    """Report whether the original of a copy was seen deleted, and does not exist again."""
    departed = originals.tombstone(namespace, copy.name)
    return departed is not None and departed.seen and originals.is_deleted(namespace, copy.name, copy.facts.upper_uid)


def _end(world: World, ref: Ref, copy: Entry | None, reason: str) -> Decision:
    if copy is None or not is_ours(copy.manifest(), world.owner):
        return Decision()
    return Decision((Absent(ref, copy.uid, reason),))


def _is_there(world: World, lower: LowerWorld, namespace: str, reference: Reference) -> bool:
    kind = KINDS[reference.kind]
    originals, copies = world.upper.cache(kind), lower.below(kind)
    assert originals is not None
    assert copies is not None
    original, copy = originals.get(namespace, reference.name), copies.get(lower.namespace(namespace), reference.name)
    is_ours_below = copy is not None and copy.facts.owner == world.owner.mark
    if original is None:
        return reference.optional and is_ours_below
    if copy is not None and is_ours_below and copy.facts.upper_uid == original.uid:
        return True
    is_held = copy is not None and is_ours_below and is_name_held(copy)
    return reference.optional and is_held and bool(never_copied(original.manifest()))


def _is_asked(world: World, lower: LowerWorld, namespace: str, kind: Kind, name: str) -> bool:
    """Report whether upper pods need an object, by naming it or by the account that they run as."""
    return any(True for _ in _askers(world, lower, namespace, kind, name))


def _may_be_made(world: World, lower: LowerWorld, original: Entry, kind: Kind) -> bool:
    return may_be_made(_askers(world, lower, original.namespace, kind, original.name))


def _askers(world: World, lower: LowerWorld, namespace: str, kind: Kind, name: str) -> Iterator[Entry]:
    """Yield the upper pods that need an object."""
    yield from asking(lower, world, kind.name, namespace, name)
    for account in service_accounts.pulling(world, namespace, name) if kind == SECRET else ():
        yield from service_accounts.pods_using(world, lower, namespace, account)


def _is_kept(world: World, lower: LowerWorld, namespace: str, kind: Kind, name: str) -> bool:
    """Report whether a lower pod of ours refers to a copy, or runs as an account that pulls images with it."""
    if keeps(lower, kind.name, namespace, name):
        return True
    pulling = service_accounts.pulling(world, namespace, name) if kind == SECRET else ()
    return any(keeps(lower, SERVICE_ACCOUNT.name, namespace, account) for account in pulling)


def _needed(world: World, lower: LowerWorld, key: Key, problem: Problem) -> Problem | None:
    """Return the problem, with the object's name, if some pod cannot start for it."""
    kind, _, name = key.name.partition("/")
    needed = Reference(kind, name, optional=False)
    askers = asking(lower, world, kind, key.namespace, name)
    if not any(needed in entry.facts.references for entry in askers):
        return None
    return problem._replace(message=f"{kind} {key.namespace}/{name}: {problem.message}")


def _original(kind: Kind) -> MapKeys:
    def keys(world: World, lower: str, delta: Delta) -> Iterator[Key]:
        entry = delta.entry
        here = world.lowers[lower]
        copies = here.below(kind)
        assert copies is not None
        referred = here.upper_pods.select("reference", (kind.name, entry.namespace, entry.name))
        pulling = service_accounts.pulling(world, entry.namespace, entry.name) if kind == SECRET else ()
        by_account = any(service_accounts.is_asked(world, here, entry.namespace, account) for account in pulling)
        if referred or by_account or copies.get(here.namespace(entry.namespace), entry.name):
            yield key_of(lower, entry.namespace, kind.name, entry.name)

    return keys


def _copy(kind: Kind) -> MapKeys:
    def keys(world: World, lower: str, delta: Delta) -> Iterator[Key]:
        yield from _of_copy(world.lowers[lower], kind, delta.entry)

    return keys


def _of_copy(lower: LowerWorld, kind: Kind, copy: Entry) -> Iterator[Key]:
    for namespace in lower.above(copy.namespace):
        yield key_of(lower.name, namespace, kind.name, copy.name)


def _referrer(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield what an upper pod begins or ceases to need; a change that leaves its needs the same is ignored."""
    excluded = world.topology.exclude_namespaces
    needs = [_references(entry) if entry and lives_below(entry, excluded) else frozenset() for entry in delta]
    entry = delta.entry
    yield from _keys_of(lower, entry.namespace, needs[0] ^ needs[1])
    if needs[0] != needs[1]:
        yield from _by_account(world, lower, entry)


def _referrer_below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield what a lower pod begins or ceases to refer to; a pod that ended refers to it until it is deleted."""
    changed = _references(delta.before) ^ _references(delta.after)
    for namespace in world.lowers[lower].above(delta.entry.namespace):
        yield from _keys_of(lower, namespace, changed)
        for secret in service_accounts.secrets_of(world, namespace, changed):
            yield key_of(lower, namespace, SECRET.name, secret)


def _by_account(world: World, lower: str, pod: Entry) -> Iterator[Key]:
    """Yield the keys of the pull secrets of the account that an upper pod runs as."""
    for secret in service_accounts.secrets_of(world, pod.namespace, pod.facts.references):
        yield key_of(lower, pod.namespace, SECRET.name, secret)


def _of_account(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the pull secrets that an upper account gains or loses, if its pods run in this lower cluster."""
    entry = delta.entry
    if not service_accounts.is_used(world, world.lowers[lower], entry.namespace, entry.name):
        return
    before, after = (frozenset(one.facts) if one else frozenset() for one in delta)
    for secret in sorted(before ^ after):
        yield key_of(lower, entry.namespace, SECRET.name, secret)


def _keys_of(lower: str, namespace: str, references: Iterable[Reference]) -> Iterator[Key]:
    for reference in references:
        if reference.kind in KINDS:
            yield key_of(lower, namespace, reference.kind, reference.name)


def _references(entry: Entry | None) -> frozenset[Reference]:
    found: frozenset[Reference] = entry.facts.references if entry else frozenset()
    return found
