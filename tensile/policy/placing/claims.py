"""The claims of a pod's volumes: which there are, which are bound, and why the pod has to wait for one.

Shared by the checks of storage, each of which the kube-scheduler makes in a plugin of its own.
"""

from typing import NamedTuple

from tensile.objects import Manifest, annotations, controller_of, metadata, uid
from tensile.policy.placing.check import Nowhere
from tensile.policy.placing.snapshot import Pod, Storage

UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
DELAYED = "WaitForFirstConsumer"
_BOUND = "pv.kubernetes.io/bind-completed"
_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
SELECTED_NODE = "volume.kubernetes.io/selected-node"


class Claims(NamedTuple):
    """A pod's claims: those that have their volume, and those that get one when the pod has its node."""

    bound: tuple[Manifest, ...]
    delayed: tuple[Manifest, ...]


def claims_of(pod: Pod, storage: Storage) -> Claims | Nowhere:
    """Sort a pod's claims; Nowhere says which one it has to wait for wherever it goes."""
    found = [(name, claim_of(name, pod, storage)) for name in pod.claims]
    for name, claim in found:
        if flaw := _flaw(name, claim, pod):
            return Nowhere(flaw)
    claims = [claim for _, claim in found if claim is not None]
    bound = tuple(claim for claim in claims if is_bound(claim))
    rest = tuple(claim for claim in claims if not is_bound(claim))
    if any(volume_of(claim) or not is_delayed(claim, storage) for claim in rest):
        return Nowhere(UNBOUND)
    return Claims(bound, rest)


def claim_of(name: str, pod: Pod, storage: Storage) -> Manifest | None:
    """Give a claim of the pod; one made by a template, for a pod that does not exist yet, is as the template says."""
    found = storage.claims.get((pod.namespace, name))
    if found is None and name in pod.own_claims and not pod.uid:
        template = pod.own_claims[name]["volumeClaimTemplate"]
        return {"metadata": {**(template.get("metadata") or {}), "name": name}, "spec": template["spec"]}
    return found


def volume_of(claim: Manifest) -> str:
    """Give the name of the claim's volume, "" where it has none."""
    return claim["spec"].get("volumeName") or ""


def class_of(manifest: Manifest) -> str:
    """Give the storage class of a claim or a volume, "" where it has none."""
    beta = annotations(manifest).get(_BETA_CLASS)
    return (manifest["spec"].get("storageClassName") or "") if beta is None else beta


def is_bound(claim: Manifest) -> bool:
    """Say whether a claim has its volume for good."""
    return bool(volume_of(claim)) and _BOUND in annotations(claim)


def is_delayed(claim: Manifest, storage: Storage) -> bool:
    """Say whether a claim gets its volume only when its pod has a node."""
    found = storage.classes.get(class_of(claim))
    return found is not None and found.get("volumeBindingMode") == DELAYED


def _flaw(name: str, claim: Manifest | None, pod: Pod) -> str:
    """Say why a pod has to wait for a claim, "" where it has not."""
    own = name in pod.own_claims
    if claim is None:
        waiting = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        return waiting if own else f'persistentvolumeclaim "{name}" not found'
    if (claim.get("status") or {}).get("phase") == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume_of(claim)}"'
    if metadata(claim).get("deletionTimestamp"):
        return f'persistentvolumeclaim "{name}" is being deleted'
    if own and uid(claim) and controller_of(claim).get("uid") != pod.uid:
        return f"PVC {pod.namespace}/{name} was not created for pod {pod.namespace}/{pod.name} (pod is not owner)"
    return ""
