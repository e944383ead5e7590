"""Lower pods that lost their owner become the counterparts of the upper pods that they are for, and no others do."""

from copy import deepcopy
from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    decided,
    home,
    marked,
    put,
    raised,
    referring,
    stored,
    token_volume,
    twin,
    upper_pod,
    world,
)

from tensile.kubelet.pods.orphans import PodOrphanRule, misfits, token_volumes
from tensile.kubelet.pods.orphans import key_of as orphans_key
from tensile.kubelet.pods.rule import PodRule, key_of
from tensile.names import OWNER, OWNER_NAME, UPPER_UID, VIRTUAL_POD, Owner, owner_of
from tensile.objects import POD, Manifest, Ref, uid
from tensile.reconcile.desired import EmitEvent, Patched
from tensile.reconcile.dryrun.patch import patched
from tensile.reconcile.plan import Step
from tensile.reconcile.pods.demand import pod_demand
from tensile.reconcile.world import World

KEY = key_of(A, "default", "web")
REF = Ref(A, POD, "default", "web")
SIBLING = owner_of(OWNER_HERE.upper, "second")
RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "ready": True}]}


def adopting(upper: Manifest, found: Manifest, mode: str = "adopt") -> World:
    """Make a world where a pod that is bound above finds a pod of its name below."""
    here = world(f"name: lower-a, onConflict: {mode}")
    raised(here)
    home(here)
    put(here.lowers[A].upper_pods, upper)
    put(here.lowers[A].foreign_pods, found)
    return here


def legacy(of: Manifest, **meta: Any) -> Manifest:
    """Make a lower pod as tensile-kube leaves it: named alike, and labelled."""
    pod = deepcopy(twin(of))
    pod["metadata"] = {
        "name": pod["metadata"]["name"],
        "namespace": "default",
        "uid": "theirs",
        "labels": {VIRTUAL_POD: "true"},
        "annotations": {"tripped-labels": "{}"},
        **meta,
    }
    return pod


def the_step(here: World) -> Step:
    """Return the one step for the pod."""
    (step,) = decided(PodRule(), KEY, here)[1].steps
    return step


def complaint(here: World) -> str:
    """Return what is said on the pod, which must be all that is done."""
    decision, found = decided(PodRule(), KEY, here)
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    assert [type(one) for one in decision.wanted] == [Patched, EmitEvent]
    assert {step.ref.cluster for step in found.steps} == {""}
    return found.problem.message


def test_a_pod_of_tensile_kube_becomes_ours() -> None:
    """By a write that holds only for the pod as it was seen: our marks, and its Namespace as its owner."""
    upper = upper_pod(labels={"app": "web"})
    found = legacy(upper)
    here = adopting(upper, found)
    step = the_step(here)
    assert (step.verb, step.ref, step.uid, step.in_plan) == ("patch", REF, "theirs", True)
    assert step.reason == "onConflict: adopt"
    assert step.patch is not None
    assert {"op": "replace", "path": "/metadata/resourceVersion", "value": "2"} in step.patch.body
    stored = {**found, "metadata": {**found["metadata"], "resourceVersion": "2"}}
    after = patched(stored, step.patch)["metadata"]
    wanted = twin(upper)["metadata"]
    assert after["labels"] == wanted["labels"]
    assert after["annotations"].items() >= {UPPER_UID: uid(upper), OWNER_NAME: "demo"}.items()
    assert after["ownerReferences"] == wanted["ownerReferences"]


def test_a_pod_of_another_topology_that_is_gone_becomes_ours() -> None:
    """It was made for this very upper pod, and runs what that asks for."""
    upper = upper_pod()
    here = adopting(upper, marked(legacy(upper), uid(upper), SIBLING))
    written = {one["path"]: one.get("value") for one in the_step(here).operations}
    assert written[f"/metadata/labels/{OWNER.replace('/', '~1')}"] == OWNER_HERE.mark
    assert written[f"/metadata/annotations/{OWNER_NAME.replace('/', '~1')}"] == "demo"


@pytest.mark.parametrize("owner", [SIBLING, OWNER_HERE], ids=["another topology's", "ours, by another hand"])
def test_the_marks_of_a_pod_that_runs_something_else_count_for_nothing(owner: Owner) -> None:
    """Whoever may create a pod there can write whose it is and the UID of the upper one."""
    upper = upper_pod()
    other = legacy(upper_pod(spec={"containers": [{"name": "main", "image": "app:2"}]}))
    found = marked(other, uid(upper), owner)
    found["metadata"].pop("managedFields")
    here = adopting(upper, found)
    assert "container main has a different image" in complaint(here)


def test_a_pod_that_ran_is_not_called_lost_while_it_may_be_adopted() -> None:
    """Neither before the lower pod is ours, nor where it is refused."""
    upper = upper_pod(status=RUNS)
    orphans = PodOrphanRule()
    assert orphans.decide(orphans_key(A), adopting(upper, legacy(upper))).wanted == ()
    theirs = adopting(upper, marked(legacy(upper), uid(upper), SIBLING))
    assert orphans.decide(orphans_key(A), theirs).wanted == ()
    stranger = adopting(upper, legacy(upper, labels={}, annotations={}))
    (wanted,) = orphans.decide(orphans_key(A), stranger).wanted
    assert wanted.ref == REF


def spec(**more: Any) -> Manifest:
    """Make a pod with one container and what a test is about."""
    main = {"name": "main", "image": "app:1", "command": ["run"], **more.pop("main", {})}
    return {"metadata": {}, "spec": {"restartPolicy": "Always", "containers": [main], **more}}


VARIABLE = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "password", "key": "key"}}}
WRITTEN_OUT = {"name": "PASSWORD", "value": "secret"}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (spec(), spec(nodeName="n1", nodeSelector={"a": "b"}, serviceAccountName="other", priority=3)),
        (spec(main={"env": [VARIABLE]}), spec(main={"env": [WRITTEN_OUT, {"name": "MORE", "value": "1"}]})),
        (spec(volumes=[token_volume("token")]), spec()),
        (spec(securityContext={}), spec(main={"args": [], "securityContext": {}})),
        (spec(), spec(main={"volumeMounts": [{"name": "token", "mountPath": "/t"}]}, volumes=[{"name": "token"}])),
        (
            spec(
                main={"volumeMounts": [{"name": "token", "mountPath": "/t"}]},
                volumes=[{"name": "token", "projected": {"sources": [{"secret": {"name": "upper-token-uid"}}]}}],
            ),
            spec(main={"volumeMounts": [{"name": "kube-api-access-2", "mountPath": "/t"}]}),
        ),
    ],
    ids=[
        "where it was put",
        "a variable written out",
        "a token's volume",
        "empty",
        "more than is wanted",
        "a token's mount",
    ],
)
def test_what_does_not_matter_is_no_misfit(wanted: Manifest, found: Manifest) -> None:
    """Constraints were met, accounts differ, and tensile-kube resolved what variables refer to."""
    assert list(misfits(wanted, found, frozenset({"token"}))) == []


def test_what_stands_in_the_place_of_a_token_is_known_by_the_upper_pod() -> None:
    """Whatever the topology makes of it; a volume that only has such a name is compared like any other."""
    own = {"name": "kube-api-access-own", "projected": {"sources": [{"secret": {"name": "s"}}]}}
    assert token_volumes(upper_pod(spec={"volumes": [token_volume(), own]})) == {"kube-api-access-x"}
    assert list(misfits(spec(volumes=[own]), spec())) == ["its volume kube-api-access-own is different"]


@pytest.mark.parametrize(
    ("wanted", "found", "words"),
    [
        (spec(), spec(main={"image": "app:2"}), "container main has a different image"),
        (spec(), spec(main={"command": ["other"]}), "container main has a different command"),
        (spec(main={"args": ["a"]}), spec(), "container main has a different args"),
        (spec(), spec(restartPolicy="Never"), "its restartPolicy is different"),
        (spec(), spec(hostNetwork=True), "its hostNetwork is different"),
        (spec(), spec(securityContext={"runAsUser": 0}), "its securityContext is different"),
        (spec(), spec(main={"securityContext": {"privileged": True}}),
         "container main has a different securityContext"),
        (spec(initContainers=[{"name": "first", "image": "i"}]), spec(), "its initContainers are different"),
        (spec(main={"env": [{"name": "A", "value": "1"}]}), spec(main={"env": [{"name": "A", "value": "2"}]}),
         "container main has a different value of A"),
        (spec(main={"env": [VARIABLE]}), spec(), "container main has a different value of PASSWORD"),
        (spec(volumes=[{"name": "data", "emptyDir": {}}]), spec(), "its volume data is different"),
        (spec(main={"volumeMounts": [{"name": "data", "mountPath": "/d"}]}), spec(),
         "container main does not mount data"),
        (spec(), {**spec(), "metadata": {"ownerReferences": [{"kind": "ReplicaSet", "name": "native"}]}},
         "it is owned by ReplicaSet native"),
    ],
)  # fmt: skip
def test_a_misfit_is_named(wanted: Manifest, found: Manifest, words: str) -> None:
    """So that a person knows what to change, or that it is another program."""
    assert list(misfits(wanted, found)) == [words]


def test_of_a_pod_that_may_be_adopted_the_digest_keeps_all() -> None:
    """Of any other only what it takes of its cluster, so that strangers stay cheap."""
    upper = upper_pod(spec=referring(secrets=["password"]))
    assert pod_demand(stored(legacy(upper), 2)).raw
    assert pod_demand(stored(upper, 2)).raw == b""
    facts = pod_demand(stored(marked(legacy(upper), "one", STRANGER), 2))
    assert (bool(facts.raw), facts.facts.mark, facts.facts.made_for) == (True, STRANGER.mark, "one")
