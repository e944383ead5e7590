"""The service account of a lower pod, and the volume that brings its token.

Admission in the upper cluster adds a projected volume and its mounts to every pod. Without an identity of its own
below, a pod runs as the account "default" and is given no token, so both go, in every kind of container: a mount
without its volume is refused.
"""

from tensile.kubelet.place import Placement
from tensile.objects import Manifest
from tensile.reconcile.references import is_token_volume

DEFAULT_ACCOUNT = "default"
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


def account_fields(upper_spec: Manifest, place: Placement) -> Manifest:
    """Give the fields of the lower spec that depend on the pod's identity below; those not in it are as above."""
    if place.identity != "none":
        return {}
    given_none = {
        "serviceAccountName": DEFAULT_ACCOUNT,
        "serviceAccount": DEFAULT_ACCOUNT,
        "automountServiceAccountToken": False,
    }
    return given_none | without_token(upper_spec)


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
