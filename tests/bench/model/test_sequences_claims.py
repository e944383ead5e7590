"""Tests of what the model of random sequences reports about the cluster of a claim's data."""

from typing import Any

import pytest

from bench.model.sequences.model import LOWERS, SPACE, Model
from tensile.names import OWNER, UPPER_UID
from tensile.objects import CLAIM, POD, UPPER, Kind, Manifest, Ref

A, B = LOWERS
MARK = "0123456789abcdef"
VOLUMES = [{"name": "c", "persistentVolumeClaim": {"claimName": "c0"}}]


class Objects:
    """A stage of which only the objects are known."""

    def __init__(self) -> None:
        self.objects: dict[Ref, Manifest] = {}

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object, None for none."""
        return self.objects.get(ref)

    def put(self, cluster: str, kind: Kind, name: str, uid: str, of: str = "", **fields: Any) -> None:
        """Add an object; `of` is the UID of the upper object whose copy it is."""
        marks = {"labels": {OWNER: MARK}, "annotations": {UPPER_UID: of}} if of else {}
        self.objects[Ref(cluster, kind, SPACE, name)] = {"metadata": {"name": name, "uid": uid, **marks}, **fields}


def said(
    *copies: str, pods: tuple[str, ...] = (B,), killed: bool = False, former: str = "claim", volumes: Any = VOLUMES
) -> list[str]:
    """Return what the model reports about a claim with copies in these clusters, and a pod with copies in others.

    `former` is the UID of the claim when the pod was created.
    """
    here, model = Objects(), Model(MARK)
    here.put(UPPER, CLAIM, "c0", former, spec={})
    here.put(UPPER, POD, "p0", "pod", spec={"nodeName": B, "volumes": volumes}, status={"phase": "Running"})
    for lower in copies:
        here.put(lower, CLAIM, "c0", f"claim-{lower}", "claim")
    for lower in pods:
        here.put(lower, POD, "p0", f"pod-{lower}", "pod")
    model.killed = {"claim"} if killed else set()
    model.attach(here)  # type: ignore[arg-type]
    model.made()
    here.put(UPPER, CLAIM, "c0", "claim", spec={})
    return list(model._wrong_claims())


def test_a_pod_in_another_cluster_than_its_claim_is_reported() -> None:
    """The claim's data is then out of the pod's reach."""
    assert said(A) == ["claim c0 is in lower-a, and its pod p0 in lower-b"]
    assert said(B) == []


@pytest.mark.parametrize(
    "given",
    [{"pods": ()}, {"killed": True}, {"volumes": []}, {"former": "other"}],
    ids=["waits", "data-deleted", "needs-no-claim", "claim-replaced"],
)
def test_a_claim_in_another_cluster_is_correct_if_no_pod_uses_it_from_there(given: dict[str, Any]) -> None:
    """The pod is kept back, or the claim has no data any more."""
    assert said(A, **given) == []
