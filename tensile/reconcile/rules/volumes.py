"""Volumes on both sides: placeholders in the upper cluster, and facts of the lower volumes that they represent.

A scheduler binds a pod only once its claims have volumes, and a lower cluster often creates a volume only for an
existing pod. So the upper cluster gets a placeholder: a volume on one virtual node that holds no data itself. What it
represents is written in its annotations, because Kubernetes does not allow a volume's source to change.
"""

from collections.abc import Iterator

import msgspec
import orjson

from tensile.kube.store import Entry, Transformed
from tensile.names import LOWER, LOWER_CLAIM_UID, LOWER_VOLUME, LOWER_VOLUME_SOURCE, OWNER, PROVISIONER, Owner
from tensile.objects import CLAIM, VOLUME, Manifest, annotations, labels, metadata
from tensile.reconcile.ownership import upper_uid_of
from tensile.reconcile.rules.claims import class_of
from tensile.reconcile.world import LowerWorld

PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SOURCE = {"path": "/tensile-placeholder"}
"""A path that does not exist: a volume needs a source, and `local` is the only kind that no controller touches."""
_PREFIX = "pvc-"
_NO_SOURCES = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)


class VolumeFacts(msgspec.Struct, frozen=True, gc=False):
    """One volume of the upper cluster.

    `owner` is our mark and `lower` the lower cluster that it is for ("" where it is not ours). `lower_claim` is the UID
    of the lower claim that holds the data, "" for none. `claim` and `claim_uid` are of the upper claim that has it.
    `released` is whether that claim is gone, `deletes` whether the data are to be deleted with it.
    """

    owner: str
    upper_uid: str
    lower: str
    lower_claim: str
    claim: tuple[str, str]
    claim_uid: str
    released: bool
    deletes: bool
    terminating: bool


class LowerVolume(msgspec.Struct, frozen=True, gc=False):
    """One volume of a lower cluster: the UID of the claim that has it, its kind of source and its reclaim policy."""

    claim_uid: str
    source: str
    policy: str


def name_of(claim_uid: str) -> str:
    """Return the name of the placeholder for an upper claim, in the form that every provisioner uses."""
    return _PREFIX + claim_uid


def claim_uid_of(name: str) -> str:
    """Return the UID of the claim that a placeholder of that name is for."""
    return name.removeprefix(_PREFIX)


def digest(raw: bytes) -> Transformed:
    """Transform a volume of the upper cluster: its bytes and facts."""
    volume: Manifest = orjson.loads(raw)
    spec, notes, upper_uid = volume.get("spec") or {}, annotations(volume), upper_uid_of(volume)
    holder = spec.get("claimRef") or {}
    facts = VolumeFacts(
        owner=labels(volume).get(OWNER, "") if upper_uid else "",
        upper_uid=upper_uid,
        lower=notes.get(LOWER, ""),
        lower_claim=notes.get(LOWER_CLAIM_UID, ""),
        claim=(holder.get("namespace", ""), holder.get("name", "")),
        claim_uid=holder.get("uid", ""),
        released=(volume.get("status") or {}).get("phase") in ("Released", "Failed"),
        deletes=spec.get("persistentVolumeReclaimPolicy") == "Delete",
        terminating="deletionTimestamp" in metadata(volume),
    )
    return Transformed(raw, facts)


def digest_below(raw: bytes) -> Transformed:
    """Transform a volume of a lower cluster to the facts that are reported upwards; it is never ours to change."""
    spec = orjson.loads(raw).get("spec") or {}
    holder = (spec.get("claimRef") or {}).get("uid", "")
    return Transformed(b"", LowerVolume(holder, _source(spec), spec.get("persistentVolumeReclaimPolicy", "Retain")))


def _source(spec: Manifest) -> str:
    """Return the kind of a volume's source, with its driver if it has one."""
    found = next((field for field in sorted(spec) if field not in _NO_SOURCES), "")
    driver = spec[found].get("driver") if found and isinstance(spec[found], dict) else ""
    return f"{found} {driver}" if driver else found


def _by_claim(entry: Entry) -> Iterator[str]:
    yield entry.facts.claim_uid


def _by_lower_claim(entry: Entry) -> Iterator[str]:
    yield entry.facts.lower_claim


INDEXES = {"claim": _by_claim, "lower_claim": _by_lower_claim}
INDEXES_BELOW = {"claim": _by_claim}


def below(lower: LowerWorld, claim: Entry | None) -> Entry | None:
    """Return the lower volume that a lower claim is bound to, None when there is none."""
    found = lower.more[VOLUME].select("claim", claim.uid) if claim is not None and claim.facts.bound else ()
    return found[0] if found else None


def placeholder(claim: Manifest, lower: LowerWorld, owner: Owner, policy: str, size: str) -> Manifest:
    """Return the upper volume that represents the volume of an upper claim in a lower cluster."""
    meta, spec = metadata(claim), claim["spec"]
    kept = {field: spec[field] for field in ("accessModes", "volumeMode", "volumeAttributesClassName") if field in spec}
    holder = {field: meta[field] for field in ("namespace", "name", "uid")}
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [lower.node]}
    return {
        "apiVersion": VOLUME.api,
        "kind": VOLUME.name,
        "metadata": {
            "name": name_of(meta["uid"]),
            "labels": owner.label,
            "annotations": marks(owner, lower, meta["uid"]),
        },
        "spec": {
            **kept,
            "capacity": {"storage": size},
            "storageClassName": class_of(claim) or "",
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"apiVersion": CLAIM.api, "kind": CLAIM.name, **holder},
            "local": SOURCE,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def marks(owner: Owner, lower: LowerWorld, claim_uid: str) -> dict[str, str]:
    """Return the annotations that every placeholder has."""
    return owner.signed(claim_uid) | {LOWER: lower.name, PROVISIONED_BY: PROVISIONER}


def facts_below(copy: Entry | None, volume: Entry | None) -> dict[str, str]:
    """Return the annotations with the lower claim, and the volume that it has."""
    found = {LOWER_CLAIM_UID: copy.uid} if copy is not None else {}
    if volume is not None:
        found |= {LOWER_VOLUME: volume.name, LOWER_VOLUME_SOURCE: volume.facts.source}
    return found
