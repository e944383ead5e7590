"""`tensile plan --drift`: what other clients changed in our objects, and what the engine does about it.

The dry run of `plan` finds what differs, and `tensile.reconcile.drift` distinguishes drift from edits that are not
carried down yet. Each object that differs is read again, with its upper object: caches leave out managedFields that no
decision needs, and a running engine may have put it back meanwhile, which is then no drift any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import orjson

from tensile.cli.plan import PlanOptions, PlanText, check_options, unreached_lines
from tensile.engine.lower import ClusterAccess
from tensile.engine.plan_and_apply import KnownClusters, Progress, opened, rehearse, upper_namespace_of
from tensile.errors import AlreadyExists, ClusterError, NotFound, TensileError
from tensile.kube.store import Entry, keep_all
from tensile.kubelet.pods.sync import irreversible
from tensile.names import OWNER, UPPER_UID, Owner
from tensile.objects import (
    ENDPOINT_SLICE,
    NAMESPACE,
    NODE,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    UPPER,
    Manifest,
    Ref,
    annotations,
    labels,
    metadata,
    uid,
)
from tensile.reconcile.copies import existing_copy, mirror_of, stray_copies
from tensile.reconcile.drift import (
    FieldChange,
    FieldDrift,
    drifted,
    holder_of,
    is_revertible,
    last_written,
    original_of,
    upper_ref_of,
    written_by,
)
from tensile.reconcile.mirrored_kinds import checked
from tensile.reconcile.ownership import is_copy, is_ours, upper_uid_of
from tensile.reconcile.plan import Step
from tensile.reconcile.pods.index import needs_lower_pod
from tensile.reconcile.report import WHOLE_PLAN, PlanScope, RecordedStep, Recorder
from tensile.reconcile.report.changes import after, defects, object_order
from tensile.reconcile.report.drift import (
    CREATED,
    LEFT,
    LOST,
    DriftedObject,
    DriftReport,
    changed_object,
    drift_json,
    drift_markdown,
    drift_text,
)
from tensile.reconcile.world import Key, LowerWorld, World
from tensile.topology import Topology

_MAX_CONCURRENT = 20
"""Maximum of objects that are read at the same time."""
_WHOLE = PlanOptions()
_OF_NAMESPACE = ((SERVICE, ENDPOINT_SLICE), (ROLE, ROLE_BINDING))
"""Kinds that no pod refers to by name, by their controller."""
Job = Callable[[], Awaitable[DriftedObject | None]]


class _Recorder(Recorder):
    """Records also the creations that another object of the name is in the way of, in `taken`."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[Ref, RecordedStep] = {}

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Record a step."""
        super().on_step(key, step, error)
        if isinstance(error, AlreadyExists) and step.in_plan:
            self.taken.setdefault(step.ref, RecordedStep(key, step))


def drift(
    topology: Topology,
    access: ClusterAccess,
    output: str,
    options: PlanOptions = _WHOLE,
    *,
    colour: bool,
    progress: Progress | None = None,
) -> PlanText:
    """Return what other clients changed, as "text", "json" or "markdown". Of the options, only the scope applies.

    Raises TensileError when the upper cluster is unreachable, for another output format, and for a bug in a rule.
    """
    check_options(topology, output, options)
    report = asyncio.run(_report(topology, access, options.only, progress))
    if output == "json":
        return PlanText(drift_json(report), bool(report.objects), unreached_lines(report.unreached))
    text = drift_markdown(report) if output == "markdown" else drift_text(report, colour=colour)
    not_examined = f"not examined: {', '.join(report.unreached)}: the output says why" if report.unreached else ""
    return PlanText(text, bool(report.objects), not_examined)


async def _report(
    topology: Topology, access: ClusterAccess, scope: PlanScope, progress: Progress | None
) -> DriftReport:
    async with opened(topology, access, progress) as (clusters, unreached, _waits):
        return await examined(clusters, unreached, scope)


async def examined(clusters: KnownClusters, unreached: Mapping[str, str], scope: PlanScope = WHOLE_PLAN) -> DriftReport:
    """Return what other clients changed in opened clusters. Raises TensileError for a bug in a rule."""
    recorder, before = _Recorder(), clusters.world.copy()
    topology = before.topology
    await rehearse(clusters, recorder)
    if broken := defects(recorder.broken):
        raise TensileError(broken)
    found = await _examined(_Examiner(clusters, before), recorder, scope)
    if scope.lowers:
        unreached = {name: reason for name, reason in unreached.items() if name in scope.lowers}
    cluster_order = {name: index for index, name in enumerate((UPPER, *(spec.name for spec in topology.lowers)))}
    found.sort(key=lambda one: (cluster_order.get(one.ref.cluster, len(cluster_order)), object_order(one.ref)))
    return DriftReport(topology.name, tuple(found), unreached, scope)


async def _examined(examiner: "_Examiner", recorder: _Recorder, scope: PlanScope) -> list[DriftedObject]:
    """Return the objects that drifted, in any order."""
    world, semaphore = examiner.world, asyncio.Semaphore(_MAX_CONCURRENT)
    steps: dict[Ref, list[RecordedStep]] = {}
    for one in recorder.recorded:
        steps.setdefault(one.step.ref, []).append(one)
    candidates = [(recorded[0].key.lower, ref, [one.step for one in recorded]) for ref, recorded in steps.items()]
    candidates += [(ref.cluster, ref, []) for ref in _irreversibly_changed(world) if ref not in steps]
    jobs: list[tuple[str, Ref, Job]] = [
        (lower, ref, partial(examiner.differing, ref, found)) for lower, ref, found in candidates
    ]
    jobs += [(one.key.lower, ref, partial(examiner.taken, ref, one.step)) for ref, one in recorder.taken.items()]
    jobs += [(ref.cluster, ref, partial(examiner.lost, ref, upper.uid)) for ref, upper in _without_copy(world)]

    async def examine(job: Job) -> DriftedObject | None:
        """Examine an object when it is its turn."""
        async with semaphore:
            return await job()

    chosen = [job for lower, ref, job in jobs if scope.takes(lower, upper_namespace_of(world, ref), ref.kind.name)]
    found = [one for one in await asyncio.gather(*map(examine, chosen)) if one is not None]
    strays = [one for one in _strays(world) if scope.takes(one.ref.cluster, "", one.ref.kind.name)]
    return found + strays


def _strays(world: World) -> Iterator[DriftedObject]:
    """Yield the objects with our marks to which no upper object corresponds."""
    for lower in world.lowers.values():
        for kind, one in stray_copies(lower, world.owner):
            yield DriftedObject(Ref(lower.name, kind, one.namespace, one.name), "stray", LEFT)


def _irreversibly_changed(world: World) -> Iterator[Ref]:
    """Yield the lower pods that another client changed irreversibly."""
    for lower in world.lowers.values():
        for upper in lower.upper_pods:
            lower_pod = mirror_of(upper, lower, world.owner)
            lives = lower_pod is not None and not (lower_pod.facts.terminal or lower_pod.facts.terminating)
            if lower_pod is not None and lives and irreversible(upper.manifest(), lower_pod.manifest(), lower, world):
                yield Ref(lower.name, POD, lower_pod.namespace, lower_pod.name)


def _without_copy(world: World) -> Iterator[tuple[Ref, Entry]]:
    """Yield the upper pods that ran and have no lower pod, with the place of that."""
    for lower in world.lowers.values():
        for upper in lower.upper_pods if lower.settled else ():
            facts = upper.facts
            is_living = (
                facts.ran and not facts.terminating and needs_lower_pod(upper, world.topology.exclude_namespaces)
            )
            if is_living and existing_copy(upper, lower) is None:
                yield Ref(lower.name, POD, lower.namespace(upper.namespace), upper.name), upper


class _Examiner:
    """Reads objects again and determines what another client did to them.

    `world` is what was known before the dry run.
    """

    def __init__(self, clusters: KnownClusters, world: World) -> None:
        self.world = world
        self._connections = clusters.connections

    async def differing(self, ref: Ref, steps: Sequence[Step]) -> DriftedObject | None:
        """Return an object that the engine would change or create, as far as another client is the reason."""
        created = next((step for step in steps if step.verb == "create"), None)
        if created is not None and steps[0] is created:
            return await self._deleted(created)
        if created is None and steps and not any(map(is_revertible, steps)):
            return None
        present = await self._read(ref)
        if present is None or not is_ours(present, self.world.owner):
            return None
        wanted = (
            _after(present, [step for step in steps if is_revertible(step)]) if created is None else created.body or {}
        )
        if created is not None and upper_uid_of(present) != annotations(wanted).get(UPPER_UID):
            return None
        found = drifted(present, wanted, ref, await self._original(ref)) if steps else []
        return changed_object(ref, found, self._irreversible_changes(ref, present), replaced=created is not None)

    async def taken(self, ref: Ref, step: Step) -> DriftedObject | None:
        """Return an object that the engine cannot create, if its name is taken by one that lost our marks."""
        return self._with_mark_removed(ref, await self._read(ref), annotations(step.body or {}).get(UPPER_UID, ""))

    async def lost(self, ref: Ref, upper_uid: str) -> DriftedObject | None:
        """Return the lower pod of an upper pod that ran, if it is deleted or lost our marks."""
        try:
            await self._connections[ref.cluster].read(ref)
        except NotFound:
            return DriftedObject(ref, "deleted", LOST, evidence="its upper pod ran there")
        return self._with_mark_removed(ref, await self._read(ref), upper_uid)

    async def _read(self, ref: Ref) -> Manifest | None:
        """Return an object as it is now, None if there is none, or if it has fields of wrong types."""
        try:
            raw = await self._connections[ref.cluster].read(ref)
            checked(ref.kind, keep_all)(raw)
        except (NotFound, msgspec.ValidationError):
            return None
        found: Manifest = orjson.loads(raw)
        return found

    async def _original(self, ref: Ref) -> Manifest | None:
        """Return the upper object of a copy with its managedFields, None if that cannot be known."""
        original, upper_ref = original_of(ref, self.world), upper_ref_of(ref, self.world)
        if original is not None or upper_ref is None or ref.kind == POD:
            return original
        try:
            return await self._read(upper_ref)
        except ClusterError:
            return None

    def _irreversible_changes(self, ref: Ref, present: Manifest) -> list[FieldDrift]:
        """Return what another client changed irreversibly in a lower pod."""
        lower, upper_ref = self.world.lowers.get(ref.cluster), upper_ref_of(ref, self.world)
        if ref.kind != POD or lower is None or upper_ref is None:
            return []
        upper = lower.upper_pods.get(upper_ref.namespace, upper_ref.name)
        if upper is None or upper.uid != upper_uid_of(present):
            return []
        found = irreversible(upper.manifest(), present, lower, self.world)
        return [written_by(FieldChange(one.path, one.seen, one.wanted), present) for one in found]

    async def _deleted(self, step: Step) -> DriftedObject | None:
        """Return an object that the engine would create, if there is evidence that it existed, and it is gone."""
        evidence = await self._evidence(step)
        if not evidence:
            return None
        try:
            await self._connections[step.ref.cluster].read(step.ref)
        except NotFound:
            return DriftedObject(step.ref, "deleted", CREATED, evidence=evidence)
        return None

    async def _evidence(self, step: Step) -> str:
        """Return how it is known that an object existed before, "" if it is not."""
        ref, world = step.ref, self.world
        if ref.kind == NODE:
            pods = (pod for lower in world.lowers.values() if lower.node == ref.name for pod in lower.upper_pods)
            return next((f"pod {pod.namespace}/{pod.name} ran on it" for pod in pods if pod.facts.ran), "")
        upper_ref, lower = upper_ref_of(ref, world), world.lowers.get(ref.cluster)
        if upper_ref is None or lower is None:
            return ""
        if ref.kind == NAMESPACE:
            inhabitants = lower.upper_pods.select("namespace", upper_ref.name)
            return next((f"pod {pod.namespace}/{pod.name} ran in it" for pod in inhabitants if pod.facts.ran), "")
        holder = holder_of(step, world)
        if holder:
            return f"pod {holder} refers to it and is newer than the upper object"
        return (
            await self._neighbour(step, upper_ref, lower) if any(ref.kind in kinds for kinds in _OF_NAMESPACE) else ""
        )

    async def _neighbour(self, step: Step, upper_ref: Ref, lower: LowerWorld) -> str:
        """Return the evidence for a copy that all pods of its namespace need. The cluster may also have refused it.

        Without any copy of its controller, the controller may be new.
        """
        ref, owner = step.ref, self.world.owner
        kinds = next(kinds for kinds in _OF_NAMESPACE if ref.kind in kinds)
        if not any(is_copy(one, owner) for kind in kinds for one in lower.cache(kind) or ()):
            return ""
        if ref.kind == ROLE:
            return next(_bindings(ref, lower, owner), "")
        original = await self._original(ref)
        if original is None or uid(original) != annotations(step.body or {}).get(UPPER_UID):
            return ""
        since = last_written(original) if ref.kind == ROLE_BINDING else metadata(original)["creationTimestamp"]
        for upper in lower.upper_pods.select("namespace", upper_ref.namespace):
            is_newer = (metadata(upper.manifest()).get("creationTimestamp") or "") > since
            if is_newer and mirror_of(upper, lower, owner) is not None:
                return f"or always refused there; pod {upper.namespace}/{upper.name} is newer than the upper object"
        return ""

    def _with_mark_removed(self, ref: Ref, present: Manifest | None, upper_uid: str) -> DriftedObject | None:
        """Return an object from which one of our two marks was removed, None for one of another owner."""
        if present is None or not upper_uid:
            return None
        marks = (
            FieldChange(("metadata", "labels", OWNER), labels(present).get(OWNER), self.world.owner.mark),
            FieldChange(("metadata", "annotations", UPPER_UID), annotations(present).get(UPPER_UID), upper_uid),
        )
        missing = [one for one in marks if one.now != one.then]
        if len(missing) != 1:
            return None
        found = changed_object(ref, [written_by(one, present) for one in missing])
        return None if found is None else replace(found, sort="unmarked", outcome=LEFT)


def _bindings(role: Ref, lower: LowerWorld, owner: Owner) -> Iterator[str]:
    """Yield the evidence that a Role existed: bindings of ours that refer to it, which are created after it."""
    for one in lower.more[ROLE_BINDING]:
        refers = one.namespace == role.namespace and one.manifest()["roleRef"].get("name") == role.name
        if refers and one.manifest()["roleRef"].get("kind") == ROLE.name and is_copy(one, owner):
            yield f"RoleBinding {one.namespace}/{one.name} refers to it"


def _after(manifest: Manifest, steps: Iterable[Step]) -> Manifest:
    """Return an object after steps. One that cannot be carried out changes nothing."""
    for step in steps:
        manifest = after(manifest, step) or manifest
    return manifest
