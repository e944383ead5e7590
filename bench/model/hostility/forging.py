"""Objects that hostile tenants write: with forged marks, names and UIDs of other tenants, finalizers, owners and sizes.

Each is a body and the field manager that sends it; the actions determine who may write it, and where. A real apiserver
accepts all of them.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.model.hostility.choices import Choices
from tensile.names import (
    DESCHEDULED,
    FIELD_MANAGER,
    KEPT_POD,
    LEGACY,
    OWNER,
    OWNER_NAME,
    REPLACES,
    TOKEN_POD,
    TOKEN_TERM,
    UPPER_NAMESPACE,
    UPPER_UID,
    VIRTUAL_POD,
    WRITTEN_IMAGES,
    WRITTEN_KEYS,
)
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Manifest,
)

OTHER_MANAGER = "kubectl-create"
MARKINGS = ("all", "all", "all", "label", "annotation", "none")
"""Which ownership marks an object has.

`all` are written by the engine's field manager; `annotation` are the same marks, written by another field manager.
"""
KINDS = (
    SECRET, CONFIG_MAP, SECRET, SERVICE_ACCOUNT, SERVICE, ENDPOINT_SLICE, CLAIM, ROLE, ROLE_BINDING,
)  # fmt: skip
OWN_NAMES = ("m-0", "m-1", "m-2")
FINALIZER = "mallory.example/stays"
NOBODY = "nobody"
"""The name of a scheduler that does not exist, so that its pods never run."""
BIG = 20_000
_SOURCES = (SECRET, CONFIG_MAP)


class Known(NamedTuple):
    """What a hostile tenant knows: the owner mark and the topology's name, upper objects, and markers of his own.

    `uids` and `names` are those of upper objects by kind; `space` is UID and name of the namespace in which he writes.
    """

    mark: str
    topology: str
    uids: Mapping[Kind, Sequence[str]]
    names: Mapping[Kind, Sequence[str]]
    space: tuple[str, str]
    word: Callable[[], str]


class Forgery(NamedTuple):
    """A body without a namespace, its kind, and the field manager that sends it."""

    kind: Kind
    body: Manifest
    manager: str


def pod_below(choices: Choices, known: Known) -> Forgery:
    """Return a pod of the hostile lower tenant."""
    meta, manager = _metadata(choices, known, POD)
    spec: Manifest = {"containers": [{"name": "c", "image": "mallory:1"}]}
    _refer(spec, choices, known)
    if choices.chance(4):
        spec["schedulerName"] = NOBODY
    if choices.chance(6):
        spec["terminationGracePeriodSeconds"] = 10**8
    return Forgery(POD, {"metadata": meta, "spec": spec}, manager)


def mimic(choices: Choices, known: Known, upper: Manifest) -> Forgery:
    """Return a pod of the hostile lower tenant that looks like the lower pod of an upper pod.

    It refers to the objects that the upper pod refers to, and to the Secret with its tokens.
    """
    meta, upper_uid = upper["metadata"], upper["metadata"]["uid"]
    notes = {OWNER_NAME: known.topology, UPPER_UID: upper_uid}
    name = choices.pick((meta["name"], meta["name"], *OWN_NAMES))
    forged: Manifest = {"name": name, "labels": {OWNER: known.mark, "team": known.word()}, "annotations": notes}
    if choices.chance(3):
        forged["finalizers"] = [FINALIZER]
    tokens = {"name": f"upper-token-{upper_uid}", "items": [{"key": "token", "path": "token"}]}
    volumes = [one for one in upper["spec"].get("volumes") or () if "projected" not in one]
    volumes.append({"name": "kube-api-access-x", "projected": {"sources": [{"secret": tokens}]}})
    spec = {"containers": [{"name": "c", "image": "mallory:1"}], "volumes": volumes}
    account = upper["spec"].get("serviceAccountName", "default")
    more = {"serviceAccountName": account} if choices.chance(2) else {}
    scheduler = {"schedulerName": NOBODY} if choices.chance(3) else {}
    return Forgery(POD, {"metadata": forged, "spec": {**spec, **more, **scheduler}}, FIELD_MANAGER)


def predecessor(choices: Choices, known: Known) -> Forgery:
    """Return a pod of the hostile lower tenant that looks like the lower pod of an older upper pod of a name in use."""
    meta: Manifest = {"name": choices.pick(_names(POD, known)), "labels": {OWNER: known.mark}}
    meta["annotations"] = {OWNER_NAME: known.topology, UPPER_UID: choices.pick(("made-up", *known.uids.get(POD, ())))}
    if choices.pick((True, False)):
        meta["finalizers"] = [FINALIZER]
    spec: Manifest = {"containers": [{"name": "c", "image": "mallory:1"}]}
    if choices.pick((True, True, False)):
        spec["schedulerName"] = NOBODY
    return Forgery(POD, {"metadata": meta, "spec": spec}, FIELD_MANAGER)


def pod_above(choices: Choices, known: Known, nodes: Sequence[str]) -> Forgery:
    """Return a pod of the hostile upper tenant, bound to a virtual node by himself."""
    meta, manager = _metadata(choices, known, POD)
    notes = meta.setdefault("annotations", {})
    if choices.chance(4):
        notes["clusterSelector"] = choices.pick(
            ('{"x": 1e400}', "{", '{"nodeSelector": {"a": 5}}', '{"tolerations": [{"operator": "Exists"}]}')
        )
    spec: Manifest = {"containers": [{"name": "c", "image": "mallory:1"}], "nodeName": choices.pick(nodes)}
    _refer(spec, choices, known)
    return Forgery(POD, {"metadata": meta, "spec": spec}, manager)


def thing(choices: Choices, known: Known, kinds: Sequence[Kind] = KINDS) -> Forgery:
    """Return an object of another kind, of either hostile tenant."""
    kind = choices.pick(kinds)
    meta, manager = _metadata(choices, known, kind)
    if kind == SECRET and choices.chance(3):
        upper_uid = choices.pick(known.uids.get(POD) or ("none",))
        meta["name"] = f"upper-token-{upper_uid}"
        notes = meta.setdefault("annotations", {})
        notes |= {TOKEN_POD: choices.pick(_names(POD, known)), UPPER_UID: upper_uid}
        notes |= {TOKEN_TERM: "2026-01-01T00:00:00Z/PT9999999S"}
    return Forgery(kind, {"metadata": meta, **_body(kind, choices, known)}, manager)


def disguise(choices: Choices, known: Known, kind: Kind) -> tuple[Manifest, str]:
    """Return metadata for an existing object, as a merge patch, and the field manager that sends it."""
    meta, manager = _metadata(choices, known, kind)
    del meta["name"]
    meta.pop("ownerReferences", None)
    if choices.chance(5):
        meta["labels"] = {OWNER: None}
    return meta, manager


def event(choices: Choices, known: Known, about: Manifest) -> Manifest:
    """Return an event about any pod in the namespace where he writes; `about` is its involvedObject."""
    return {
        "metadata": {"name": f"{choices.pick(OWN_NAMES)}.{known.word()}"},
        "involvedObject": about,
        "reason": "Hostile",
        "message": known.word() + choices.pick(("", "x" * 5_000)),
        "type": "Warning",
        "source": {"component": choices.pick(("kubelet", "scheduler"))},
        "count": 1,
    }


def _metadata(choices: Choices, known: Known, kind: Kind) -> tuple[Manifest, str]:
    """Return metadata with forged ownership marks, and the field manager that writes them."""
    marking = choices.pick(MARKINGS)
    uids = known.uids.get(kind) or known.uids.get(POD) or ("none",)
    upper_uid = choices.pick((choices.pick(uids), choices.pick(uids), choices.pick(uids), "made-up"))
    meta: Manifest = {"name": choices.pick(_names(kind, known)), "labels": {"team": known.word()}}
    if marking != "none":
        meta["labels"] |= {OWNER: known.mark}
    if marking in ("all", "annotation"):
        meta["annotations"] = {OWNER_NAME: known.topology, UPPER_UID: upper_uid}
    _adorn(meta, choices, known)
    return meta, FIELD_MANAGER if marking == "all" else OTHER_MANAGER


def _adorn(meta: Manifest, choices: Choices, known: Known) -> None:
    """Add other metadata that a tenant may write."""
    notes = meta.setdefault("annotations", {})
    if choices.chance(4):
        meta["finalizers"] = [FINALIZER]
    if choices.chance(6):
        owner = {"apiVersion": "v1", "kind": "Namespace", "uid": known.space[0], "name": known.space[1]}
        meta["ownerReferences"] = [owner | {"controller": True}]
    more: tuple[tuple[str, str], ...] = (
        (LEGACY, "true"),
        (WRITTEN_KEYS, '{"labels": ["team"], "annotations": ["a"]}'),
        (WRITTEN_KEYS, '{"labels": 5}'),
        (WRITTEN_IMAGES, '{"c": 7}'),
        (UPPER_NAMESPACE, "bank"),
        (TOKEN_POD, "web"),
        (REPLACES, "made-up"),
        ("big", "x" * BIG),
    )
    if choices.chance(2):
        notes |= [choices.pick(more)]
    if choices.chance(5):
        meta["labels"] |= choices.pick(({VIRTUAL_POD: "true"}, {DESCHEDULED: "true"}))


def _refer(spec: Manifest, choices: Choices, known: Known) -> None:
    """Let a pod refer to objects that its author would like to read, required or optional."""
    container, volumes = spec["containers"][0], []
    tokens = [f"upper-token-{one}" for one in known.uids.get(POD, ())]
    for number in range(choices.pick((1, 2, 0))):
        kind = choices.pick(_SOURCES)
        names = tokens if kind == SECRET and tokens and choices.chance(2) else _names(kind, known)
        name, optional = choices.pick(names), choices.pick((False, True))
        field = "secret" if kind == SECRET else "configMap"
        match choices.pick(("envFrom", "volume", "projected", "pull")):
            case "envFrom":
                source = {f"{field}Ref": {"name": name, "optional": optional}}
                container.setdefault("envFrom", []).append(source)
            case "volume":
                key = "secretName" if kind == SECRET else "name"
                volumes.append({"name": f"v{number}", field: {key: name, "optional": optional}})
            case "projected":
                sources = [{field: {"name": name, "optional": optional}}]
                called = choices.pick((f"v{number}", f"kube-api-access-{number}"))
                volumes.append({"name": called, "projected": {"sources": sources}})
            case "pull":
                spec.setdefault("imagePullSecrets", []).append({"name": name})
    if choices.chance(3):
        spec["serviceAccountName"] = choices.pick(_names(SERVICE_ACCOUNT, known))
    if choices.chance(5):
        claim = {"claimName": choices.pick(_names(CLAIM, known))}
        volumes.append({"name": "claim", "persistentVolumeClaim": claim})
    spec["volumes"] = volumes


def _names(kind: Kind, known: Known) -> Sequence[str]:
    """Return names of a kind: those of other tenants first, which are worth more, then unused ones."""
    return (*known.names.get(kind, ()), *OWN_NAMES)


def _body(kind: Kind, choices: Choices, known: Known) -> dict[str, Any]:
    """Return the rest of an object, with a marker of its author if there is a field for it."""
    word = known.word()
    match kind.name:
        case "Secret":
            sort = choices.pick(("Opaque", "Opaque", "Opaque", KEPT_POD))
            return {"type": sort, "data": {"k": b64encode(word.encode()).decode()}}
        case "ConfigMap":
            return {"data": {"k": word, **({"big": "x" * BIG} if choices.chance(5) else {})}}
        case "ServiceAccount":
            return {"imagePullSecrets": [{"name": choices.pick(_names(SECRET, known))}]}
        case "Service":
            return {"spec": {"ports": [{"name": "http", "port": 666, "protocol": "TCP"}]}}
        case "EndpointSlice":
            return {"addressType": "IPv4", "endpoints": [{"addresses": ["7.7.0.1"]}], "ports": []}
        case "PersistentVolumeClaim":
            return {"spec": _claim(choices, known)}
        case "Role":
            return {"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}
    account = choices.pick(_names(SERVICE_ACCOUNT, known))
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": choices.pick(_names(ROLE, known))},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": known.space[1]}],
    }


def _claim(choices: Choices, known: Known) -> Manifest:
    spec: Manifest = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": choices.pick(("goes", "stays")),
        "resources": {"requests": {"storage": "1Gi"}},
    }
    volume = f"pvc-{choices.pick(known.uids.get(CLAIM) or ('none',))}"
    return {**spec, "volumeName": volume} if choices.chance(3) else spec
