"""Tests of status patches: they are minimal, replace what Kubernetes would merge, and keep types of other writers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import EARLIER, merged, pod, stored_condition
from podviewkit import status_patch

from tensile.kubelet.pods.conditions import conditions_of, unschedulable_condition
from tensile.reconcile.pods.index import view_of


def test_a_pod_without_a_status_has_an_empty_status() -> None:
    """A pod that was just created may have none."""
    assert view_of(pod()).status == {}
    assert conditions_of(pod()) == {}
    assert conditions_of(pod(status={"conditions": None})) == {}


def test_conditions_are_returned_by_type_without_nulls() -> None:
    """The API writes null for an unset probe time, which equals an absent one."""
    assert conditions_of(pod(status={"conditions": [stored_condition("Ready")]})) == {
        "Ready": {"type": "Ready", "status": "True", "lastTransitionTime": EARLIER}
    }


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (None, False),
        ({"status": "True", "reason": "Full"}, False),
        ({"status": "False", "reason": "Full"}, True),
        ({"status": "False", "reason": "Gated"}, False),
        ({"status": "False"}, False),
    ],
)
def test_an_unschedulable_condition_is_found_by_its_reasons(condition: dict[str, str] | None, *, found: bool) -> None:
    """Only the given reasons count, because a gated pod waits for something else."""
    conditions = [{"type": "PodScheduled", **condition}] if condition else []
    said_of = unschedulable_condition(pod(status={"conditions": conditions}), ("Full",))
    assert said_of == (conditions[0] if found else None)


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_an_empty_value_removes_a_field(value: Any) -> None:
    """Absent and empty are equal: null is sent if the field has a value, and nothing otherwise."""
    assert status_patch(pod(status={"reason": "Evicted"}), {"reason": value}, {}) == {"reason": None}
    for nothing in ({}, {"reason": ""}, {"reason": None}):
        assert status_patch(pod(status=nothing), {"reason": value}, {}) == {}


def test_equal_values_are_not_sent() -> None:
    """A status that is already as desired needs no write."""
    status = {"phase": "Running", "podIPs": [{"ip": "1.1.1.1"}], "resources": {"requests": {"cpu": "1"}}}
    assert status_patch(pod(status=status), status, {}) == {}


def test_values_that_differ_only_in_nulls_are_not_sent() -> None:
    """One version writes `startedAt: null` and another omits it, which is no difference."""
    upper_objects = [{"name": "main", "state": {"terminated": {"exitCode": 1, "startedAt": None}}}]
    under = [{"name": "main", "state": {"terminated": {"exitCode": 1}}}]
    assert status_patch(pod(status={"containerStatuses": upper_objects}), {"containerStatuses": under}, {}) == {}


@pytest.mark.parametrize("field", ["podIPs", "hostIPs", "addresses"])
def test_addresses_are_replaced(field: str) -> None:
    """If they were merged by IP, the old address would be kept, and the apiserver would reject the pair."""
    fields = {field: [{"ip": "2.2.2.2"}]}
    patch = status_patch(pod(status={field: [{"ip": "1.1.1.1"}]}), fields, {})
    assert patch == {field: [{"$patch": "replace"}, {"ip": "2.2.2.2"}]}
    assert status_patch(pod(status={}), fields, {}) == fields


def test_container_statuses_are_sent_as_a_whole() -> None:
    """The list is atomic in the API, so a directive in it would be parsed as a container."""
    old, new = [{"name": "main", "ready": False}], [{"name": "main", "ready": True}]
    patch = status_patch(pod(status={"containerStatuses": old}), {"containerStatuses": new}, {})
    assert patch == {"containerStatuses": new}


def test_maps_are_replaced() -> None:
    """A resource that is no longer allocated must be removed."""
    patch = status_patch(
        pod(status={"allocatedResources": {"cpu": "1", "memory": "1Gi"}}), {"allocatedResources": {"cpu": "2"}}, {}
    )
    assert patch == {"allocatedResources": {"cpu": "2", "$patch": "replace"}}


def test_a_new_condition_is_sent_unchanged() -> None:
    """There are no old fields to remove."""
    ready = {"type": "Ready", "status": "True"}
    assert status_patch(pod(status={}), {}, {"Ready": ready}) == {"conditions": [ready]}


def test_a_changed_condition_sends_null_for_its_old_fields() -> None:
    """A merge keeps fields that are not named, so a stale reason must be null."""
    old = stored_condition("Ready", "False", reason="ContainersNotReady", message="m")
    new = {"type": "Ready", "status": "True", "lastTransitionTime": EARLIER}
    patch = status_patch(pod(status={"conditions": [old]}), {}, {"Ready": new})
    assert patch == {"conditions": [{**new, "reason": None, "message": None}]}


def test_an_unwanted_condition_is_deleted_by_type() -> None:
    """Nothing is sent if the pod does not have the condition."""
    upper = pod(status={"conditions": [stored_condition("Ready")]})
    assert status_patch(upper, {}, {"Ready": None}) == {"conditions": [{"type": "Ready", "$patch": "delete"}]}
    assert status_patch(upper, {}, {"Other": None}) == {}


def test_an_observed_generation_is_not_cleared() -> None:
    """The apiserver keeps the field if it is cleared, so clearing it would be repeated indefinitely."""
    upper = pod(status={"conditions": [stored_condition("Ready", observedGeneration=3)]})
    same = {"type": "Ready", "status": "True", "lastTransitionTime": EARLIER}
    assert status_patch(upper, {}, {"Ready": same}) == {}
    assert status_patch(upper, {}, {"Ready": {**same, "observedGeneration": 4}}) == {
        "conditions": [{**same, "observedGeneration": 4}]
    }


VALUES = st.sampled_from(["", "a", "b"])
CONDITION = st.fixed_dictionaries(
    {"status": st.sampled_from(["True", "False"])},
    optional={
        "reason": st.sampled_from(["R1", "R2"]),
        "message": st.just("m"),
        "observedGeneration": st.integers(1, 3),
    },
)
TYPES = st.sampled_from(["Ready", "Initialized", "ours/One"])
ADDRESSES = st.lists(st.sampled_from(["1.1.1.1", "2.2.2.2"]).map(lambda ip: {"ip": ip}), max_size=2, unique_by=str)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "phase": VALUES,
        "podIPs": ADDRESSES,
        "allocatedResources": st.dictionaries(st.sampled_from(["cpu", "memory"]), VALUES, max_size=2),
        "containerStatuses": st.lists(st.just({"name": "main"}), max_size=1),
    },
)


def typed(found: dict[str, dict | None]) -> dict[str, dict | None]:
    """Add the type to each condition."""
    return {kind: one and {"type": kind, **one} for kind, one in found.items()}


@given(
    seen=FIELDS,
    present=st.dictionaries(TYPES, CONDITION).map(typed),
    fields=FIELDS,
    wanted=st.dictionaries(TYPES, st.none() | CONDITION).map(typed),
)
def test_applying_the_patch_yields_the_desired_status(seen: dict, present: dict, fields: dict, wanted: dict) -> None:
    """After the merge named fields and types are as desired, others are kept, and a second patch is empty."""
    upper = pod(status={**seen, "conditions": list(present.values())})
    patch = status_patch(upper, fields, wanted)
    after = pod(status=merged(upper["status"], patch))
    assert status_patch(after, fields, wanted) == {}
    assert {key: after["status"].get(key) or None for key in fields} == {key: fields[key] or None for key in fields}
    found = conditions_of(after)
    for kind in set(present) | set(wanted):
        stays = {key: present[kind][key] for key in ("observedGeneration",) if key in present.get(kind, {})}
        expected = wanted.get(kind, present.get(kind)) if kind in wanted else present[kind]
        assert found.get(kind) == (expected and stays | expected)
