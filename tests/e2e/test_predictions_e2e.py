"""What plans say of pods that will move, against what then happens: a few of the scenes that `make behaviour` plays."""

from collections.abc import Mapping

import pytest

from bench.conformance.predictions.__main__ import scenario
from bench.conformance.predictions.cases import CASES
from bench.conformance.predictions.comparing import (
    NOWHERE,
    ObservedPod,
    PredictedMove,
    deadlocks,
    differences,
    goes_together,
    of_drain,
    of_plan,
)
from bench.conformance.predictions.stage import THREE, A, B, C
from tensile.sandbox.sandbox import Sandbox

PLAYED = ("partial-fit", "two-owners", "limit", "drained-blindly")
WEB = "ReplicaSet web"
BEFORE = {"web-1/u1": ObservedPod(WEB, A, is_ready=False), "web-2/u2": ObservedPod(WEB, A, is_ready=False)}
OWNERS = {name.partition("/")[0]: one for name, one in BEFORE.items()}
SAID = {"web-1": PredictedMove(WEB, A, frozenset({B, C}))}
STAYED = {"web-2/u2": BEFORE["web-2/u2"]}


@pytest.mark.real
async def test_plans_come_true(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Who leaves and who stays, where to, and where the upper scheduler may go wrong; on three real lowers."""
    with Sandbox.start(tmp_path_factory.mktemp("predicted") / "s", THREE) as sandbox:
        found = await scenario(sandbox, PLAYED)
    assert found["broken"] == []
    assert found["equal"] == found["cases"] == len(PLAYED)
    assert len(found["found"]["limit"]["happened"]["left"]) == CASES["limit"].moves == 2


def come(node: str, *, is_ready: bool = True, owner: str = WEB) -> dict[str, ObservedPod]:
    """Bind a pod to a node."""
    return {"web-3/u3": ObservedPod(owner, node, is_ready=is_ready)}


@pytest.mark.parametrize("node", [B, C])
def test_any_node_that_was_named_will_do(node: str) -> None:
    """Which it is, is not the plan's to say."""
    assert differences(SAID, BEFORE, {**STAYED, **come(node)}) == []


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (BEFORE, "web-1 was said to leave, and stayed"),
        (come(B), "web-2 left lower-a, which was not said"),
        ({**STAYED, **come(A)}, "went to ['lower-a'], and were said to go to ['lower-b or lower-c']"),
        ({**STAYED, **come(NOWHERE, is_ready=False)}, "0 new pods run, and 1 were said to have room"),
        ({**STAYED, **come(B, owner="Job other")}, "the new pods of Job other went to ['lower-b']"),
        (STAYED, "the new pods of ReplicaSet web went to []"),
    ],
)
def test_whatever_else_happens_is_told(after: Mapping[str, ObservedPod], words: str) -> None:
    """By the pod or its owner."""
    assert words in "; ".join(differences(SAID, BEFORE, after))


def test_one_that_leaves_another_node_than_was_said_is_told() -> None:
    """A plan is about where from as well."""
    said = {"web-1": SAID["web-1"]._replace(source=B)}
    found = differences(said, BEFORE, {**STAYED, **come(C)})
    assert found == ["web-1 was said to leave lower-b, and left lower-a"]


def test_a_pod_that_keeps_its_name_is_another_all_the_same() -> None:
    """As those of a StatefulSet do."""
    after = {"web-1/u9": ObservedPod(WEB, C, is_ready=True), **STAYED}
    assert differences(SAID, BEFORE, after) == []


def test_one_may_wait_only_where_that_was_said_to_happen() -> None:
    """A drain cannot say more of a node whose room is in fragments."""
    after = {**STAYED, **come(C, is_ready=False)}
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
def test_each_new_pod_stands_for_one_old_one(nodes: list[str], sets: list[set[str]], *, fits: bool) -> None:
    """Nobody can say for which, so any way will do that goes on without a rest."""
    assert goes_together(nodes, map(frozenset, sets)) is fits


def test_who_fits_nowhere_is_read_out_of_the_plan() -> None:
    """Of the namespace, whatever else the sentence tells of."""
    message = (
        "x/web-1: it fits in no other lower cluster: b: full; x/web-2: no controller; y/web-3: it fits in no other"
    )
    problem = {"rule": "descheduler", "message": message}
    assert deadlocks({"problems": [problem, {**problem, "rule": "pod"}]}, "x") == {"web-1"}


def test_both_documents_are_read() -> None:
    """Of pods of the case, and only what leaves."""
    change = {"name": "web-1", "move": {"from": A, "to": [C, B], "node": "c-1"}}
    assert of_plan({"changes": [change, {"name": "web-2"}, {**change, "name": "strange"}]}, OWNERS) == SAID
    pod = {"name": "web-1", "leaves": True, "target": "", "others": [C], "full": [B]}
    drain = {"lower": A, "pods": [pod, {**pod, "name": "web-2", "leaves": False}]}
    assert of_drain({"drains": [drain]}, OWNERS) == {
        "web-1": PredictedMove(WEB, A, frozenset({NOWHERE, B, C}), is_placed=False)
    }
