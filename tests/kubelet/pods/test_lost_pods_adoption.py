"""Tests of adoption: lower pods without an owner become those of matching upper pods, and no other pods do."""

from copy import deepcopy
from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    add_namespace,
    add_virtual_node,
    decision_and_plan,
    make_lower_pod,
    make_upper_pod,
    make_world,
    put,
    spec_with_references,
    stored_bytes,
    token_volume,
    with_owner_marks,
)

from tensile.kubelet.pods.lost_pods import LostPodRule, differences, token_volume_names
from tensile.kubelet.pods.lost_pods import key_of as orphans_key
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
    """Return a world in which a bound upper pod finds a lower pod of its name."""
    world = make_world(f"name: lower-a, onConflict: {mode}")
    add_virtual_node(world)
    add_namespace(world)
    put(world.lowers[A].upper_pods, upper)
    put(world.lowers[A].foreign_pods, found)
    return world


def legacy(of: Manifest, **meta: Any) -> Manifest:
    """Return a lower pod as tensile-kube creates it, with the same name and its label."""
    pod = deepcopy(make_lower_pod(of))
    pod["metadata"] = {
        "name": pod["metadata"]["name"],
        "namespace": "default",
        "uid": "theirs",
        "labels": {VIRTUAL_POD: "true"},
        "annotations": {"tripped-labels": "{}"},
        **meta,
    }
    return pod


def the_step(world: World) -> Step:
    """Return the only step for the pod."""
    (step,) = decision_and_plan(PodRule(), KEY, world)[1].steps
    return step


def complaint(world: World) -> str:
    """Return the message of the pod's problem, and require that nothing else is done."""
    decision, found = decision_and_plan(PodRule(), KEY, world)
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    assert [type(one) for one in decision.wanted] == [Patched, EmitEvent]
    assert {step.ref.cluster for step in found.steps} == {""}
    return found.problem.message


def test_a_pod_of_tensile_kube_is_adopted() -> None:
    """One patch with the resourceVersion as its precondition adds the marks and the Namespace as owner."""
    upper = make_upper_pod(labels={"app": "web"})
    found = legacy(upper)
    world = adopting(upper, found)
    step = the_step(world)
    assert (step.verb, step.ref, step.uid, step.in_plan) == ("patch", REF, "theirs", True)
    assert step.reason == "onConflict: adopt"
    assert step.patch is not None
    assert {"op": "replace", "path": "/metadata/resourceVersion", "value": "2"} in step.patch.body
    stored = {**found, "metadata": {**found["metadata"], "resourceVersion": "2"}}
    after = patched(stored, step.patch)["metadata"]
    wanted = make_lower_pod(upper)["metadata"]
    assert after["labels"] == wanted["labels"]
    assert after["annotations"].items() >= {UPPER_UID: uid(upper), OWNER_NAME: "demo"}.items()
    assert after["ownerReferences"] == wanted["ownerReferences"]


def test_a_pod_of_a_removed_topology_is_adopted() -> None:
    """It was created for the same upper pod and runs the same program."""
    upper = make_upper_pod()
    world = adopting(upper, with_owner_marks(legacy(upper), uid(upper), SIBLING))
    written = {one["path"]: one.get("value") for one in the_step(world).operations}
    assert written[f"/metadata/labels/{OWNER.replace('/', '~1')}"] == OWNER_HERE.mark
    assert written[f"/metadata/annotations/{OWNER_NAME.replace('/', '~1')}"] == "demo"


@pytest.mark.parametrize("owner", [SIBLING, OWNER_HERE], ids=["another topology's", "this topology's, forged"])
def test_a_pod_that_runs_another_program_is_not_adopted_whatever_its_marks_are(owner: Owner) -> None:
    """Anyone who may create a pod there can write an owner and an upper UID."""
    upper = make_upper_pod()
    other = legacy(make_upper_pod(spec={"containers": [{"name": "main", "image": "app:2"}]}))
    found = with_owner_marks(other, uid(upper), owner)
    found["metadata"].pop("managedFields")
    world = adopting(upper, found)
    assert "container main has a different image" in complaint(world)


def test_a_pod_that_ran_is_not_lost_while_a_lower_pod_may_be_adopted() -> None:
    """A lower pod that may never be adopted does not prevent the verification."""
    upper = make_upper_pod(status=RUNS)
    orphans = LostPodRule()
    assert orphans.decide(orphans_key(A), adopting(upper, legacy(upper))).wanted == ()
    theirs = adopting(upper, with_owner_marks(legacy(upper), uid(upper), SIBLING))
    assert orphans.decide(orphans_key(A), theirs).wanted == ()
    stranger = adopting(upper, legacy(upper, labels={}, annotations={}))
    (wanted,) = orphans.decide(orphans_key(A), stranger).wanted
    assert wanted.ref == REF


def spec(**more: Any) -> Manifest:
    """Return a pod with one container and the fields of a test."""
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
        "its placement",
        "a resolved variable",
        "a token's volume",
        "empty",
        "additional fields",
        "a token's mount",
    ],
)
def test_irrelevant_differences_do_not_prevent_adoption(wanted: Manifest, found: Manifest) -> None:
    """Constraints are already met, accounts may differ, and tensile-kube resolves references of variables."""
    assert list(differences(wanted, found, frozenset({"token"}))) == []


def test_token_volumes_are_recognized_by_the_upper_pod() -> None:
    """A volume that only has such a name is compared like any other."""
    own = {"name": "kube-api-access-own", "projected": {"sources": [{"secret": {"name": "s"}}]}}
    assert token_volume_names(make_upper_pod(spec={"volumes": [token_volume(), own]})) == {"kube-api-access-x"}
    assert list(differences(spec(volumes=[own]), spec())) == ["its volume kube-api-access-own is different"]


@pytest.mark.parametrize(
    ("wanted", "found", "message"),
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
def test_each_difference_is_named(wanted: Manifest, found: Manifest, message: str) -> None:
    """The user learns what to change, or that it is another program."""
    assert list(differences(wanted, found)) == [message]


def test_the_cache_keeps_complete_pods_only_if_they_may_be_adopted() -> None:
    """Of other pods only the requests are kept, to save memory."""
    upper = make_upper_pod(spec=spec_with_references(secrets=["password"]))
    assert pod_demand(stored_bytes(legacy(upper), 2)).raw
    assert pod_demand(stored_bytes(upper, 2)).raw == b""
    facts = pod_demand(stored_bytes(with_owner_marks(legacy(upper), "one", STRANGER), 2))
    assert (bool(facts.raw), facts.facts.mark, facts.facts.made_for) == (True, STRANGER.mark, "one")
