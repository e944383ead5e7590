"""Tolerations above (an engine that is down costs no pods) and below (real nodes fail)."""

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
    """Make a bound pod with these tolerations."""
    return pod({"tolerations": tolerations})


@pytest.mark.parametrize("present", [None, []])
def test_a_pod_without_tolerations_gets_the_unlimited_ones(present: list | None) -> None:
    """Both taints of a lapsed node are tolerated for ever."""
    assert tolerations_for_upper(bound(present)) == UNLIMITED


def test_the_limits_that_admission_set_are_taken_off() -> None:
    """300 s of admission become unlimited, in place: nothing is added beside them."""
    assert tolerations_for_upper(bound(DEFAULTS)) == UNLIMITED


def test_other_tolerations_stay_as_and_where_they_are() -> None:
    """The API refuses a bound pod's toleration to go or to change in anything but seconds."""
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
def test_a_pod_that_tolerates_a_lapsed_node_needs_nothing(present: list) -> None:
    """No write where an unlimited toleration matches first already."""
    assert tolerations_for_upper(bound(present)) is None


def test_a_limit_for_every_taint_is_not_lifted_but_overtaken() -> None:
    """A keyless toleration with seconds is about other taints too, so it keeps them; unlimited ones come before it."""
    everything = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    assert tolerations_for_upper(bound([everything])) == [*UNLIMITED, everything]


def test_a_toleration_of_another_effect_does_not_count() -> None:
    """not-ready:NoSchedule says nothing about eviction."""
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
def test_the_result_holds_what_it_promises(present: list) -> None:
    """Asked again it needs nothing; the first match of each taint is unlimited; nothing that was there is lost."""
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
def test_matching_follows_kubernetes(toleration: dict, holds: bool) -> None:  # noqa: FBT001 - a table's column
    """Key, operator, value and effect decide as in the scheduler."""
    assert tolerates(toleration, PROVIDER) is holds


def test_a_taint_without_value_is_matched_by_a_toleration_without_value() -> None:
    """Absent and empty values are the same."""
    assert tolerates({"key": "a"}, {"key": "a", "effect": "NoSchedule"})
    assert tolerates({"key": "a", "value": None}, {"key": "a", "value": "", "effect": "NoSchedule"})


def test_below_the_virtual_nodes_taints_are_not_tolerated() -> None:
    """Only tolerations by key go; one that tolerates everything is the user's word about lower nodes too."""
    everything = {"operator": "Exists"}
    own = {"key": PROVIDER["key"], "operator": "Exists"}
    assert for_lower([own, everything], (PROVIDER,)) == [everything]


def test_below_a_lapsed_node_is_not_tolerated_for_ever() -> None:
    """The unlimited ones stay above, so that admission below sets its limits; a limit of the user's goes down."""
    short = {**UNLIMITED[0], "tolerationSeconds": 30}
    scheduling = {"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}
    assert for_lower([*UNLIMITED, short, scheduling], ()) == [short, scheduling]


@pytest.mark.parametrize("field", ["key", "operator", "value", "effect"])
def test_tolerations_differ_by_everything_but_seconds(field: str) -> None:
    """Two of one subject are the same toleration, for another time."""
    one = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 1}
    assert subject(one) == subject({**one, "tolerationSeconds": 2})
    assert subject(one) != subject({**one, field: "other"})
    assert subject({**one, field: ""}) == subject({name: value for name, value in one.items() if name != field})
