"""What a candidate would change: a topology that is not in force yet, in ConfigMap NAME-candidate.

The plan is that of `tensile plan`, made on copies of the engine's caches, so it takes no credential, and of all lists
only that of disruption budgets, in the namespaces of pods that would be evicted. The transitions of the lowers are
those of a reload, and the rest is the one pipeline. What the caches do not have is named, and the rest is planned. No
Secret that only the candidate names is read: the author of a candidate may be any client that may write that one
ConfigMap.

The result goes into ConfigMap NAME-plan. A ConfigMap holds 1 MiB, and a comment of a code forge less, so a longer plan
is cut, and says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from tensile.engine.clusters import node_address
from tensile.engine.lower_transitions import Action, Transition, plan_transition, removed_lowers, requested_mapping
from tensile.engine.plan_and_apply import Planned, Problems
from tensile.engine.status.configmap import StatusWrite, check_ours, marked_manifest
from tensile.engine.topology_reader import ConfigMapKey
from tensile.kube.cluster import Patch
from tensile.kubelet.node.status import SILENT_AFTER
from tensile.names import CANDIDATE_SUFFIX, PLAN_SUFFIX, UPPER_UID, Owner, ProblemReason
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref, annotations, as_read
from tensile.policy.disruption import as_document, as_sections
from tensile.policy.placement.snapshot import is_known
from tensile.reconcile.mirrored_kinds import FOLLOWS
from tensile.reconcile.redaction import concealed
from tensile.reconcile.report import Change, Later, Lines, Preview, as_json, as_text, fenced
from tensile.reconcile.world import Key, LowerWorld, Problem, World
from tensile.topology.diff import Edit

NOT_WATCHED: ProblemReason = "NotWatched"
"""The plan of a candidate lacks what depends on a controller, or on placement: the engine watches the objects only once
the topology that needs them is in force. Remedy: run `tensile plan`, which lists them."""
MARKDOWN, DOCUMENT = "plan.md", "plan.json"
CANDIDATE_HASH, TOPOLOGY_HASH, TIME, ERROR = "candidateHash", "topologyHash", "time", "error"
RESTART, PENDING = "restartNeeded", "pending"
KEYS = (MARKDOWN, DOCUMENT, CANDIDATE_HASH, TOPOLOGY_HASH, TIME, ERROR, RESTART, PENDING)
"""The keys of NAME-plan."""
MAX_MARKDOWN_BYTES = 60_000
"""The most bytes of Markdown: a comment on GitHub has at most 65,536 characters."""
MAX_JSON_BYTES = 900_000
"""The most bytes of JSON: with the other keys, less than the 1 MiB of a ConfigMap."""
TAKEN = "the plan cannot be written: delete or rename it"
"""What follows if the ConfigMap for the plan is not ours."""
_MAX_ERROR_LENGTH = 16 * 1024
_NOTICE = "... this plan is cut: {} of its {} lines are missing; run `tensile plan` for all of them"
_RESERVED_BYTES = 64
"""Bytes for the numbers and line breaks around a plan that is cut."""
_LENGTHS = (10_000, 3_000, 1_000, 300, 100, 30, 10, 0)
"""How long the lists of a plan that is too large may be, one after the other."""
_NOT_CONNECTED = (
    "not connected yet: the engine connects to it when the topology is in force; to plan it now, run `tensile plan` "
    "where its kubeconfig is"
)
_OTHER_CREDENTIALS = (
    "the candidate changes its kubeconfigSecret or context, which the engine uses when the topology is in force; to "
    "plan it now, run `tensile plan` where that kubeconfig is"
)


def candidate_key(place: ConfigMapKey) -> ConfigMapKey:
    """Return the location of the candidate for a topology: the same key of ConfigMap NAME-candidate."""
    return place._replace(name=place.name + CANDIDATE_SUFFIX)


def plan_ref(place: ConfigMapKey) -> Ref:
    """Return the ref of the ConfigMap with the plan of the candidate for a topology."""
    return Ref(UPPER, CONFIG_MAP, place.namespace, place.name + PLAN_SUFFIX)


class Foreseen(NamedTuple):
    """The clusters as they would be known just after another topology came into force.

    `unreached` maps the lowers that are not planned to the reason, and `problems` are what is not watched of the
    others. `connections` maps a lower's name to its name now. `waits` are messages about what becomes active later, and
    `refused` about what needs a restart.
    """

    world: World
    unreached: dict[str, str]
    problems: Problems
    connections: dict[str, str]
    waits: tuple[str, ...]
    refused: tuple[str, ...]


def foresee(world: World, change: Edit, upper: tuple[str, int], connection_errors: Mapping[str, str]) -> Foreseen:
    """Return what the world would be after an edit; the present world is only copied.

    `upper` are host and port of the upper apiserver, `connection_errors` what is wrong with connections, by lower.
    """
    topology = change.topology
    found = [plan_transition(spec, topology, world) for spec in topology.lowers]
    removed = {lower.name for lower in removed_lowers(topology, world)}
    copied = world.copy()
    copied.topology = topology
    if topology.kubelet != world.topology.kubelet:
        copied.node_address = node_address(topology, upper)
    for lower in copied.lowers.values():
        lower.in_topology = lower.in_topology and lower.name not in removed
        lower.port = None  # chosen when it is served, and noted on the Node
    unreached: dict[str, str] = {}
    connections: dict[str, str] = {}
    for transition in found:
        reason = _apply_transition(transition, copied, connections) or _unavailable_reason(
            transition, copied, connection_errors
        )
        if reason:
            unreached[transition.spec.name] = reason
            copied.lowers.pop(transition.spec.name, None)
    waits = tuple(message for transition in found for message in transition.waits)
    return Foreseen(copied, unreached, dict(_missing_watches(copied)), connections, waits, change.refused)


def _apply_transition(transition: Transition, copied: World, connections: dict[str, str]) -> str:
    """Apply the transition of one lower to the copy of the world; return why it cannot be planned, "" if it can."""
    spec, before = transition.spec, copied.lowers.get(transition.before.name) if transition.before is not None else None
    if transition.action is Action.WAIT:
        return "; ".join(transition.waits)
    if before is None:
        return _NOT_CONNECTED
    if transition.action is Action.LEAVE:
        before.in_topology = False
        return ""
    if not before.connected or spec.way != before.spec.way:
        del copied.lowers[before.name]
        return _OTHER_CREDENTIALS if before.connected else _NOT_CONNECTED
    _continue(before, transition, copied, connections)
    return ""


def _continue(before: LowerWorld, transition: Transition, copied: World, connections: dict[str, str]) -> None:
    """Let a lower continue with other fields, perhaps under another name or with another namespace mapping."""
    if transition.spec.name != before.name:
        del copied.lowers[before.name]
        connections[transition.spec.name] = before.name
    before.spec, before.in_topology = transition.spec, True
    copied.lowers[transition.spec.name] = before
    if transition.remaps:
        before.naming, before.namespace_origins = requested_mapping(transition.spec, copied), {}


def _unavailable_reason(transition: Transition, copied: World, connection_errors: Mapping[str, str]) -> str:
    """Return why a lower cannot be planned although the engine has its credentials, "" if it can."""
    lower = copied.lowers[transition.spec.name]
    if not lower.in_topology:
        return ""
    connection_error = connection_errors.get(
        transition.before.name if transition.before is not None else lower.name, ""
    )
    if lower.access_error:
        return lower.access_error
    if is_out_of_reach(lower):
        return f"out of reach: {connection_error or f'no response for {lower.unreachable_seconds:.0f} s'}"
    return "" if lower.settled else lower.denied or connection_error or "its objects are not all listed yet"


def is_out_of_reach(lower: LowerWorld) -> bool:
    """Report whether a cluster that the engine connects to does not respond, or is not the right one."""
    return lower.is_wrong or lower.is_shared or lower.is_excessive or lower.unreachable_seconds > SILENT_AFTER


def _missing_watches(copied: World) -> Iterator[tuple[Key, Problem]]:
    """Yield what the engine does not watch of the lowers, although the topology of the world needs it."""
    for lower in [one for one in copied.lowers.values() if one.in_topology]:
        for controller in lower.spec.controllers:
            kinds = [
                follow.kind.plural
                for follow in FOLLOWS[controller]
                if not (copied.upper.more if follow.is_upper else lower.more)[follow.kind].synced
            ]
            if kinds:
                message = (
                    f"the engine does not watch {', '.join(kinds)} yet, so changes that depend on them are missing"
                )
                yield Key("controller", lower.name, "", controller), Problem(NOT_WATCHED, message)
        if copied.topology.places and not is_known(lower):
            message = "the engine does not watch the real nodes yet, so it is not known where pods have room"
            yield Key("placement", lower.name, "", ""), Problem(NOT_WATCHED, message)


def plan_data(planned: Planned, foreseen: Foreseen, lines: Lines, approve_over: int | None) -> dict[str, str]:
    """Return a plan as the data of NAME-plan. `lines` adds the lines of the candidate that cause changes.

    `approve_over` is the `guard.approveOver` that the candidate would have to pass: that of the accepted topology.
    """
    found = lines(planned.preview)
    later = Later(foreseen.refused, foreseen.waits)
    sections = [*later.sections(), *as_sections(planned.cost, approve_over)]
    document = as_json(found, cost=as_document(planned.cost), drains=[], **later._asdict())
    data = {
        MARKDOWN: cut_markdown(found, sections, MAX_MARKDOWN_BYTES),
        DOCUMENT: cut_json(document, MAX_JSON_BYTES).decode(),
    }
    notes = {RESTART: foreseen.refused, PENDING: foreseen.waits}
    return data | {key: orjson.dumps(messages).decode() for key, messages in notes.items() if messages}


def plan_text(planned: Planned, foreseen: Foreseen) -> str:
    """Return a plan as text for the status page, at most as long as the Markdown of a candidate's plan.

    The page has no authentication, so values that may be secret are not shown.
    """
    sections = [*Later(foreseen.refused, foreseen.waits).sections(), *as_sections(planned.cost)]
    clusters = {name: tuple(map(_concealed, changes)) for name, changes in planned.preview.clusters.items()}
    return _shorten(
        as_text(replace(planned.preview, clusters=clusters), colour=False, more=sections), sections, MAX_MARKDOWN_BYTES
    )


def _concealed(change: Change) -> Change:
    return replace(change, differences=tuple(concealed(change.ref.kind, one) for one in change.differences))


def cut_markdown(found: Preview, sections: Sequence[str], max_bytes: int) -> str:
    """Return a plan as Markdown of at most so many bytes; `sections` are sections that stay, if they are not too long.

    A plan that is cut has the first changes, a notice in their place, and the summary.
    """
    text = as_text(found, colour=False, more=sections)
    fence = len(fenced(text)) - len(text)
    return fenced(_shorten(text, sections, max_bytes - fence))


def _shorten(text: str, sections: Sequence[str], max_bytes: int) -> str:
    """Return the text of a plan in at most so many bytes, as above."""
    if len(text.encode()) <= max_bytes:
        return text
    body, _, last = text.rpartition("\n\n")
    lines = body.split("\n")
    kept = sum(section.count("\n") + 2 for section in sections)
    head, tail = (lines[:-kept], lines[-kept:]) if kept else (lines, [])
    available = max_bytes - len(f"{_NOTICE}{last}".encode()) - _RESERVED_BYTES
    tail = _first_lines(tail, available // 2)
    head = _first_lines(head, available - len("\n".join(tail).encode()))
    missing = len(lines) - len(head) - len(tail)
    return "\n".join([*head, _NOTICE.format(missing, len(lines)), *tail, "", last])


def _first_lines(lines: Sequence[str], max_bytes: int) -> list[str]:
    """Return the first lines that together have at most so many bytes."""
    size, kept = 0, []
    for line in lines:
        size += len(line.encode()) + 1
        if size > max_bytes:
            break
        kept.append(line)
    return kept


def cut_json(document: bytes, max_bytes: int) -> bytes:
    """Return a plan as JSON of at most so many bytes: without line breaks, then without operations and ends of lists.

    `truncated` is then a message about what is missing. The summary counts everything.
    """
    if len(document) <= max_bytes:
        return document
    plan = orjson.loads(document)
    shortened = orjson.dumps(plan)
    if len(shortened) <= max_bytes:
        return shortened
    count = len(plan["changes"])
    without_operations = [{**change, "operations": []} for change in plan["changes"]]
    for length in _LENGTHS:
        cause = (
            f"the plan is larger than {max_bytes} bytes: operations are left out, and lists end after {length} items"
        )
        notice = {"truncated": f"{cause} ({min(length, count)} of {count} changes); run `tensile plan -o json` for all"}
        shortened = orjson.dumps(_shortened({**plan, "changes": without_operations}, length) | notice)
        if len(shortened) <= max_bytes:
            break
    return shortened


def _shortened(value: Any, length: int) -> Any:
    """Return JSON data whose lists have at most so many items."""
    if isinstance(value, dict):
        return {key: _shortened(inner, length) for key, inner in value.items()}
    return [_shortened(inner, length) for inner in value[:length]] if isinstance(value, list) else value


def error_data(message: str) -> dict[str, str]:
    """Return why there is no plan as the data of NAME-plan."""
    return {ERROR: message if len(message) <= _MAX_ERROR_LENGTH else message[: _MAX_ERROR_LENGTH - 4] + "\n..."}


def is_planned(seen: Manifest | None, candidate_uid: str, data: Mapping[str, str]) -> bool:
    """Report whether NAME-plan has the plan of a candidate for a topology in force.

    `data` has the hashes of both; where a candidate has no text, also the error.
    """
    if seen is None or annotations(seen).get(UPPER_UID) != candidate_uid:
        return False
    present = seen.get("data") or {}
    return all(present.get(key) == value for key, value in data.items())


def plan_write(seen: Manifest | None, data: Mapping[str, str], ref: Ref, owner: Owner, uid: str) -> StatusWrite:
    """Return the write after which NAME-plan has `data`; keys of others stay.

    `seen` is the present ConfigMap, `uid` that of the candidate's. Raises NameTaken if it is not ours.
    """
    if seen is None:
        return StatusWrite(create=marked_manifest(data, ref, owner, uid))
    check_ours(seen, ref, owner, TAKEN)
    removed = {key: None for key in KEYS if key in (seen.get("data") or {}) and key not in data}
    meta = {**as_read(seen), "annotations": {UPPER_UID: uid}}
    return StatusWrite(patch=Patch("merge-patch", {"metadata": meta, "data": {**data, **removed}}))
