"""Accounts below: there before the pods that run as them, in step with those above, gone with the last pod."""

from collections.abc import Iterator
from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    account,
    decided,
    drop,
    home,
    lose,
    marked,
    names,
    put,
    raised,
    secret,
    twin,
    upper_pod,
    world,
)

from tensile.kube.store import Delta
from tensile.objects import SERVICE_ACCOUNT, Manifest, Ref
from tensile.reconcile.desired import Decision
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules import config, namespaces, service_accounts
from tensile.reconcile.rules.config import key_of as secret_key
from tensile.reconcile.rules.service_accounts import copied, digest, is_asked, key_of, missing, pulling, secrets_of
from tensile.reconcile.world import World

RULE = service_accounts.RULE
KEY = key_of(A, "default", "robot")
REF = Ref(A, SERVICE_ACCOUNT, "default", "robot")
ROBOT = (Reference("ServiceAccount", "robot", optional=False),)
RUNS = {"serviceAccountName": "robot"}
NONE = "serviceAccounts: {identity: none}\n"


def robot(**fields: Any) -> Manifest:
    """Make the account above."""
    return {**account(name="robot"), **fields}


def bound(more: str = "", **fields: Any) -> World:
    """Make a world where a pod of the robot is bound to lower-a."""
    here = world(more=more)
    raised(here)
    home(here)
    put(here.upper.more[SERVICE_ACCOUNT], robot(**fields))
    put(here.lowers[A].upper_pods, upper_pod(spec=RUNS))
    return here


def below(here: World, **fields: Any) -> Manifest:
    """Put the copy there as the engine makes it, with fields laid over it, and give it."""
    body = the_step(here).body
    assert body is not None
    made = marked({**body, **fields}, "ServiceAccount-robot", uid="below")
    put(here.lowers[A].more[SERVICE_ACCOUNT], made)
    return made


def planned(here: World) -> Plan:
    """Plan the robot's key."""
    return decided(RULE, KEY, here)[1]


def the_step(here: World) -> Step:
    """Return the one step of a plan that has no problem."""
    found = planned(here)
    assert found.problem is None
    (step,) = found.steps
    return step


def heard(here: World, cache: str, delta: Delta, lower: str = A) -> list[str]:
    """Return the names of the keys that a change concerns."""
    (route,) = (one for one in RULE.watches() if one.cache == cache)
    return list(names(route.keys(here, lower, delta)))


def test_an_account_that_a_pod_runs_as_is_made() -> None:
    """With its labels and notes and our marks; not with what lists the upper cluster's own Secrets."""
    meta = {"labels": {"team": "a"}, "annotations": {"role": "x", "kubernetes.io/enforce-mountable-secrets": "true"}}
    here = bound(metadata={**robot()["metadata"], **meta}, secrets=[{"name": "robot-token"}])
    step = the_step(here)
    assert (step.verb, step.ref, step.reason) == ("create", REF, "pods on node lower-a run as it")
    assert step.body == {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": "robot",
            "namespace": "default",
            "labels": {"team": "a", "tensile-kube.io/owner": OWNER_HERE.mark},
            "annotations": {
                "role": "x",
                "tensile-kube.io/owner-name": "demo",
                "tensile-kube.io/upper-uid": "ServiceAccount-robot",
            },
        },
        "automountServiceAccountToken": True,
    }


def test_what_is_in_step_needs_nothing() -> None:
    """A second look writes nothing."""
    here = bound(imagePullSecrets=[{"name": "pull"}], automountServiceAccountToken=False)
    below(here)
    assert planned(here) == Plan(())


@pytest.mark.parametrize("value", [True, False])
def test_whether_pods_get_tokens_unasked_follows(value: bool) -> None:  # noqa: FBT001 - a parameter
    """Said in full, since a missing word means yes."""
    here = bound(automountServiceAccountToken=value)
    made = below(here, automountServiceAccountToken=not value)
    assert [one["path"] for one in the_step(here).operations] == ["/automountServiceAccountToken"]
    del made["automountServiceAccountToken"]
    put(here.lowers[A].more[SERVICE_ACCOUNT], made)
    assert [one["value"] for one in the_step(here).operations] == [value]


def test_pull_secrets_follow_and_those_that_a_lower_adds_stay() -> None:
    """Some clusters add one of their own to each account; what is a Secret above is ours to take away."""
    here = bound(imagePullSecrets=[{"name": "pull"}])
    put(here.upper.secrets, secret("old"))
    below(here, imagePullSecrets=[{"name": "old"}, {"name": "robot-dockercfg"}])
    (operation,) = the_step(here).operations
    assert (operation["path"], operation["value"]) == (
        "/imagePullSecrets",
        [{"name": "pull"}, {"name": "robot-dockercfg"}],
    )


def test_an_account_that_was_made_anew_above_is_made_anew_below() -> None:
    """Tokens of the old one are not the new one's."""
    here = bound()
    below(here)
    put(here.upper.more[SERVICE_ACCOUNT], {**robot(), "metadata": {**robot()["metadata"], "uid": "another"}})
    step = the_step(here)
    assert (step.verb, step.uid) == ("delete", "below")
    assert copied(here, here.lowers[A], "default", "robot") is None


def test_an_account_that_is_not_ours_is_never_used() -> None:
    """It would lend its rights to the pod."""
    here = bound()
    for foreign in (robot(), marked(robot(), "ServiceAccount-robot", STRANGER)):
        put(here.lowers[A].more[SERVICE_ACCOUNT], foreign)
        found = planned(here)
        assert found.steps == ()
        assert found.problem is not None
        assert found.problem.reason == "NameConflict"
        assert missing(here, here.lowers[A], "default", ROBOT) == [KEY]


@pytest.mark.parametrize(
    "pod",
    [
        {"status": {"phase": "Succeeded"}},
        {"namespace": "kube-system"},
        {"spec": {"serviceAccountName": "default"}},
    ],
    ids=["ended", "excluded", "default"],
)
def test_what_no_mirrored_pod_runs_as_is_not_made(pod: dict[str, Any]) -> None:
    """Nothing leaves the upper cluster without need."""
    here = world()
    raised(here)
    namespace = pod.get("namespace", "default")
    home(here, namespace=namespace)
    put(here.upper.more[SERVICE_ACCOUNT], account(namespace, "robot"))
    put(here.lowers[A].upper_pods, upper_pod(**({"spec": RUNS} | pod)))
    assert decided(RULE, key_of(A, namespace, "robot"), here)[1] == Plan(())
    assert decided(RULE, key_of(B, namespace, "robot"), here)[1] == Plan(())


def test_it_goes_with_the_last_pod_of_either_side() -> None:
    """A pod below that nobody needs any more may still be ending."""
    here = bound()
    below(here)
    put(here.lowers[A].pods, twin_of_robot())
    drop(here.lowers[A].upper_pods, "web")
    assert planned(here) == Plan(())
    drop(here.lowers[A].pods, "web")
    step = the_step(here)
    assert (step.verb, step.uid, step.reason) == ("delete", "below", "no pod runs as it any more")


def twin_of_robot() -> Manifest:
    """Make the lower pod, which runs as the account."""
    made = twin(upper_pod(spec=RUNS))
    return {**made, "spec": {**made["spec"], "serviceAccountName": "robot"}}


def test_without_an_identity_no_account_is_made_and_pods_wait_for_none() -> None:
    """They run as `default`; one that runs as another from before keeps it, as it is."""
    here = bound(NONE)
    assert planned(here) == Plan(())
    assert missing(here, here.lowers[A], "default", ROBOT) == []
    put(here.lowers[A].more[SERVICE_ACCOUNT], marked(robot(), "ServiceAccount-robot", uid="below"))
    assert the_step(here).verb == "delete"
    put(here.lowers[A].pods, twin_of_robot())
    assert planned(here) == Plan(())


def test_a_pod_waits_for_the_account_that_is_above_now() -> None:
    """Not for `default`, which every namespace has."""
    here = bound()
    lower = here.lowers[A]
    assert missing(here, lower, "default", ROBOT) == [KEY]
    assert missing(here, lower, "default", (Reference("ServiceAccount", "default", optional=False),)) == []
    assert missing(here, lower, "default", (Reference("Secret", "robot", optional=False),)) == []
    below(here)
    assert missing(here, lower, "default", ROBOT) == []


def test_it_waits_for_its_namespace_and_its_node() -> None:
    """Pods of a node that is not ours run somewhere else."""
    here = bound()
    drop(here.lowers[A].namespaces, "default", "")
    assert decided(RULE, KEY, here)[0] == Decision(depends_on=(namespaces.key_of(A, "default"),))
    home(here)
    drop(here.upper.nodes, A, "")
    assert planned(here) == Plan(())


@pytest.mark.parametrize("which", ["originals", "copies", "pods"])
def test_nothing_is_decided_from_what_is_not_complete(which: str) -> None:
    """An account could be taken away from a pod that is not listed yet."""
    here = bound()
    below(here)
    drop(here.lowers[A].upper_pods, "web")
    lower = here.lowers[A]
    caches = {"originals": here.upper.more[SERVICE_ACCOUNT], "copies": lower.more[SERVICE_ACCOUNT], "pods": lower.pods}
    caches[which].mark_stale()
    assert decided(RULE, KEY, here)[0] == Decision()


def test_an_original_that_is_missing_is_said_and_its_copy_stays() -> None:
    """It may be gone with the history of a store; only a deletion that was seen is followed."""
    here = bound()
    below(here)
    lose(here.upper.more[SERVICE_ACCOUNT], "robot")
    found = planned(here)
    assert found.steps == ()
    assert found.problem is not None
    assert (found.problem.reason, found.problem.message) == (
        "ServiceAccountNotFound",
        "ServiceAccount default/robot: it does not exist",
    )
    here.upper.more[SERVICE_ACCOUNT].confirm_absent("default", "robot")
    assert planned(here).steps == ()
    put(here.upper.more[SERVICE_ACCOUNT], robot())
    drop(here.upper.more[SERVICE_ACCOUNT], "robot")
    found = planned(here)
    assert [(step.verb, step.reason) for step in found.steps] == [("delete", "the upper ServiceAccount was deleted")]
    assert found.problem is not None


def test_the_deletion_of_an_older_original_takes_no_newer_ones_copy() -> None:
    """Another engine has heard of the newer one first, and made the copy: tokens of pods are bound to it."""
    here = bound()
    below(here)
    lose(here.upper.more[SERVICE_ACCOUNT], "robot")
    older = robot()
    put(here.upper.more[SERVICE_ACCOUNT], {**older, "metadata": {**older["metadata"], "uid": "older"}})
    drop(here.upper.more[SERVICE_ACCOUNT], "robot")
    assert planned(here).steps == ()


def test_there_is_a_key_for_what_pods_run_as_and_for_every_copy() -> None:
    """What is left of an earlier run is found."""
    here = bound()
    put(here.lowers[A].upper_pods, upper_pod("plain", {"serviceAccountName": "default"}))
    put(here.lowers[A].more[SERVICE_ACCOUNT], marked(account(name="left"), "gone"))
    assert list(names(RULE.keys(here, A))) == ["default/left", "default/robot"]
    assert list(RULE.keys(here, B)) == []


def test_accounts_are_heard_of_where_their_pods_or_copies_are() -> None:
    """Every namespace has a `default`, which concerns nobody."""
    here = bound()
    entry = here.upper.more[SERVICE_ACCOUNT].get("default", "robot")
    assert heard(here, "upper.ServiceAccount", Delta(None, entry)) == ["default/robot"]
    assert heard(here, "upper.ServiceAccount", Delta(None, entry), B) == []
    default = put(here.upper.more[SERVICE_ACCOUNT], account())
    assert heard(here, "upper.ServiceAccount", Delta(None, default)) == []
    left = put(here.lowers[B].more[SERVICE_ACCOUNT], marked(robot(), "x"))
    assert heard(here, "ServiceAccount", Delta(None, left), B) == ["default/robot"]
    assert heard(here, "upper.ServiceAccount", Delta(entry, None), B) == ["default/robot"]


def test_pods_are_heard_of_when_they_come_to_run_as_an_account_or_cease_to() -> None:
    """What is said of their status meanwhile concerns nothing."""
    here = bound()
    pods = here.lowers[A].upper_pods
    alive = pods.get("default", "web")
    ended = put(pods, upper_pod(spec=RUNS, status={"phase": "Failed"}))
    assert heard(here, "upper_pods", Delta(None, alive)) == ["default/robot"]
    assert heard(here, "upper_pods", Delta(alive, alive)) == []
    assert heard(here, "upper_pods", Delta(alive, ended)) == ["default/robot"]
    assert heard(here, "upper_pods", Delta(ended, None)) == []
    mirror = put(here.lowers[A].pods, twin_of_robot())
    assert heard(here, "pods", Delta(mirror, None)) == ["default/robot"]
    assert heard(here, "pods", Delta(mirror, mirror)) == []


# What images are pulled with.


def with_pull(more: str = "") -> World:
    """Make a world where the robot pulls images with a Secret that its pod does not name."""
    here = bound(more, imagePullSecrets=[{"name": "pull"}, {}])
    put(here.upper.secrets, secret("pull"))
    return here


def test_the_secrets_of_an_account_go_down_with_it() -> None:
    """As if the pod had named them, and until its last pod is gone."""
    here = with_pull()
    rule, key = config.RULE, secret_key(A, "default", "Secret", "pull")
    assert key in set(rule.keys(here, A))
    (step,) = decided(rule, key, here)[1].steps
    assert step.verb == "create"
    put(here.lowers[A].secrets, marked(secret("pull"), "Secret-pull", uid="below"))
    put(here.upper.more[SERVICE_ACCOUNT], robot())
    (step,) = decided(rule, key, here)[1].steps
    assert (step.verb, step.uid) == ("delete", "below")


def test_a_secret_is_not_taken_away_before_accounts_are_known() -> None:
    """It may be what an account pulls images with; without the controller there is no such account."""
    rule, key = config.RULE, secret_key(A, "default", "Secret", "pull")
    for more, verbs in (("", []), ("controllers: []\n", ["delete"])):
        here = bound(more)
        put(here.lowers[A].secrets, marked(secret("pull"), "Secret-pull", uid="below"))
        here.upper.more[SERVICE_ACCOUNT].mark_stale()
        assert [step.verb for step in decided(rule, key, here)[1].steps] == verbs


def test_the_secrets_of_accounts_that_nobody_runs_as_stay_above() -> None:
    """Nor do those of `default`, whose pods name them."""
    here = with_pull(NONE)
    assert pulling(here, "default", "pull") == ["robot"]
    assert not is_asked(here, here.lowers[A], "default", "robot")
    here = with_pull()
    assert not is_asked(here, here.lowers[B], "default", "robot")
    put(here.upper.more[SERVICE_ACCOUNT], {**account(), "imagePullSecrets": [{"name": "other"}]})
    assert pulling(here, "default", "other") == []
    assert list(secrets_of(here, "default", ROBOT)) == ["pull"]
    assert list(secrets_of(here, "default", (Reference("ServiceAccount", "default", optional=False),))) == []


def dependencies_heard(here: World, cache: str, delta: Delta, lower: str = A) -> Iterator[str]:
    """Yield the names of the Secrets that a change concerns."""
    routes = (one for one in config.RULE.watches() if one.cache == cache)
    yield from names(key for route in routes for key in route.keys(here, lower, delta))


def test_secrets_are_heard_of_by_account_and_pod() -> None:
    """Of an account that changes, a pod that comes or goes, and of the Secret itself."""
    here = with_pull()
    accounts, pods = here.upper.more[SERVICE_ACCOUNT], here.lowers[A].upper_pods
    pod, pull = pods.get("default", "web"), here.upper.secrets.get("default", "pull")
    assert list(dependencies_heard(here, "upper_pods", Delta(None, pod))) == ["default/Secret/pull"]
    assert list(dependencies_heard(here, "upper_pods", Delta(pod, pod))) == []
    assert list(dependencies_heard(here, "upper.secrets", Delta(None, pull))) == ["default/Secret/pull"]
    before = accounts.get("default", "robot")
    after = put(accounts, robot(imagePullSecrets=[{"name": "next"}]))
    concerned = ["default/Secret/next", "default/Secret/pull"]
    assert list(dependencies_heard(here, "upper.ServiceAccount", Delta(before, after))) == concerned
    assert list(dependencies_heard(here, "upper.ServiceAccount", Delta(before, after), B)) == []
    mirror = put(here.lowers[A].pods, twin_of_robot())
    assert list(dependencies_heard(here, "pods", Delta(mirror, None))) == ["default/Secret/next"]


def test_an_account_is_kept_with_the_names_of_its_pull_secrets() -> None:
    """One without a name counts for nothing."""
    here = with_pull()
    entry = here.upper.more[SERVICE_ACCOUNT].get("default", "robot")
    assert entry is not None
    assert (entry.facts, digest(entry.raw).raw) == (("pull",), entry.raw)
