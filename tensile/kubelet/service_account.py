"""The service account of a lower pod, and the volumes that bring its tokens.

Admission in the upper cluster adds a projected volume and its mounts to every pod. What becomes of them is the pod's
identity below. With the lower cluster's own they stay, and the kubelet there fills them. With the upper cluster's,
the same files come out of a Secret of ours, and the environment says where the upper apiserver is. With none, a pod
runs as the account "default" and gets no token, so they go, in every kind of container: a mount without its volume is
refused.
"""

from tensile.kubelet.place import Placement
from tensile.kubelet.tokens import in_place_of_tokens, secret_name, sources_of, wishes, without_tokens
from tensile.objects import Manifest, uid
from tensile.reconcile.references import is_token_volume
from tensile.world import UpperServer

DEFAULT_ACCOUNT = "default"
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_STARTED = ("containers", "initContainers")


def account_fields(upper_pod: Manifest, place: Placement) -> Manifest:
    """Give the fields of the lower spec that depend on the pod's identity below; those not in it are as above."""
    spec = upper_pod["spec"]
    match place.identity:
        case "none":
            return _without_identity(spec)
        case "lower":
            return _with_lower_identity(spec)
        case "upper":
            return _with_upper_identity(upper_pod, place)


def _without_identity(spec: Manifest) -> Manifest:
    given_none = {
        "serviceAccountName": DEFAULT_ACCOUNT,
        "serviceAccount": DEFAULT_ACCOUNT,
        "automountServiceAccountToken": False,
    }
    fields = without_token(spec)
    volumes = {**spec, **fields}.get("volumes") or []
    without = [without_tokens(volume) for volume in volumes]
    if without != volumes:
        fields["volumes"] = without
    return given_none | fields


def _with_lower_identity(spec: Manifest) -> Manifest:
    """Keep the token's volume; a pod that has none above, by its own or its account's will, gets none below either."""
    volumes = spec.get("volumes") or []
    if any("secret" in volume for volume in volumes if is_token_volume(volume)):
        return without_token(spec)
    return {} if any(map(is_token_volume, volumes)) else {"automountServiceAccountToken": False}


def _with_upper_identity(upper_pod: Manifest, place: Placement) -> Manifest:
    spec = upper_pod["spec"]
    fields: Manifest = {"automountServiceAccountToken": False}
    if not wishes(spec):
        return fields
    name = secret_name(uid(upper_pod))
    fields["volumes"] = [in_place_of_tokens(volume, name) for volume in spec["volumes"]]
    for kind in _STARTED:
        if spec.get(kind):
            fields[kind] = [with_address(one, place.upper_server) for one in spec[kind]]
    return fields


def with_address(container: Manifest, server: UpperServer | None) -> Manifest:
    """Give a container whose environment says where the upper apiserver is; unless it does already, or nobody knows."""
    if server is None:
        return container
    told = {
        "KUBERNETES_SERVICE_HOST": server.host,
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(server.port),
    }
    own = container.get("env") or []
    named = {variable["name"] for variable in own}
    added = [{"name": name, "value": value} for name, value in told.items() if name not in named]
    return {**container, "env": [*added, *own]}


def debug_containers(upper_pod: Manifest, lower_pod: Manifest, place: Placement) -> list[Manifest]:
    """Give the ephemeral containers of an upper pod as its lower pod can have them: without mounts of what it lacks.

    Where tokens of the upper cluster are mounted, they are told its address too.
    """
    above, below = upper_pod["spec"], lower_pod["spec"]
    held = {volume["name"] for volume in below.get("volumes") or ()}
    gone = {one["name"] for one in above.get("volumes") or () if is_token_volume(one)} - held
    wanted = [_without_mounts(one, gone) for one in above.get("ephemeralContainers") or ()]
    uses_upper = uses_tokens(lower_pod, uid(upper_pod))
    return [with_address(one, place.upper_server) for one in wanted] if uses_upper else wanted


def uses_tokens(lower_pod: Manifest, pod_uid: str) -> bool:
    """Say whether tokens of the upper cluster, for the upper pod of that UID, are mounted in a lower pod."""
    name = secret_name(pod_uid)
    sources = (source for volume in lower_pod["spec"].get("volumes") or () for source in sources_of(volume))
    return any((source.get("secret") or {}).get("name") == name for source in sources)


def without_token(spec: Manifest) -> Manifest:
    """Give volumes and containers of a spec without the token's volume and mounts; {} when there is none."""
    volumes = spec.get("volumes") or []
    gone = {volume["name"] for volume in volumes if is_token_volume(volume)}
    if not gone:
        return {}
    lists = {kind: [_without_mounts(one, gone) for one in spec[kind]] for kind in _CONTAINERS if spec.get(kind)}
    return {"volumes": [volume for volume in volumes if volume["name"] not in gone]} | lists


def _without_mounts(container: Manifest, gone: set[str]) -> Manifest:
    """Give a container without the mounts of volumes that are gone, itself when it has none."""
    mounts = container.get("volumeMounts") or []
    left = [mount for mount in mounts if mount["name"] not in gone]
    if len(left) == len(mounts):
        return container
    rest = {field: value for field, value in container.items() if field != "volumeMounts"}
    return rest | ({"volumeMounts": left} if left else {})
