"""Sequences at random on clusters in memory, in short: `python -m bench.model.sequences` plays twenty thousand."""

import re
from collections.abc import Callable

import pytest

from bench.model.sequences.actions import RANGE, SORTS, Action, read, thought_up
from bench.model.sequences.model import LOWERS, SPACE, Model
from bench.model.sequences.playing import in_no_time, shrunk, staged, wrong
from bench.model.sequences.stage import Stage
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
"""A pod that runs in lower-b with all that a pod can depend on, and a stranger's pod in lower-a."""
_A, _B = LOWERS
Spoil = Callable[[Stage, Model], object]


@pytest.mark.usefixtures("rarely_collected")
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_everything_is_right_in_the_end(part: int) -> None:
    """Nothing forbidden was done meanwhile, and nothing is written any more."""
    for seed in range(1 + part, 1 + SEQUENCES, PARTS):
        assert wrong(thought_up(seed)) == [], seed


def test_a_sequence_is_its_seeds() -> None:
    """It can be played again, as a whole or written out; every sort of action comes up."""
    every = [thought_up(seed) for seed in range(200)]
    assert every == [thought_up(seed) for seed in range(200)]
    assert {action.sort for actions in every for action in actions} == set(SORTS)
    assert all(10 <= len(actions) <= 30 for actions in every)
    assert all(0 <= action.number < RANGE for actions in every for action in actions)
    assert read(map(str, every[0])) == every[0]


def test_a_sequence_is_cut_down_to_what_it_takes() -> None:
    """However far apart that is."""
    actions = [Action("wait", number) for number in range(23)]
    assert shrunk(actions, lambda left: {Action("wait", 3), Action("wait", 17)} <= set(left)) == [
        actions[3],
        actions[17],
    ]
    assert shrunk(actions, lambda _left: True) == []


def ref(cluster: str, kind: Kind, name: str) -> Ref:
    """Name an object of the stage's namespace."""
    return Ref(cluster, kind, SPACE, name)


def lacks(cluster: str, kind: Kind, name: str) -> Spoil:
    """Remove an object."""
    return lambda stage, _model: stage.clusters[cluster].vanish(ref(cluster, kind, name))


def has(cluster: str, kind: Kind, name: str, **fields: object) -> Spoil:
    """Change fields of an object."""
    return lambda stage, _model: stage.clusters[cluster].alter(ref(cluster, kind, name), lambda one: one.update(fields))


def spoiled(spoil: Spoil) -> list[str]:
    """Let everything be right, end the engine, spoil something, and ask the model."""

    async def run() -> list[str]:
        """Do so."""
        stage, model, play = staged()
        await stage.start()
        for action in EVERYTHING:
            await play.carry_out(action)
        await stage.calm()
        assert model.wrong() == []
        await stage.crash()
        spoil(stage, model)
        return model.wrong()

    return in_no_time(run)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lacks(_B, POD, "p0"), "p0 is not below, Running above"),
        (lacks(UPPER, POD, "p0"), "p0 runs in lower-b for nobody"),
        (has(UPPER, POD, "p0", status={"phase": "Pending"}), "p0 is Pending above and Running below"),
        (has(_B, CONFIG_MAP, "m0", data={"k": "1"}), "ConfigMap m0: data is {'k': '1'} and not {'k': '0'}"),
        (lacks(_B, CONFIG_MAP, "m0"), "ConfigMap m0 is not in lower-b as of the one above"),
        (lacks(_B, SECRET, "s0"), "Secret s0 is not in lower-b as of the one above"),
        (lacks(_B, SERVICE_ACCOUNT, "a0"), "ServiceAccount a0 is not in lower-b as of the one above"),
        (lacks(_B, SERVICE, "v0"), "the Service is not in lower-b"),
        (lacks(UPPER, ENDPOINT_SLICE, "v0-1"), "the slice is there in lower-b"),
        (lacks(UPPER, CLAIM, "c0"), "claim c0 is left for nobody"),
        (lambda stage, _: stage.clusters[UPPER].vanish(Ref(UPPER, NODE, "", _A)), "there is no node lower-a"),
        (has(_A, POD, "p1", status={"phase": "Failed"}), "lower-a: Pod shop/p1 is a stranger's and was touched"),
    ],
)
def test_the_model_sees_what_is_wrong(spoil: Spoil, words: str) -> None:
    """And nothing else."""
    assert spoiled(spoil) == [words]


def looked(look: Spoil) -> list[str]:
    """Let everything be right, and then show the model a write, and return what it says of that."""
    return [re.sub(r"^.*? shop/\S+: ", "", words) for words in spoiled(look)]


def uid_of(stage: Stage, about: Ref) -> str:
    """Return an object's UID."""
    found = stage.find(about)
    assert found is not None
    return uid(found)


@pytest.mark.parametrize(
    ("verb", "cluster", "kind", "name", "words"),
    [
        ("delete", _B, POD, "p0", ["its upper pod lives"]),
        ("delete", UPPER, POD, "p0", ["nobody deleted it", "it still runs below"]),
        ("delete", _B, CLAIM, "c0", ["there is data in it"]),
        ("delete", _A, POD, "p1", ["is a stranger's"]),
        ("delete", _B, CONFIG_MAP, "m0", []),
    ],
)
def test_the_model_sees_what_must_not_be_deleted(
    verb: str, cluster: str, kind: Kind, name: str, words: list[str]
) -> None:
    """Before it is: what comes after may hide it."""
    about = ref(cluster, kind, name)
    assert looked(lambda stage, model: model.look(verb, about, uid_of(stage, about))) == words


def test_the_model_sees_what_must_not_be_written() -> None:
    """A patch without a fence, a status that no kubelet said, and a second run."""
    pod = ref(UPPER, POD, "p0")
    assert looked(lambda _stage, model: model.look("patch", pod, {"metadata": {}})) == ["no fence"]

    def say(stage: Stage, model: Model) -> None:
        """Report the pod as failed, then as running."""
        for phase in ("Failed", "Running"):
            body = {"metadata": {"uid": uid_of(stage, pod)}, "status": {"phase": phase}}
            model.look("patch status", pod, body)

    assert looked(say) == ["is Failed, which no kubelet said"]

    def make(stage: Stage, model: Model) -> None:
        """Make the lower pod once more: where it stands, which is refused, and where it does not."""
        notes = {"tensile-kube.io/upper-uid": uid_of(stage, pod)}
        for lower in LOWERS:
            model.look("create", pod._replace(cluster=lower), {"metadata": {"name": "p0", "annotations": notes}})

    assert looked(make) == ["runs a second time: Running above"]


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("end", ["kill:0", "evict:0"])
def test_an_end_is_not_taken_back_by_what_was_under_way(end: str, steps: int) -> None:
    """A pod that others end while a write takes its time that it runs is called lost, and stays so."""
    assert wrong(read(f"pod:3 wait:3 fault:9 run:0 steps:{steps} {end} wait:3".split())) == []
