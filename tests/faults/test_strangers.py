"""Strangers' objects in the engine's way, in short: `make faults` puts every form of every kind there."""

from collections import Counter

import pytest

from bench.canaries import FORMS, MOMENTS, SUBJECTS, Case, cases, marks
from bench.strangers import Field, strangers
from tensile.names import LEGACY, OWNER, UPPER_UID, owner_of
from tensile.sandbox.environment import Sandbox

OURS = owner_of("upper", "sandbox")


def test_each_kind_meets_five_forms_at_five_moments() -> None:
    """Under a name of its own, which fits a pod, a namespace and a node."""
    found = cases(tuple(SUBJECTS))
    assert set(Counter(case.kind for case in found).values()) == {25}
    assert len({case.name for case in found}) == len(found) == 25 * len(SUBJECTS)
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
    """And what ours would be made for first."""
    for kind, subject in SUBJECTS.items():
        made = subject.above("n")
        assert (not made) == (kind == "Node")
        if made:
            assert made[-1].collection.endswith("/pods")
            assert made[-1].body["spec"]["nodeName"] == subject.lower
    assert Case("Namespace", "plain", "stands").place.path == "/api/v1/namespaces/sandbox-namespace-plain-stands"


@pytest.mark.real
async def test_strangers_objects_are_told_of_and_never_touched(fragile: Sandbox) -> None:
    """Through deletions and new asks above, edits and removals below, a stop and a kill of the engine."""
    given = [*cases(("Pod", "ConfigMap", "Secret"), ("plain", "copied", "rival")), Case("Node", "forged", "stands")]
    async with Field(fragile, len(given)) as field:
        result = await strangers(field, given)
    assert result["broken"] == []
    assert result["canaries"] == 46
