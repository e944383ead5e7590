"""Tests of tolerations in the upper cluster, where a stopped engine must cost no pods, and in the lower cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import pod

from tensile.objects import tolerates
from tensile.reconcile.pods.scheduling import NOT_READY, UNREACHABLE, for_lower, subject, tolerations_for_upper

UNLIMITED = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in (NOT_READY, UNREACHABLE)]
DEFAULTS = [{**one, "tolerationSeconds": 300} for one in UNLIMITED]
PROVIDER = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}


def bound(tolerations: list | None) -> dict:
    """Return a bound pod with these tolerations."""
    return pod({"tolerations": tolerations})


@pytest.mark.parametrize("present", [None, []])
def test_a_pod_without_tolerations_gets_the_unlimited_ones(present: list | None) -> None:
    """Both taints of a node with an expired lease are tolerated indefinitely."""
    assert tolerations_for_upper(bound(present)) == UNLIMITED


def test_the_limits_that_admission_set_are_removed() -> None:
    """The 300 seconds of admission become unlimited in the same toleration, and no other toleration is added."""
    assert tolerations_for_upper(bound(DEFAULTS)) == UNLIMITED


def test_other_tolerations_keep_their_place_and_value() -> None:
    """For a bound pod the API allows no removal of a toleration, and only changes of tolerationSeconds."""
    own = [
        {"key": "gpu", "operator": "Exists"},
        {"key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": 9},
    ]
    assert tolerations_for_upper(bound([own[0], *DEFAULTS, own[1]])) == [own[0], *UNLIMITED, own[1]]


@pytest.mark.parametrize(
    "present",
    [
        UNLIMITED,
        [{"operator": "Exists"}],
        [{"operator": "Exists", "effect": "NoExecute"}],
        [{"key": NOT_READY, "operator": "Exists"}, {"key": UNREACHABLE, "operator": "Exists"}],
        [{"operator": "Exists"}, *UNLIMITED],
    ],
)
def test_a_pod_with_unlimited_tolerations_needs_no_change(present: list) -> None:
    """No patch is sent if the first toleration that matches each taint is unlimited."""
    assert tolerations_for_upper(bound(present)) is None


def test_a_limited_toleration_for_every_taint_is_preceded_by_unlimited_ones() -> None:
    """It also covers other taints, so it keeps its seconds."""
    everything = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    assert tolerations_for_upper(bound([everything])) == [*UNLIMITED, everything]


def test_a_toleration_of_another_effect_does_not_count() -> None:
    """One for not-ready:NoSchedule does not affect eviction."""
    scheduling = {"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}
    assert tolerations_for_upper(bound([scheduling, UNLIMITED[1]])) == [scheduling, *reversed(UNLIMITED)]


TOLERATIONS = st.lists(
    st.fixed_dictionaries(
        {"operator": st.sampled_from(["Exists", "Equal"])},
        optional={
            "key": st.sampled_from([NOT_READY, UNREACHABLE, "gpu"]),
            "effect": st.sampled_from(["NoExecute", "NoSchedule"]),
            "value": st.sampled_from(["", "x"]),
            "tolerationSeconds": st.integers(0, 600),
        },
    ),
    max_size=5,
)


@given(TOLERATIONS)
def test_the_resulting_tolerations_are_complete(present: list) -> None:
    """They need no further change, the first match of each taint is unlimited, and no toleration is lost."""
    wanted = tolerations_for_upper(bound(present))
    after = present if wanted is None else wanted
    assert tolerations_for_upper(bound(after)) is None
    for key in (NOT_READY, UNREACHABLE):
        first = next(one for one in after if tolerates(one, {"key": key, "effect": "NoExecute"}))
        assert "tolerationSeconds" not in first
    for old in present:
        assert any({**old, "tolerationSeconds": 0} == {**new, "tolerationSeconds": 0} for new in after)


@pytest.mark.parametrize(
    ("toleration", "holds"),
    [
        ({"key": PROVIDER["key"], "operator": "Exists"}, True),
        ({"key": PROVIDER["key"], "operator": "Equal", "value": "k8s"}, True),
        ({"key": PROVIDER["key"], "value": "k8s", "effect": "NoSchedule"}, True),
        ({"operator": "Exists"}, True),
        ({"key": PROVIDER["key"], "value": "other"}, False),
        ({"key": PROVIDER["key"]}, False),
        ({"key": PROVIDER["key"], "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": PROVIDER["key"], "operator": "Gt", "value": "k8s"}, False),
        ({"key": "gpu", "operator": "Exists"}, False),
    ],
)
def test_matching_of_tolerations_follows_kubernetes(toleration: dict, holds: bool) -> None:  # noqa: FBT001 - a table's column
    """Key, operator, value and effect decide as in the scheduler."""
    assert tolerates(toleration, PROVIDER) is holds


def test_a_taint_without_a_value_is_matched_by_a_toleration_without_a_value() -> None:
    """An absent value and an empty one are equal."""
    assert tolerates({"key": "a"}, {"key": "a", "effect": "NoSchedule"})
    assert tolerates({"key": "a", "value": None}, {"key": "a", "value": "", "effect": "NoSchedule"})


def test_lower_pods_do_not_tolerate_the_virtual_nodes_taints() -> None:
    """Only tolerations by key are removed, because one for every taint also covers lower nodes."""
    everything = {"operator": "Exists"}
    own = {"key": PROVIDER["key"], "operator": "Exists"}
    assert for_lower([own, everything], (PROVIDER,)) == [everything]


def test_lower_pods_do_not_tolerate_an_unreachable_node_indefinitely() -> None:
    """The unlimited tolerations are removed, so that the lower cluster's admission sets its limits.

    A limit of the user is kept.
    """
    short = {**UNLIMITED[0], "tolerationSeconds": 30}
    scheduling = {"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}
    assert for_lower([*UNLIMITED, short, scheduling], ()) == [short, scheduling]


@pytest.mark.parametrize("field", ["key", "operator", "value", "effect"])
def test_all_fields_except_the_seconds_identify_a_toleration(field: str) -> None:
    """Two tolerations with the same subject are the same one with another limit."""
    one = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 1}
    assert subject(one) == subject({**one, "tolerationSeconds": 2})
    assert subject(one) != subject({**one, field: "other"})
    assert subject({**one, field: ""}) == subject({name: value for name, value in one.items() if name != field})
