"""Tests of foreign objects that conflict with the engine's; `make faults` creates every form of every kind."""

from collections import Counter

import pytest

from bench.faults.foreign_objects import FOREIGN_KINDS, FORMS, MOMENTS, Case, cases, marks
from bench.faults.name_conflicts import ConflictTrial, name_conflicts
from tensile.names import LEGACY, OWNER, UPPER_UID, owner_of
from tensile.sandbox.sandbox import Sandbox

OURS = owner_of("upper", "sandbox")


def test_each_kind_has_five_forms_of_foreign_objects_at_five_moments() -> None:
    """Each case has a unique name that is valid for all kinds; a PersistentVolume has one moment less."""
    found = cases(tuple(FOREIGN_KINDS))
    volumes = {"PersistentVolume": 20}
    assert Counter(case.kind for case in found) == {**dict.fromkeys(FOREIGN_KINDS, 25), **volumes}
    assert len({case.name for case in found}) == len(found) == 295
    assert all(len(case.name) <= 63 and case.name == case.name.lower() for case in found)
    assert (len(FORMS), len(MOMENTS)) == (5, 5)


def test_forms_of_foreign_objects_differ_in_their_marks() -> None:
    """The marks range from none to all that an engine would write."""
    assert marks("plain", OURS, "uid") == {}
    assert UPPER_UID not in marks("forged", OURS, "uid")["annotations"]
    assert marks("copied", OURS, "uid")["annotations"][UPPER_UID] == "uid"
    assert marks("copied", OURS, "")["annotations"][UPPER_UID] == "upper"
    assert marks("rival", OURS, "uid")["labels"][OWNER] != OURS.mark
    assert marks("legacy", OURS, "uid")["annotations"] == {LEGACY: "true"}


def test_the_pod_that_needs_a_conflicting_name_is_created_last() -> None:
    """The first object is the original of the conflicting kind, or for a volume the claim that needs it."""
    for kind, subject in FOREIGN_KINDS.items():
        made = subject.upper_objects("n")
        assert (not made) == (kind == "Node")
        if made and not subject.by_uid:
            assert made[-1].collection.endswith("/pods")
            assert made[-1].body["spec"]["nodeName"] == subject.lower
            assert made[0].collection.rpartition("/")[2] == subject.location("n").collection.rpartition("/")[2]
    space = Case("Namespace", "plain", "stands")
    assert space.foreign_kind.location(space.name).path == "/api/v1/namespaces/sandbox-namespace-plain-stands"
    assert FOREIGN_KINDS["PersistentVolume"].location("uid").path == "/api/v1/persistentvolumes/pvc-uid"


@pytest.mark.real
async def test_foreign_objects_are_reported_and_never_changed(fragile: Sandbox) -> None:
    """This holds for deletions and changes in both clusters, and for a stop and a kill of the engine."""
    kinds = tuple(kind for kind in FOREIGN_KINDS if kind not in ("Node", "Namespace"))
    given = [*cases(kinds, ("copied",)), *cases(("Pod", "Service"), ("rival",)), Case("Node", "forged", "stands")]
    async with ConflictTrial(fragile, len(given)) as field:
        result = await name_conflicts(field, given)
    assert result["broken"] == []
    assert result["canaries"] == 60
