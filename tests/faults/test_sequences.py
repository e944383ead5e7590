"""Tests of random sequences on clusters in memory; `python -m bench.model.sequences` plays twenty thousand."""

import re
from collections.abc import Callable

import pytest

from bench.model.sequences.actions import RANGE, SORTS, Action, random_actions, read
from bench.model.sequences.model import LOWERS, SPACE, Model
from bench.model.sequences.runner import new_simulation, run_in_virtual_time, shrink, wrong
from bench.model.sequences.simulation import Simulation
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    NODE,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Ref,
    uid,
)

SEQUENCES = 1_500
PARTS = 10
EVERYTHING = read(["pod:90", "serve:0", "wait:3", "run:0", "stranger:8", "wait:3"])
"""A pod that runs in lower-b with all that a pod can depend on, and a foreign pod in lower-a."""
_A, _B = LOWERS
Spoil = Callable[[Simulation, Model], object]


@pytest.mark.usefixtures("rarely_collected")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_sequence_ends_in_the_correct_state(part: int) -> None:
    """No forbidden write occurs in between, and no more writes follow."""
    for seed in range(1 + part, 1 + SEQUENCES, PARTS):
        assert wrong(random_actions(seed)) == [], seed


def test_a_sequence_is_determined_by_its_seed() -> None:
    """It can be replayed by its seed or its text, and every type of action occurs."""
    every = [random_actions(seed) for seed in range(200)]
    assert every == [random_actions(seed) for seed in range(200)]
    assert {action.sort for actions in every for action in actions} == set(SORTS)
    assert all(10 <= len(actions) <= 30 for actions in every)
    assert all(0 <= action.number < RANGE for actions in every for action in actions)
    assert read(map(str, every[0])) == every[0]


def test_a_failing_sequence_is_shrunk_to_the_required_actions() -> None:
    """The required actions can be far apart."""
    actions = [Action("wait", number) for number in range(23)]
    assert shrink(actions, lambda left: {Action("wait", 3), Action("wait", 17)} <= set(left)) == [
        actions[3],
        actions[17],
    ]
    assert shrink(actions, lambda _left: True) == []


def ref(cluster: str, kind: Kind, name: str) -> Ref:
    """Return the ref of an object in the namespace of the stage."""
    return Ref(cluster, kind, SPACE, name)


def lacks(cluster: str, kind: Kind, name: str) -> Spoil:
    """Return an action that removes an object."""
    return lambda stage, _model: stage.clusters[cluster].vanish(ref(cluster, kind, name))


def has(cluster: str, kind: Kind, name: str, **fields: object) -> Spoil:
    """Return an action that changes fields of an object."""
    return lambda stage, _model: stage.clusters[cluster].alter(ref(cluster, kind, name), lambda one: one.update(fields))


def spoiled(spoil: Spoil) -> list[str]:
    """Reach the correct state, stop the engine, spoil something, and return what the model reports."""

    async def run() -> list[str]:
        """Run the scenario."""
        stage, model, play = new_simulation()
        await stage.start()
        for action in EVERYTHING:
            await play.run(action)
        await stage.wait_until_quiet()
        assert model.wrong() == []
        await stage.crash()
        spoil(stage, model)
        return model.wrong()

    return run_in_virtual_time(run)


@pytest.mark.parametrize(
    ("spoil", "violation"),
    [
        (lacks(_B, POD, "p0"), "p0 is not below, Running above"),
        (lacks(UPPER, POD, "p0"), "p0 runs in lower-b without an upper pod"),
        (has(UPPER, POD, "p0", status={"phase": "Pending"}), "p0 is Pending above and Running below"),
        (has(_B, CONFIG_MAP, "m0", data={"k": "1"}), "ConfigMap m0: data is {'k': '1'} and not {'k': '0'}"),
        (lacks(_B, CONFIG_MAP, "m0"), "ConfigMap m0 is not in lower-b as of the one above"),
        (lacks(_B, SECRET, "s0"), "Secret s0 is not in lower-b as of the one above"),
        (lacks(_B, SERVICE_ACCOUNT, "a0"), "ServiceAccount a0 is not in lower-b as of the one above"),
        (lacks(_B, SERVICE, "v0"), "the Service is not in lower-b"),
        (lacks(UPPER, ENDPOINT_SLICE, "v0-1"), "the slice is there in lower-b"),
        (lacks(UPPER, CLAIM, "c0"), "claim c0 is left without a user"),
        (lambda stage, _: stage.clusters[UPPER].vanish(Ref(UPPER, NODE, "", _A)), "there is no node lower-a"),
        (has(_A, POD, "p1", status={"phase": "Failed"}), "lower-a: Pod shop/p1 is a stranger's and was touched"),
    ],
)
def test_the_model_reports_each_wrong_state(spoil: Spoil, violation: str) -> None:
    """It reports nothing else."""
    assert spoiled(spoil) == [violation]


def looked(look: Spoil) -> list[str]:
    """Reach the correct state, pass a write to the model, and return what it reports about it."""
    return [re.sub(r"^.*? shop/\S+: ", "", violation) for violation in spoiled(look)]


def uid_of(stage: Simulation, about: Ref) -> str:
    """Return the UID of an object."""
    found = stage.find(about)
    assert found is not None
    return uid(found)


@pytest.mark.parametrize(
    ("verb", "cluster", "kind", "name", "violations"),
    [
        ("delete", _B, POD, "p0", ["its upper pod lives"]),
        ("delete", UPPER, POD, "p0", ["no user deleted it", "it still runs below"]),
        ("delete", _B, CLAIM, "c0", ["there is data in it"]),
        ("delete", _A, POD, "p1", ["is a stranger's"]),
        ("delete", _B, CONFIG_MAP, "m0", []),
    ],
)
def test_the_model_reports_a_forbidden_deletion(
    verb: str, cluster: str, kind: Kind, name: str, violations: list[str]
) -> None:
    """It checks before the deletion, because later changes may hide it."""
    about = ref(cluster, kind, name)
    assert looked(lambda stage, model: model.check_write(verb, about, uid_of(stage, about))) == violations


def test_the_model_reports_a_forbidden_write() -> None:
    """They are a patch without a precondition, a status that no kubelet reported, and a second run of a pod."""
    pod = ref(UPPER, POD, "p0")
    assert looked(lambda _stage, model: model.check_write("patch", pod, {"metadata": {}})) == ["no fence"]

    def say(stage: Simulation, model: Model) -> None:
        """Report the pod as failed, and then as running."""
        for phase in ("Failed", "Running"):
            body = {"metadata": {"uid": uid_of(stage, pod)}, "status": {"phase": phase}}
            model.check_write("patch status", pod, body)

    assert looked(say) == ["is Failed, which no kubelet said"]

    def make(stage: Simulation, model: Model) -> None:
        """Create the lower pod again: where it exists, which is refused, and where it does not."""
        notes = {"tensile-kube.io/upper-uid": uid_of(stage, pod)}
        for lower in LOWERS:
            model.check_write("create", pod._replace(cluster=lower), {"metadata": {"name": "p0", "annotations": notes}})

    assert looked(make) == ["runs a second time: Running above"]


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("end", ["kill:0", "evict:0"])
def test_the_end_of_a_pod_is_not_overwritten_by_a_delayed_write(end: str, steps: int) -> None:
    """A pod that another client ends, while the write of its Running status is delayed, stays ended."""
    assert wrong(read(f"pod:3 wait:3 fault:9 run:0 steps:{steps} {end} wait:3".split())) == []
