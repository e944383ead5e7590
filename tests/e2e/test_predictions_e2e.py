"""Tests of the plans of pod moves against what then happens, with a few of the scenes of `make behaviour`."""

from collections.abc import Mapping

import pytest

from bench.conformance.predictions.__main__ import scenario
from bench.conformance.predictions.cases import CASES
from bench.conformance.predictions.comparison import (
    NOWHERE,
    ObservedPod,
    PredictedMove,
    deadlocks,
    differences,
    goes_together,
    of_drain,
    of_plan,
)
from bench.conformance.predictions.setup import THREE, A, B, C
from tensile.sandbox.sandbox import Sandbox

PLAYED = ("partial-fit", "two-owners", "limit", "drained-blindly")
WEB = "ReplicaSet web"
BEFORE = {"web-1/u1": ObservedPod(WEB, A, is_ready=False), "web-2/u2": ObservedPod(WEB, A, is_ready=False)}
OWNERS = {name.partition("/")[0]: one for name, one in BEFORE.items()}
SAID = {"web-1": PredictedMove(WEB, A, frozenset({B, C}))}
STAYED = {"web-2/u2": BEFORE["web-2/u2"]}


@pytest.mark.real
async def test_predictions_of_plans_come_true_on_real_clusters(tmp_path_factory: pytest.TempPathFactory) -> None:
    """They predict which pods leave, where to, and where the upper scheduler may fail; on three real lowers."""
    with Sandbox.start(tmp_path_factory.mktemp("predicted") / "s", THREE) as sandbox:
        found = await scenario(sandbox, PLAYED)
    assert found["broken"] == []
    assert found["equal"] == found["cases"] == len(PLAYED)
    assert len(found["found"]["limit"]["happened"]["left"]) == CASES["limit"].moves == 2


def new_pod(node: str, *, is_ready: bool = True, owner: str = WEB) -> dict[str, ObservedPod]:
    """Return the observation of a new pod on a node."""
    return {"web-3/u3": ObservedPod(owner, node, is_ready=is_ready)}


@pytest.mark.parametrize("node", [B, C])
def test_a_new_pod_on_any_predicted_node_is_no_difference(node: str) -> None:
    """The plan does not predict which of these nodes it will be."""
    assert differences(SAID, BEFORE, {**STAYED, **new_pod(node)}) == []


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (BEFORE, "web-1 was said to leave, and stayed"),
        (new_pod(B), "web-2 left lower-a, which was not said"),
        ({**STAYED, **new_pod(A)}, "went to ['lower-a'], and were said to go to ['lower-b or lower-c']"),
        ({**STAYED, **new_pod(NOWHERE, is_ready=False)}, "0 new pods run, and 1 were said to have room"),
        ({**STAYED, **new_pod(B, owner="Job other")}, "the new pods of Job other went to ['lower-b']"),
        (STAYED, "the new pods of ReplicaSet web went to []"),
    ],
)
def test_every_other_outcome_is_a_difference(after: Mapping[str, ObservedPod], message: str) -> None:
    """The message names the pod or its owner."""
    assert message in "; ".join(differences(SAID, BEFORE, after))


def test_a_pod_that_leaves_another_node_than_predicted_is_a_difference() -> None:
    """A plan predicts the source of a move too."""
    predicted = {"web-1": SAID["web-1"]._replace(source=B)}
    found = differences(predicted, BEFORE, {**STAYED, **new_pod(C)})
    assert found == ["web-1 was said to leave lower-b, and left lower-a"]


def test_a_new_pod_with_the_same_name_and_another_uid_counts_as_moved() -> None:
    """The pods of a StatefulSet keep their names."""
    after = {"web-1/u9": ObservedPod(WEB, C, is_ready=True), **STAYED}
    assert differences(SAID, BEFORE, after) == []


def test_a_new_pod_that_is_not_ready_is_a_difference_unless_the_comparison_is_loose() -> None:
    """A drain cannot predict more for a node whose free resources are fragmented."""
    after = {**STAYED, **new_pod(C, is_ready=False)}
    assert differences(SAID, BEFORE, after) == ["0 new pods run, and 1 were said to have room"]
    assert differences(SAID, BEFORE, after, loose=True) == []


@pytest.mark.parametrize(
    ("nodes", "sets", "fits"),
    [
        ([B, C], [{B, C}, {C}], True),
        ([C, B], [{C}, {B, C}], True),
        ([B, B], [{B, C}, {C}], False),
        ([B], [{B}, {C}], False),
        ([], [], True),
    ],
)
def test_new_pods_match_if_each_can_be_assigned_to_another_predicted_move(
    nodes: list[str], sets: list[set[str]], *, fits: bool
) -> None:
    """Any assignment is sufficient, because it is unknown which new pod replaces which old one."""
    assert goes_together(nodes, map(frozenset, sets)) is fits


def test_pods_that_fit_in_no_other_lower_are_parsed_from_the_plans_problems() -> None:
    """Only the pods of the given namespace count, and other problems in the same sentence are ignored."""
    message = (
        "x/web-1: it fits in no other lower cluster: b: full; x/web-2: no controller; y/web-3: it fits in no other"
    )
    problem = {"rule": "descheduler", "message": message}
    assert deadlocks({"problems": [problem, {**problem, "rule": "pod"}]}, "x") == {"web-1"}


def test_moves_are_parsed_from_plans_and_drains() -> None:
    """Only pods of the case that leave are included."""
    change = {"name": "web-1", "move": {"from": A, "to": [C, B], "node": "c-1"}}
    assert of_plan({"changes": [change, {"name": "web-2"}, {**change, "name": "strange"}]}, OWNERS) == SAID
    pod = {"name": "web-1", "leaves": True, "target": "", "others": [C], "full": [B]}
    drain = {"lower": A, "pods": [pod, {**pod, "name": "web-2", "leaves": False}]}
    assert of_drain({"drains": [drain]}, OWNERS) == {
        "web-1": PredictedMove(WEB, A, frozenset({NOWHERE, B, C}), is_placed=False)
    }
