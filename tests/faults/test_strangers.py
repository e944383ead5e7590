"""Strangers' objects in the engine's way, in short: `make faults` puts every form of every kind there."""

from collections import Counter

import pytest

from bench.faults.canaries import FORMS, MOMENTS, SUBJECTS, Case, cases, marks
from bench.faults.strangers import Field, strangers
from tensile.names import LEGACY, OWNER, UPPER_UID, owner_of
from tensile.sandbox.sandbox import Sandbox

OURS = owner_of("upper", "sandbox")


def test_each_kind_meets_five_forms_at_five_moments() -> None:
    """Under a name of its own, which fits a pod, a namespace and a node; a volume's place cannot be taken at one."""
    found = cases(tuple(SUBJECTS))
    volumes = {"PersistentVolume": 20}
    assert Counter(case.kind for case in found) == {**dict.fromkeys(SUBJECTS, 25), **volumes}
    assert len({case.name for case in found}) == len(found) == 295
    assert all(len(case.name) <= 63 and case.name == case.name.lower() for case in found)
    assert (len(FORMS), len(MOMENTS)) == (5, 5)


def test_forms_differ_in_what_they_pretend() -> None:
    """From nothing to all that an engine would write."""
    assert marks("plain", OURS, "uid") == {}
    assert UPPER_UID not in marks("forged", OURS, "uid")["annotations"]
    assert marks("copied", OURS, "uid")["annotations"][UPPER_UID] == "uid"
    assert marks("copied", OURS, "")["annotations"][UPPER_UID] == "upper"
    assert marks("rival", OURS, "uid")["labels"][OWNER] != OURS.mark
    assert marks("legacy", OURS, "uid")["annotations"] == {LEGACY: "true"}


def test_what_waits_for_a_name_comes_last() -> None:
    """And what ours would be made for first: of the same kind, but a claim for the volume that it is to get."""
    for kind, subject in SUBJECTS.items():
        made = subject.above("n")
        assert (not made) == (kind == "Node")
        if made and not subject.by_uid:
            assert made[-1].collection.endswith("/pods")
            assert made[-1].body["spec"]["nodeName"] == subject.lower
            assert made[0].collection.rpartition("/")[2] == subject.stranger("n").collection.rpartition("/")[2]
    space = Case("Namespace", "plain", "stands")
    assert space.subject.stranger(space.name).path == "/api/v1/namespaces/sandbox-namespace-plain-stands"
    assert SUBJECTS["PersistentVolume"].stranger("uid").path == "/api/v1/persistentvolumes/pvc-uid"


@pytest.mark.real
async def test_strangers_objects_are_told_of_and_never_touched(fragile: Sandbox) -> None:
    """Through deletions and new asks above, edits and removals below, a stop and a kill of the engine."""
    kinds = tuple(kind for kind in SUBJECTS if kind not in ("Node", "Namespace"))
    given = [*cases(kinds, ("copied",)), *cases(("Pod", "Service"), ("rival",)), Case("Node", "forged", "stands")]
    async with Field(fragile, len(given)) as field:
        result = await strangers(field, given)
    assert result["broken"] == []
    assert result["canaries"] == 60
