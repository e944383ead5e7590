"""`tensile explain node`, `claim` and `service`: what an object is, what is wrong with it, and what to do.

Each result is a document: JSON for programs, a few lines for people. The verdict is the first obstacle, from the upper
cluster down to the lower ones. Advice always follows, also that nothing has to be done.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tensile.diagnostics.cluster_snapshot import FleetSnapshot, UpperObject
from tensile.diagnostics.explain import (
    BLOCKED,
    ONE_ENGINE,
    REMOVED_LOWER,
    START,
    event_rows,
    events_and_advice,
    has_ended,
    reason_and_message,
)
from tensile.engine.status.query import sharing, unrenewed
from tensile.kubelet.node.status import FORBIDDEN, noted_port
from tensile.kubelet.pods.conditions import is_ready
from tensile.kubelet.pods.rule import excluded
from tensile.names import (
    CORDONED_BY,
    DELETIONS_BLOCKED,
    IN_TOPOLOGY,
    LOWER,
    LOWER_REACHABLE,
    LOWER_SCHEDULABLE,
    MIRRORED,
    NOWHERE,
    PROVISIONER,
)
from tensile.objects import (
    CLAIM,
    ENDPOINT_SLICE,
    NODE,
    POD,
    SERVICE,
    STORAGE_CLASS,
    VOLUME,
    Kind,
    Manifest,
    annotations,
    labels,
    metadata,
)
from tensile.policy.placement.snapshot import pod_of
from tensile.reconcile.ownership import is_ours, other_topology, rename_advice
from tensile.reconcile.rules.claims import SELECTED_NODE, class_of
from tensile.reconcile.rules.services import API_SERVER, EXTERNAL_NAME
from tensile.resources import parse
from tensile.text import aligned, counted, joined, listed
from tensile.topology import Lower

FORMAT = 1
EXTRA: Mapping[Kind, tuple[Kind, ...]] = {NODE: (), CLAIM: (), SERVICE: (SERVICE, ENDPOINT_SLICE)}
"""What has to be listed beside the kinds of a snapshot, to explain an object of a kind."""
_SERVICE_NAME = "kubernetes.io/service-name"
_DOCTOR = "run `tensile doctor`: it checks the connection, the credentials and the permissions"
_NOTHING = "nothing has to be done"
Row = dict[str, Any]
Document = dict[str, Any]


class Verdict(NamedTuple):
    """The state of an object in one sentence, and what to do about it."""

    why: str
    advice: str


def explained_node(name: str, upper_object: UpperObject, fleet: FleetSnapshot) -> Document:
    """Return the document of a virtual node, by its name."""
    spec = next((one for one in fleet.topology.lowers if one.node.name == name), None)
    bound = [pod for pod in fleet.upper.all(POD) if pod["spec"].get("nodeName") == name]
    found = node_verdict(upper_object, spec, fleet, len(bound))
    conditions = (upper_object.manifest.get("status") or {}).get("conditions") or ()
    rows = [_condition(one) for one in conditions]
    return _document("node", ("", name), found, rows, upper_object.events)


def node_verdict(upper_object: UpperObject, spec: Lower | None, fleet: FleetSnapshot, bound: int) -> Verdict:
    """Return what keeps new pods off a node; `spec` is its lower, None if it is not in the topology."""
    node, lower = upper_object.manifest, spec.name if spec else "its lower cluster"
    if not node:
        return Verdict(f"the Node of lower {lower} does not exist: no engine has created it", START)
    if not is_ours(node, fleet.owner):
        if topology := other_topology(node, fleet.owner):
            return Verdict(f"the Node belongs to topology {topology}", rename_advice(topology))
        advice = "give the virtual node another name (`node.name` in the topology), or remove that Node"
        return Verdict("the Node belongs to another owner, so the engine does not touch it", advice)
    unrenewed_for = unrenewed(upper_object.lease, node, fleet.world.now)
    if unrenewed_for:
        return Verdict(f"no engine has renewed its lease {unrenewed_for}, so its conditions are old", START)
    if shared := sharing(upper_object.lease or {}, "its lease"):
        return Verdict(shared, ONE_ENGINE)
    conditions = {one["type"]: one for one in (node.get("status") or {}).get("conditions") or ()}
    return (
        _failing(conditions, lower)
        or _unreadable(spec, fleet)
        or _cordoned(node, lower, bound)
        or _bounded(node, spec)
        or _without_api(node)
        or Verdict(f"it is Ready with {counted(bound, 'pod')}", f"{_NOTHING}: pods that tolerate its taints can start")
    )


def _failing(conditions: Mapping[str, Manifest], lower: str) -> Verdict | None:
    """Return the first condition of a node that has the wrong status."""
    checks = (
        ("Ready", "True", START),
        (IN_TOPOLOGY, "True", REMOVED_LOWER),
        (LOWER_REACHABLE, "True", _DOCTOR),
        (DELETIONS_BLOCKED, "False", BLOCKED),
        (LOWER_SCHEDULABLE, "True", f"look at the nodes of {lower}: none is Ready and schedulable"),
    )
    for kind, expected, advice in checks:
        condition = conditions.get(kind)
        if condition is not None and condition.get("status") != expected:
            why = f"condition {kind} is {condition.get('status')}: {reason_and_message(condition)}"
            return Verdict(why, _DOCTOR if condition.get("reason") == FORBIDDEN else advice)
    return None


def _unreadable(spec: Lower | None, fleet: FleetSnapshot) -> Verdict | None:
    read_error = fleet.lowers[spec.name].trouble if spec else ""
    if not read_error:
        return None
    return Verdict(f"this command cannot read its lower cluster: {read_error}", _DOCTOR)


def _cordoned(node: Manifest, lower: str, bound: int) -> Verdict | None:
    if not (node.get("spec") or {}).get("unschedulable"):
        return None
    cordoned_by = annotations(node).get(CORDONED_BY)
    if cordoned_by:
        why, end_advice = (
            f"it is cordoned by the engine ({cordoned_by})",
            f"remove `maintenance` of {lower} from the topology",
        )
        if not bound:
            return Verdict(why, end_advice)
        pod_advice = "`tensile explain pod` says of each pod why it stays"
        return Verdict(f"{why}, with {counted(bound, 'pod')}", f"{pod_advice}; to end the maintenance, {end_advice}")
    return Verdict("it is cordoned by a user", f"run `kubectl uncordon {metadata(node)['name']}`")


def _without_api(node: Manifest) -> Verdict | None:
    if noted_port(node) != NOWHERE:
        return None
    return Verdict("it is Ready, but the engine does not serve its logs and exec", "`tensile status` says why")


def _bounded(node: Manifest, spec: Lower | None) -> Verdict | None:
    """Return that a node has no capacity: pods that request some cannot start."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    unavailable = [name for name in ("cpu", "memory", "pods") if name in offered and not parse(offered[name])]
    if not unavailable or spec is None:
        return None
    is_bounded = bool(spec.capacity.limit or spec.capacity.reserve)
    bounds = f"change `capacity` of {spec.name} in the topology: its limit and reserve bound what the node advertises"
    advice = bounds if is_bounded else f"free capacity or add nodes in {spec.name}"
    return Verdict(f"it is Ready, but advertises no {', '.join(unavailable)}", advice)


def explained_claim(upper_object: UpperObject, fleet: FleetSnapshot) -> Document:
    """Return the document of a PersistentVolumeClaim, with a row for each lower."""
    meta = metadata(upper_object.manifest)
    rows = [_claim_row(upper_object.manifest, spec, fleet) for spec in fleet.topology.lowers]
    found = claim_verdict(upper_object.manifest, fleet, rows)
    return _document("claim", (meta["namespace"], meta["name"]), found, rows, upper_object.events)


def _claim_row(claim: Manifest, spec: Lower, fleet: FleetSnapshot) -> Row:
    """Return what a lower has at the place of a claim."""
    copy, state = _copy_and_state(claim, CLAIM, spec, fleet)
    phase = (copy.get("status") or {}).get("phase", "Pending")
    return {"cluster": spec.name, "state": phase if state == "copy" else state, "detail": _volume(copy)}


def _volume(copy: Manifest) -> str:
    name = (copy.get("spec") or {}).get("volumeName")
    return f"volume {name}" if name else ""


def claim_verdict(claim: Manifest, fleet: FleetSnapshot, rows: Iterable[Row]) -> Verdict:
    """Return why a claim has no volume, or where that is."""
    meta, status = metadata(claim), claim.get("status") or {}
    users = [pod for pod in fleet.upper.all(POD) if _uses(pod, claim)]
    if meta.get("deletionTimestamp"):
        since = f"its deletion was requested at {meta['deletionTimestamp']}"
        if users:
            return Verdict(f"{since}; pods use it: {listed(map(_name, users))}", "delete these pods")
        reason = f"{since}; it has finalizers: {listed(meta.get('finalizers') or ())}"
        return Verdict(reason, "wait; if it stays, look at the controllers that set these finalizers")
    if status.get("phase") == "Lost":
        return Verdict("its volume is lost", "restore the volume in the lower cluster, or delete the claim")
    if denial := _not_mirrored(claim):
        return Verdict(denial, "see the reason in docs/reference/conditions.md, and docs/howto/storage.md")
    if status.get("phase") == "Bound":
        return _bound_claim(claim, fleet, users, list(rows))
    return _pending_claim(claim, fleet, users, list(rows))


def _not_mirrored(claim: Manifest) -> str:
    """Return what the engine reports on a claim that it does not mirror, "" for nothing."""
    for one in (claim.get("status") or {}).get("conditions") or ():
        if one["type"] == MIRRORED and one.get("status") == "False":
            return f"it is not mirrored: {one.get('reason', '')}: {one.get('message', '')}"
    return ""


def _bound_claim(claim: Manifest, fleet: FleetSnapshot, users: list[Manifest], rows: Iterable[Row]) -> Verdict:
    name = claim["spec"].get("volumeName", "")
    volume = next((one for one in fleet.upper.all(VOLUME) if metadata(one)["name"] == name), {})
    volume_lower = annotations(volume).get(LOWER)
    if not volume_lower:
        return Verdict(f"it is bound to volume {name} of the upper cluster, which no lower cluster has", _NOTHING)
    if volume_lower in fleet.lowers and (read_error := fleet.lowers[volume_lower].trouble):
        return Verdict(
            f"it is bound to volume {name} in lower {volume_lower}, which cannot be read: {read_error}", _DOCTOR
        )
    spec = next((one for one in fleet.topology.lowers if one.name == volume_lower), None)
    if spec is not None and any(row["cluster"] == volume_lower and row["state"] == "Pending" for row in rows):
        return _waiting_copy(claim, spec, fleet, f"it is bound to volume {name}, but ")
    why = f"it is bound to volume {name}, whose data is in lower {volume_lower}"
    if waiting := [pod for pod in users if not pod["spec"].get("nodeName")]:
        pod = _name(waiting[0])
        advice = f"pods with this claim can run only in {volume_lower}; see `tensile explain pod {pod}`"
        return Verdict(f"{why}; pod {pod} uses it and has no node", advice)
    return Verdict(why, f"{_NOTHING}: its pods run there")


def _pending_claim(claim: Manifest, fleet: FleetSnapshot, users: list[Manifest], rows: list[Row]) -> Verdict:
    """Return what a claim without a volume waits for."""
    class_name = class_of(claim)
    storage_class = next((one for one in fleet.upper.all(STORAGE_CLASS) if metadata(one)["name"] == class_name), None)
    if class_name and storage_class is None:
        return Verdict(
            f"StorageClass {class_name} does not exist in the upper cluster",
            "create it, or create the claim again with another one",
        )
    node = annotations(claim).get(SELECTED_NODE, "")
    spec = next((one for one in fleet.topology.lowers if one.node.name == node), None)
    spec = spec or _lower_of(users, fleet)
    provisioner = (storage_class or {}).get("provisioner", "")
    is_foreign = bool(storage_class) and provisioner != PROVISIONER
    if spec is not None and not (is_foreign and all(row["state"] == "none" for row in rows)):
        return _provisioning(claim, spec, fleet, rows)
    if (
        storage_class
        and is_foreign
        and (spec is not None or storage_class.get("volumeBindingMode") != "WaitForFirstConsumer")
    ):
        why = f"it waits for provisioner {provisioner} of StorageClass {class_name} in the upper cluster"
        if spec is not None:
            advice = f"for pods on virtual nodes, create the claim with a StorageClass of the provisioner {PROVISIONER}"
            return Verdict(f"{why}, which makes no volumes in lower clusters", advice)
        return Verdict(why, f"look at that provisioner, or use a StorageClass with the provisioner {PROVISIONER}")
    if storage_class and spec is None and storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
        return Verdict(
            f"StorageClass {class_name} binds before a node is chosen, but the volume is created where the pod runs",
            f"recreate it with volumeBindingMode WaitForFirstConsumer: `kubectl delete storageclass {class_name}`",
        )
    if not users:
        return Verdict("no pod uses it, and its lower cluster follows from its first pod", "create a pod that uses it")
    name = _name(users[0])
    return Verdict(f"pod {name} uses it and has no virtual node yet", f"run `tensile explain pod {name}`")


def _lower_of(users: Iterable[Manifest], fleet: FleetSnapshot) -> Lower | None:
    """Return the lower of the first pod that is bound to a virtual node."""
    nodes = {one.node.name: one for one in fleet.topology.lowers}
    return next((nodes[pod["spec"]["nodeName"]] for pod in users if pod["spec"].get("nodeName") in nodes), None)


def _provisioning(claim: Manifest, spec: Lower, fleet: FleetSnapshot, rows: Iterable[Row]) -> Verdict:
    """Return why a claim has no volume in its lower yet."""
    name = spec.name
    state = next(row["state"] for row in rows if row["cluster"] == name)
    if state == "unreadable":
        return Verdict(f"its volume is to be created in lower {name}, which cannot be read", _DOCTOR)
    if "PV" not in spec.controllers:
        return Verdict(f"lower {name} does not mirror claims", f"add PV to `controllers` of lower {name}")
    if state == "other":
        advice = (
            'move the claim of that name there; to use its volume, annotate it `global: "true"` and set '
            "`onConflict: adopt`"
        )
        return Verdict(f"lower {name} has a claim of that name that is not the engine's", advice)
    if state == "none":
        return Verdict(f"lower {name} has no copy of it yet, and the engine has not reported why", START)
    return _waiting_copy(claim, spec, fleet, "")


def _waiting_copy(claim: Manifest, spec: Lower, fleet: FleetSnapshot, prefix: str) -> Verdict:
    """Return why the copy of a claim in a lower has no volume there; `prefix` is what comes before."""
    name, meta, snapshot = spec.name, metadata(claim), fleet.lowers[spec.name]
    copy, _ = _copy_and_state(claim, CLAIM, spec, fleet)
    state = (copy.get("status") or {}).get("phase", "Pending")
    class_name, classes = class_of(copy), [metadata(one)["name"] for one in snapshot.all(STORAGE_CLASS)]
    is_listed = not any(one.startswith(f"{STORAGE_CLASS.plural}:") for one in snapshot.unread)
    if class_name and class_name not in classes and is_listed:
        why = f"{prefix}its copy in lower {name} waits for StorageClass {class_name}, which does not exist there"
        return Verdict(why, f"create it there, or set `storageClasses` of {name} and create the claim again")
    describe_command = f"kubectl describe pvc {meta['name']}` in the namespace that mirrors {meta['namespace']}"
    return Verdict(f"{prefix}its copy in lower {name} is {state} there", f"look at it in {name}: `{describe_command}")


def explained_service(upper_object: UpperObject, fleet: FleetSnapshot) -> Document:
    """Return the document of a Service, with a row for the upper cluster and each lower."""
    meta = metadata(upper_object.manifest)
    upper = {"cluster": "upper", "state": "original", "detail": _endpoints(_slices(upper_object.manifest, fleet))}
    rows = [upper, *(_service_row(upper_object.manifest, spec, fleet) for spec in fleet.topology.lowers)]
    found = service_verdict(upper_object.manifest, fleet, rows)
    return _document("service", (meta["namespace"], meta["name"]), found, rows, upper_object.events)


def _slices(service: Manifest, fleet: FleetSnapshot, lower: str = "") -> list[Manifest]:
    """Return the EndpointSlices of a Service, in the upper cluster or a lower."""
    meta, snapshot = metadata(service), fleet.lowers[lower] if lower else fleet.upper
    namespace = fleet.lower_namespace(lower, meta["namespace"]) if lower else meta["namespace"]
    found = (one for one in snapshot.all(ENDPOINT_SLICE) if labels(one).get(_SERVICE_NAME) == meta["name"])
    return [one for one in found if metadata(one)["namespace"] == namespace]


def _count(slices: Iterable[Manifest]) -> tuple[int, int]:
    """Return how many endpoints there are, and how many of them are ready; one without a condition is."""
    endpoints = [one for part in slices for one in part.get("endpoints") or ()]
    ready = [one for one in endpoints if (one.get("conditions") or {}).get("ready") is not False]
    return len(endpoints), len(ready)


def _endpoints(slices: Iterable[Manifest]) -> str:
    total, ready = _count(slices)
    return f"{ready} of {counted(total, 'endpoint')} ready"


def _service_row(service: Manifest, spec: Lower, fleet: FleetSnapshot) -> Row:
    _, state = _copy_and_state(service, SERVICE, spec, fleet)
    detail = _endpoints(_slices(service, fleet, spec.name)) if state == "copy" else ""
    return {"cluster": spec.name, "state": state, "detail": detail}


def service_verdict(service: Manifest, fleet: FleetSnapshot, rows: Iterable[Row]) -> Verdict:
    """Return why a Service has no endpoints, or why pods of a lower cannot use it."""
    meta, spec = metadata(service), service.get("spec") or {}
    if spec.get("type") == EXTERNAL_NAME:
        return Verdict(f"it is a DNS alias of {spec.get('externalName')} and has no endpoints", _NOTHING)
    if (meta["namespace"], meta["name"]) == API_SERVER:
        return Verdict("it is never mirrored: in a lower cluster, this name leads to its own apiserver", _NOTHING)
    if not _count(_slices(service, fleet))[1]:
        return _without_endpoints(service, fleet)
    if unserved := _unserved(service, fleet):
        return unserved
    for row in rows:
        if row["state"] != "original" and (found := _obstacle_in_lower(service, row, fleet)):
            return found
    served_lowers = [row["cluster"] for row in rows if row["state"] == "copy"]
    if served_lowers:
        return Verdict(f"it has ready endpoints, and its copy serves pods in {listed(served_lowers)}", _NOTHING)
    why = f"it has ready endpoints; no pod of namespace {meta['namespace']} runs in a lower cluster, so none has a copy"
    return Verdict(why, f"{_NOTHING}: a copy is created with the first pod")


def _unserved(service: Manifest, fleet: FleetSnapshot) -> Verdict | None:
    """Return the port of a Service that no endpoint serves, None if there is none: its name may be misspelt."""
    spec = service.get("spec") or {}
    parts = (one for one in _slices(service, fleet) if one.get("endpoints"))
    served = {port.get("name") or "" for one in parts for port in one.get("ports") or ()}
    for port in (spec.get("ports") or ()) if spec.get("selector") else ():
        if (port.get("name") or "") not in served:
            target = port.get("targetPort", port["port"])
            why = f"no ready endpoint serves its port {port['port']}: no container port is named {target}"
            return Verdict(why, "name that port in the pods, or set `targetPort` to the name or number of one")
    return None


def _without_endpoints(service: Manifest, fleet: FleetSnapshot) -> Verdict:
    """Return why a Service has no ready endpoint in the upper cluster."""
    meta, selector = metadata(service), (service.get("spec") or {}).get("selector") or {}
    if not selector:
        return Verdict("it has no selector, and no ready endpoints were created", "create its EndpointSlice")
    namespace_pods = [pod for pod in fleet.upper.all(POD) if metadata(pod)["namespace"] == meta["namespace"]]
    chosen = [pod for pod in namespace_pods if selector.items() <= labels(pod).items()]
    if not chosen:
        selector_text = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        return Verdict(
            f"no pod of namespace {meta['namespace']} has the labels {selector_text}",
            "create or label pods, or correct the selector",
        )
    waiting = [pod for pod in chosen if not is_ready(pod)]
    if not waiting:
        advice = "look at kube-controller-manager of the upper cluster: it creates EndpointSlices"
        return Verdict("all pods that it selects are Ready, but it has no ready endpoints", advice)
    names = listed(_name(pod) for pod in waiting)
    return Verdict(f"its pods are not Ready: {names}", f"run `tensile explain pod {_name(waiting[0])}`")


def _obstacle_in_lower(service: Manifest, row: Row, fleet: FleetSnapshot) -> Verdict | None:
    """Return why pods of a lower cannot use a Service, None if they can or there are none."""
    name, meta = row["cluster"], metadata(service)
    spec = next(one for one in fleet.topology.lowers if one.name == name)
    bound = [pod for pod in fleet.upper.all(POD) if _runs_in(pod, spec, meta["namespace"], fleet)]
    if not bound:
        return None
    if row["state"] == "unreadable":
        return Verdict(f"lower {name} cannot be read: {fleet.lowers[name].trouble or 'see below'}", _DOCTOR)
    if "Service" not in spec.controllers:
        return Verdict(f"lower {name} does not mirror Services", f"add Service to `controllers` of lower {name}")
    if row["state"] == "other":
        why = f"lower {name} has a Service of that name that is not the engine's"
        return Verdict(why, "delete that Service there, or give one of the two another name")
    if row["state"] == "none":
        return Verdict(f"lower {name} has no copy of it, though pods of its namespace run there", START)
    if not _count(_slices(service, fleet, name))[1]:
        return Verdict(f"its copy in lower {name} has no ready endpoints, though it has some in the upper", START)
    return None


def _runs_in(pod: Manifest, spec: Lower, namespace: str, fleet: FleetSnapshot) -> bool:
    """Report whether a pod of a namespace runs in a lower, or is to."""
    is_here = pod["spec"].get("nodeName") == spec.node.name and metadata(pod)["namespace"] == namespace
    return is_here and not has_ended(pod) and excluded(pod, fleet.topology.exclude_namespaces) is None


def _copy_and_state(upper: Manifest, kind: Kind, spec: Lower, fleet: FleetSnapshot) -> tuple[Manifest, str]:
    """Return what a lower has at the place of an upper object, and its state.

    The state is "copy", "other" (of another owner), "none" or "unreadable".
    """
    snapshot = fleet.lowers[spec.name]
    if snapshot.trouble or any(one.startswith(f"{kind.plural}:") for one in snapshot.unread):
        return {}, "unreadable"
    found = fleet.counterpart(upper, kind, spec.name)
    if not found:
        return {}, "none"
    return found, "copy" if fleet.is_copy_of(found, upper) else "other"


def _uses(pod: Manifest, claim: Manifest) -> bool:
    """Report whether a pod that has not ended mounts a claim."""
    meta = metadata(claim)
    if metadata(pod)["namespace"] != meta["namespace"] or has_ended(pod):
        return False
    return meta["name"] in pod_of(pod, settled=True).claims


def _name(pod: Manifest) -> str:
    return f"{metadata(pod)['namespace']}/{metadata(pod)['name']}"


def _condition(one: Manifest) -> Row:
    return {"condition": one["type"], "status": one.get("status", ""), "detail": reason_and_message(one)}


def _document(
    kind: str, namespace_and_name: tuple[str, str], found: Verdict, rows: list[Row], events: Iterable[Manifest]
) -> Document:
    """Return the document of an object; `namespace_and_name` is its namespace ("" for none) and its name."""
    return {
        "formatVersion": FORMAT,
        "kind": kind,
        "namespace": namespace_and_name[0],
        "name": namespace_and_name[1],
        "why": found.why,
        "advice": [found.advice],
        "rows": rows,
        "events": event_rows(events),
    }


def object_text(document: Document) -> str:
    """Return a document as text, without a trailing newline: a sentence, a table, the latest events, what to do."""
    namespace = f"{document['namespace']}/" if document["namespace"] else ""
    lines = [f"{document['kind'].title()} {namespace}{document['name']}: {document['why'].rstrip('.')}."]
    rows = document["rows"]
    if rows:
        head = tuple(key.upper() for key in rows[0])
        lines += ["", *aligned([head, *(tuple(cell or "-" for cell in row.values()) for row in rows)])]
    return joined([*lines, *events_and_advice(document)])
