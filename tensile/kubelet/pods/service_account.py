"""The service account of a lower pod, the volumes with its tokens, and what must exist before the pod is created.

Upper admission adds a projected volume and its mounts to every pod. What happens to them depends on the pod's identity:
- `lower`: they stay, and the lower kubelet fills them.
- `upper`: the same files come from a Secret of ours, and the environment holds the upper apiserver's address.
- `none`: the pod runs as the account "default" without a token. Volume and mounts are removed in every kind of
  container, since a mount without its volume is refused.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

from tensile.kube.store import Entry, Transformed, decoded
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.names import TOKEN_POD, UPPER_UID
from tensile.objects import Manifest, annotations, metadata, uid
from tensile.reconcile import ownership
from tensile.reconcile.ownership import marks_of
from tensile.reconcile.pods.references import Reference, is_token_volume
from tensile.reconcile.rules import claim_rule, config, namespaces, service_accounts
from tensile.reconcile.rules.claims import CLAIM_NOT_MIRRORED, foreign_source
from tensile.reconcile.world import Key, LowerWorld, Problem, UpperServer, World

PUBLISHED_CA = "kube-root-ca.crt"
"""The ConfigMap in which each cluster publishes its CA in every namespace."""
CA, NAMESPACE, TOKEN = "ca.crt", "namespace", "token"
_CREDENTIALS = frozenset({"serviceAccountToken", "podCertificate"})
"""Sources of a projected volume that hold credentials of the pod."""
_PREFIX = "upper-token-"
_ONE_HOUR = 3600
_ADMISSION_SECONDS = 3607
"""The lifetime that admission requests: the apiserver takes it for old clients and issues a token for a year."""
_MIN_SECONDS = 600
_DIGITS = 8
DEFAULT_ACCOUNT = "default"
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_STARTED_CONTAINERS = ("containers", "initContainers")


class ProjectedToken(NamedTuple):
    """One token: its key in the Secret, its audience ("" for the apiserver itself), and its lifetime in seconds."""

    entry: str
    audience: str
    seconds: int


class TokenFacts(NamedTuple):
    """A Secret with tokens: the name and the UID of their upper pod."""

    pod: str
    uid: str


def secret_name(pod_uid: str) -> str:
    """Return the name of the Secret with the tokens of an upper pod.

    A kubelet fetches a pod's tokens from its own apiserver; the lower cluster's would be tokens of another cluster. So
    the engine requests them in the upper cluster, bound to the upper pod, and stores them in a Secret in the lower
    cluster. It is named by the pod's UID, which cannot be predicted, so that no other Secret has its name.
    """
    return f"{_PREFIX}{pod_uid}"


def transform(raw: bytes) -> Transformed:
    """Transform a lower Secret of ours: its bytes and marks, with `TokenFacts` if it is no copy of an upper one."""
    secret = decoded(raw)
    notes = annotations(secret)
    uid = notes.get(UPPER_UID, "")
    has_tokens = TOKEN_POD in notes and metadata(secret)["name"] == secret_name(uid)
    return Transformed(raw, marks_of(secret, TokenFacts(notes[TOKEN_POD], uid) if has_tokens else None))


def _by_pod(entry: Entry) -> Iterator[tuple[str, str]]:
    if entry.facts.token is not None:
        yield (entry.namespace, entry.facts.token.pod)


INDEXES = {"pod": _by_pod, **ownership.INDEXES}


def projected_tokens(spec: Manifest) -> tuple[ProjectedToken, ...]:
    """Return the tokens that a pod's volumes need, one for each audience; () for none."""
    found: dict[str, int] = {}
    for audience, seconds in _requested_tokens(spec):
        found[audience] = min(seconds, found.get(audience, seconds))
    return tuple(ProjectedToken(entry_of(audience), audience, found[audience]) for audience in sorted(found))


def entry_of(audience: str) -> str:
    """Return the key of an audience's token in the Secret."""
    return f"{TOKEN}-{sha256(audience.encode()).hexdigest()[:_DIGITS]}" if audience else TOKEN


def sources_of(volume: Manifest) -> list[Manifest]:
    """Return the sources of a projected volume, [] for any other."""
    return list((volume.get("projected") or {}).get("sources") or ())


def has_token(volume: Manifest) -> bool:
    """Report whether a volume projects a token."""
    return any("serviceAccountToken" in source for source in sources_of(volume))


def _requested_tokens(spec: Manifest) -> Iterator[tuple[str, int]]:
    """Yield audience and seconds of each token that a volume requests."""
    for volume in spec.get("volumes") or ():
        if is_token_volume(volume) and "secret" in volume:
            yield "", _ONE_HOUR
        for source in sources_of(volume):
            token = source.get("serviceAccountToken")
            if token is not None:
                yield token.get("audience") or "", _lifetime(token.get("expirationSeconds"))


def _lifetime(seconds: int | None) -> int:
    """Return the lifetime to request for a token; less than ten minutes would be refused."""
    return _ONE_HOUR if seconds in (None, _ADMISSION_SECONDS) else max(int(seconds or 0), _MIN_SECONDS)


def with_secret(volume: Manifest, secret: str) -> Manifest:
    """Return a volume with the Secret in place of each token, and of the cluster's CA and namespace beside it.

    These are then the upper cluster's; the files have the same names.
    """
    if is_token_volume(volume) and "secret" in volume:
        items = [_item(name, name) for name in (TOKEN, CA, NAMESPACE)]
        return {"name": volume["name"], "projected": {"sources": [_secret_source(secret, items)]}}
    if not has_token(volume):
        return volume
    sources = [one for source in sources_of(volume) for one in _replacements(source, secret)]
    return {**volume, "projected": {**volume["projected"], "sources": sources}}


def without_tokens(volume: Manifest) -> Manifest:
    """Return a volume without the tokens and certificates that it projects; the same object if it has none."""
    sources = [source for source in sources_of(volume) if not source.keys() & _CREDENTIALS]
    if len(sources) == len(sources_of(volume)):
        return volume
    return {**volume, "projected": {**volume["projected"], "sources": sources}}


def _replacements(source: Manifest, secret: str) -> Iterator[Manifest]:
    """Yield what replaces one source."""
    token, config_map, downward = (source.get(form) for form in ("serviceAccountToken", "configMap", "downwardAPI"))
    if token is not None:
        yield _secret_source(secret, [_item(entry_of(token.get("audience") or ""), token["path"])])
    elif config_map is not None and config_map.get("name") == PUBLISHED_CA:
        paths = [item["path"] for item in config_map.get("items") or ({"key": CA, "path": CA},) if item["key"] == CA]
        yield _secret_source(secret, [_item(CA, path) for path in paths])
    elif downward is not None:
        yield from _without_namespace(downward, secret)
    else:
        yield source


def _without_namespace(downward: Manifest, secret: str) -> Iterator[Manifest]:
    """Yield a downward source with the pod's namespace taken from the Secret: the lower namespace may differ."""
    namespace_items: list[Manifest] = []
    rest: list[Manifest] = []
    for item in downward.get("items") or ():
        path = (item.get("fieldRef") or {}).get("fieldPath")
        (namespace_items if path == "metadata.namespace" else rest).append(item)
    if namespace_items:
        yield _secret_source(secret, [_item(NAMESPACE, item["path"]) for item in namespace_items])
    if rest or not namespace_items:
        yield {"downwardAPI": {**downward, "items": rest}}


def _secret_source(secret: str, items: list[Manifest]) -> Manifest:
    return {"secret": {"name": secret, "items": items}}


def _item(key: str, path: str) -> Manifest:
    return {"key": key, "path": path}


def account_fields(upper_pod: Manifest, context: LowerContext) -> Manifest:
    """Return the fields of the lower spec that depend on the pod's identity; others are as in the upper spec."""
    spec = upper_pod["spec"]
    match context.identity:
        case "none":
            return _without_identity(spec)
        case "lower":
            return _with_lower_identity(spec)
        case "upper":
            return _with_upper_identity(upper_pod, context)


def _without_identity(spec: Manifest) -> Manifest:
    defaults = {
        "serviceAccountName": DEFAULT_ACCOUNT,
        "serviceAccount": DEFAULT_ACCOUNT,
        "automountServiceAccountToken": False,
    }
    fields = without_token(spec)
    volumes = {**spec, **fields}.get("volumes") or []
    stripped = [without_tokens(volume) for volume in volumes]
    if stripped != volumes:
        fields["volumes"] = stripped
    return defaults | fields


def _with_lower_identity(spec: Manifest) -> Manifest:
    """Keep the token's volume; a pod without one in the upper cluster gets none in the lower cluster either."""
    volumes = spec.get("volumes") or []
    if any("secret" in volume for volume in volumes if is_token_volume(volume)):
        return without_token(spec)
    return {} if any(map(is_token_volume, volumes)) else {"automountServiceAccountToken": False}


def _with_upper_identity(upper_pod: Manifest, context: LowerContext) -> Manifest:
    spec = upper_pod["spec"]
    fields: Manifest = {"automountServiceAccountToken": False}
    if not projected_tokens(spec):
        return fields
    name = secret_name(uid(upper_pod))
    fields["volumes"] = [with_secret(volume, name) for volume in spec["volumes"]]
    for kind in _STARTED_CONTAINERS:
        if spec.get(kind):
            fields[kind] = [with_address(one, context.upper_server) for one in spec[kind]]
    return fields


def with_address(container: Manifest, server: UpperServer | None) -> Manifest:
    """Return a container with the upper apiserver's address in its environment, unless it is set already or unknown."""
    if server is None:
        return container
    variables = {
        "KUBERNETES_SERVICE_HOST": server.host,
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(server.port),
    }
    existing = container.get("env") or []
    present = {variable["name"] for variable in existing}
    added = [{"name": name, "value": value} for name, value in variables.items() if name not in present]
    return {**container, "env": [*added, *existing]}


def debug_containers(upper_pod: Manifest, lower_pod: Manifest, context: LowerContext) -> list[Manifest]:
    """Return the ephemeral containers of an upper pod for its lower pod: without mounts of volumes it does not have.

    Where tokens of the upper cluster are mounted, they get the upper apiserver's address too.
    """
    upper_spec, lower_spec = upper_pod["spec"], lower_pod["spec"]
    lower_volumes = {volume["name"] for volume in lower_spec.get("volumes") or ()}
    removed_volumes = {one["name"] for one in upper_spec.get("volumes") or () if is_token_volume(one)} - lower_volumes
    wanted = [_without_mounts(one, removed_volumes) for one in upper_spec.get("ephemeralContainers") or ()]
    uses_upper = uses_tokens(lower_pod, uid(upper_pod))
    return [with_address(one, context.upper_server) for one in wanted] if uses_upper else wanted


def uses_tokens(lower_pod: Manifest, pod_uid: str) -> bool:
    """Report whether a lower pod mounts tokens of the upper cluster for the upper pod of that UID."""
    name = secret_name(pod_uid)
    sources = (source for volume in lower_pod["spec"].get("volumes") or () for source in sources_of(volume))
    return any((source.get("secret") or {}).get("name") == name for source in sources)


def without_token(spec: Manifest) -> Manifest:
    """Return volumes and containers of a spec without the token's volume and mounts; {} when there is none."""
    volumes = spec.get("volumes") or []
    removed = {volume["name"] for volume in volumes if is_token_volume(volume)}
    if not removed:
        return {}
    lists = {kind: [_without_mounts(one, removed) for one in spec[kind]] for kind in _CONTAINERS if spec.get(kind)}
    return {"volumes": [volume for volume in volumes if volume["name"] not in removed]} | lists


def _without_mounts(container: Manifest, removed: set[str]) -> Manifest:
    """Return a container without the mounts of removed volumes; the same object when it has none."""
    mounts = container.get("volumeMounts") or []
    remaining = [mount for mount in mounts if mount["name"] not in removed]
    if len(remaining) == len(mounts):
        return container
    rest = {field: value for field, value in container.items() if field != "volumeMounts"}
    return rest | ({"volumeMounts": remaining} if remaining else {})


def missing_keys(namespace: str, references: Iterable[Reference], lower: LowerWorld, world: World) -> list[Key]:
    """Return the keys of what a pod in `namespace` with these `references` still lacks in the lower cluster.

    Tokens of the upper cluster are not among them. They are requested last, once nothing else is missing: otherwise a
    pod that waits for another reason would leave an unused credential in the lower cluster.
    """
    references = tuple(references)
    keys = [] if namespaces.ready(lower, namespace) else [namespaces.key_of(lower.name, namespace)]
    keys += config.missing(world, lower, namespace, references)
    keys += claim_rule.missing(world, lower, namespace, references)
    keys += service_accounts.missing(world, lower, namespace, references)
    return keys


def creation_problem(upper_pod: Manifest) -> Problem | None:
    """Return why a pod is never created in the lower cluster: it names what exists only there."""
    for volume in upper_pod["spec"].get("volumes") or ():
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}
        source = foreign_source(template.get("spec") or {})
        if source:
            return Problem(CLAIM_NOT_MIRRORED, f"volume {volume['name']} has the data source {source}")
    return None
