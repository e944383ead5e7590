"""Tests of the token rule: upper tokens are issued for pods that mount them, renewed in time, and then deleted."""

from base64 import b64decode
from datetime import timedelta
from typing import Any

import pytest
from worldkit import (
    NOW,
    OWNER_HERE,
    STRANGER,
    A,
    B,
    add_namespace,
    add_virtual_node,
    change_as_other_client,
    config_map,
    decision_and_plan,
    delete_observed,
    make_lower_node,
    make_lower_pod,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    sorted_names,
    with_owner_marks,
)

from tensile.kube.store import Delta, Entry, changed_facts
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.kubelet.pods.service_account import secret_name
from tensile.kubelet.pods.token_rule import TokenRule, key_of, missing
from tensile.names import OWNER, OWNER_NAME, TOKEN_POD, TOKEN_TERM, UPPER_UID
from tensile.objects import POD, SECRET, SERVICE_ACCOUNT, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, EmitEvent, TokenRequest, TokenSecret
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import config, namespaces
from tensile.reconcile.rules.config import key_of as secret_key
from tensile.reconcile.world import Problem, World

RULE = TokenRule()
KEY = key_of(A, "default", "web")
NAME = secret_name("Pod-web")
REF = Ref(A, SECRET, "default", NAME)
AWAY, HOME = "serviceAccounts: {identity: upper}\n", "serviceAccounts: {identity: lower}\n"
TOKEN = {"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
VAULT = {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "v", "audience": "vault"}}]}}
SPEC = {"serviceAccountName": "robot", "volumes": [TOKEN]}
HOUR = f"{NOW:%Y-%m-%dT%H:%M:%SZ}/PT3600S"
AUTHORITY = "kube-root-ca.crt"


def bound(more: str = AWAY, **pod: Any) -> World:
    """Return a world in which a pod that mounts a token is bound to lower-a."""
    world = make_world(more=more)
    add_virtual_node(world)
    add_namespace(world)
    put(world.lowers[A].nodes, make_lower_node())
    put(world.upper.config_maps, config_map(AUTHORITY, {"ca.crt": "authority"}))
    put(world.upper.more[SERVICE_ACCOUNT], make_service_account(name="robot"))
    put(
        world.lowers[A].more[SERVICE_ACCOUNT],
        with_owner_marks(make_service_account(name="robot"), "ServiceAccount-robot"),
    )
    put(world.lowers[A].upper_pods, make_upper_pod(**({"spec": SPEC} | pod)))
    return world


def secret(term: str = HOUR, uid: str = "Pod-web", **data: str) -> Manifest:
    """Return the lower Secret as the engine writes it."""
    content = {"ca.crt": "YXV0aG9yaXR5", "namespace": "ZGVmYXVsdA==", "token": "dG9rZW4=", **data}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret_name(uid), "namespace": "default"}}
    notes = {TOKEN_POD: "web", TOKEN_TERM: term}
    return {
        **with_owner_marks({**made, "type": "Opaque"}, uid, uid=f"below-{uid}", annotations=noted(uid, notes)),
        "data": content,
    }


def noted(uid: str, notes: dict[str, str]) -> dict[str, str]:
    """Return annotations with this owner's marks."""
    return {OWNER_NAME: OWNER_HERE.name, UPPER_UID: uid, **notes}


def held(world: World, **given: Any) -> Entry:
    """Add the Secret to the lower."""
    return put(world.lowers[A].secrets, secret(**given))


def running(world: World, **status: Any) -> Entry:
    """Add the lower pod, created with the upper cluster's identity."""
    upper = make_upper_pod(spec=SPEC)
    place = LowerContext(OWNER_HERE, A, "default", "below-default", identity="upper")
    made = make_lower_pod(upper, status)
    return put(world.lowers[A].pods, {**made, "spec": to_lower_pod(upper, place)["spec"]})


def decide(world: World) -> Decision:
    """Decide about the pod's tokens."""
    return decision_and_plan(RULE, KEY, world)[0]


def granted(world: World) -> TokenSecret:
    """Return the token Secret to issue, which must be the only desired item."""
    (wanted,) = decide(world).wanted
    assert isinstance(wanted, TokenSecret)
    return wanted


def ended(world: World) -> list[str]:
    """Return the UIDs of the Secrets to delete, which must be all that is desired."""
    wanted = decide(world).wanted
    assert all(isinstance(one, Absent) and one.requested for one in wanted)
    return [one.uid for one in wanted if isinstance(one, Absent)]


def test_tokens_are_requested_before_the_pod_is_created() -> None:
    """They are for its account, bound to its UID, and valid for an hour; the desired Secret has marks and no token."""
    wanted = granted(bound())
    assert (wanted.ref, wanted.account) == (REF, Ref(UPPER, SERVICE_ACCOUNT, "default", "robot"))
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "Pod-web"}
    request = {"expirationSeconds": 3600, "boundObjectRef": pod}
    whole = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": request}
    assert wanted.asks == (TokenRequest("token", whole),)
    meta = wanted.manifest["metadata"]
    assert meta["labels"] == {OWNER: OWNER_HERE.mark}
    assert meta["annotations"] == noted("Pod-web", {TOKEN_POD: "web"})
    data = {name: b64decode(value).decode() for name, value in wanted.manifest["data"].items()}
    assert data == {"ca.crt": "authority", "namespace": "default", "token": ""}


def test_a_token_is_requested_for_each_audience() -> None:
    """The pod's own volumes count like that of admission."""
    world = bound(spec={"volumes": [TOKEN, VAULT]})
    wanted = granted(world)
    assert [ask.request["spec"].get("audiences") for ask in wanted.asks] == [None, ["vault"]]
    assert {ask.entry for ask in wanted.asks} < wanted.manifest["data"].keys()
    assert wanted.account.name == "default"


def test_a_pod_waits_for_its_tokens() -> None:
    """It waits for nothing if it mounts none, or if it does not get the identity of the upper cluster."""
    world, pod = bound(), make_upper_pod(spec=SPEC)
    lower = world.lowers[A]
    assert missing(lower, pod, OWNER_HERE) == [KEY]
    assert missing(lower, make_upper_pod(), OWNER_HERE) == []
    assert missing(bound(HOME).lowers[A], pod, OWNER_HERE) == []
    put(lower.secrets, with_owner_marks(secret(), "Pod-web", STRANGER))
    assert missing(lower, pod, OWNER_HERE) == [KEY], "tokens of another owner are not mounted"
    held(world)
    assert missing(lower, pod, OWNER_HERE) == []


@pytest.mark.parametrize("more", [HOME, "controllers: []\n", "serviceAccounts: {identity: none}\n"])
def test_tokens_are_issued_only_with_identity_upper(more: str) -> None:
    """A token is a credential of the upper cluster that is stored in the lower one."""
    assert decide(bound(more)) == Decision()
    assert list(RULE.keys(bound(more), A)) == []


def test_a_pod_that_cannot_be_created_gets_no_token() -> None:
    """Its name is in use, its node belongs to another owner, or its lower was removed from the topology."""
    world = bound()
    put(world.lowers[A].foreign_pods, make_upper_pod())
    assert decide(world) == Decision()
    world = bound()
    delete_observed(world.upper.nodes, A, "")
    assert decide(world) == Decision()
    world = bound()
    world.lowers[A].in_topology = False
    assert decide(world) == Decision()


def test_tokens_wait_for_their_namespace() -> None:
    """The decision depends on the key of the namespace."""
    world = bound()
    delete_observed(world.lowers[A].namespaces, "default", "")
    assert decide(world) == Decision(depends_on=(namespaces.key_of(A, "default"),))


def test_tokens_wait_for_the_pods_other_references() -> None:
    """While the pod waits for another reason, its tokens would be in the lower for no use."""
    main = {"name": "main", "image": "app:1", "envFrom": [{"secretRef": {"name": "s", "optional": True}}]}
    world = bound(spec={**SPEC, "containers": [main]})
    assert decide(world) == Decision(depends_on=(secret_key(A, "default", "Secret", "s"),))


def test_no_tokens_are_requested_while_an_older_pod_has_the_name() -> None:
    """The deletion of that lower pod enqueues the key again."""
    world = bound()
    older = running(world)
    put(world.lowers[A].upper_pods, make_upper_pod(spec=SPEC, uid="second"))
    assert decide(world) == Decision()
    (route,) = (one for one in RULE.watches() if one.cache == "pods")
    assert list(route.keys(world, A, Delta(older, None))) == [KEY]
    delete_observed(world.lowers[A].pods, "web")
    assert granted(world).manifest["metadata"]["annotations"][UPPER_UID] == "second"


@pytest.mark.parametrize("data", [None, {"other": "x"}])
def test_no_token_is_issued_without_the_ca_of_the_upper(data: dict[str, str] | None) -> None:
    """A pod that cannot verify the apiserver must not send a token."""
    world = bound()
    delete_observed(world.upper.config_maps, AUTHORITY)
    if data:
        put(world.upper.config_maps, config_map(AUTHORITY, data))
    found = decide(world)
    assert found.wanted == ()
    assert found.problem is not None
    assert found.problem.reason == "UpperCANotFound"
    assert f"default/{AUTHORITY}" in found.problem.message


# Renewal.


def test_a_refused_renewal_is_reported_by_an_event_on_the_running_pod() -> None:
    """Its status would not show it, while a pod that waits for its first tokens is Pending with the reason."""
    world = bound()
    world.problems[KEY] = Problem("Forbidden", "no rights")
    assert isinstance(granted(world), TokenSecret)
    held(world)
    running(world)
    world.now = NOW + timedelta(hours=1)
    again, event = decide(world).wanted
    assert isinstance(again, TokenSecret)
    assert isinstance(event, EmitEvent)
    assert (event.about, event.uid, event.reason) == (Ref(UPPER, POD, "default", "web"), "Pod-web", "Forbidden")
    assert event.message == "the pod's tokens of the upper cluster cannot be renewed and will expire: no rights"


def test_tokens_from_the_future_are_renewed() -> None:
    """The engine's clock was set back, so the tokens would expire too early."""
    world = bound()
    held(world)
    world.now = NOW - timedelta(seconds=59)
    assert decide(world).requeue_after == 2880.0 + 59
    world.now = NOW - timedelta(seconds=61)
    assert granted(world).ref == REF


def test_no_token_is_issued_while_the_lower_does_not_answer() -> None:
    """Its Secret could not be written."""
    world = bound()
    world.lowers[A].unreachable_seconds = 3.0
    assert decide(world) == Decision()


def test_short_lived_tokens_are_renewed_at_most_once_a_minute() -> None:
    """An apiserver may limit the lifetime of tokens to any value."""
    world = bound()
    held(world, term=f"{NOW:%Y-%m-%dT%H:%M:%SZ}/PT10S")
    assert decide(world) == Decision(requeue_after=60.0)


SPOILT = {
    "no term": {"term": ""},
    "no interval": {"term": "soon"},
    "no moment": {"term": "yesterday/PT3600S"},
    "no number": {"term": f"{NOW:%Y-%m-%dT%H:%M:%SZ}/PT-1S"},
    "another authority": {"ca.crt": "b3RoZXI="},
    "another namespace": {"namespace": "b3RoZXI="},
    "an additional key": {"more": "eA=="},
}


@pytest.mark.parametrize("given", SPOILT.values(), ids=SPOILT)
def test_a_changed_token_secret_is_written_again(given: dict[str, str]) -> None:
    """This holds for an invalid term and for other data."""
    world = bound()
    held(world, **given)
    assert granted(world).ref == REF


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_token_secret_written_by_another_manager_is_written_again(name: str) -> None:
    """A changed token looks like any other, but managedFields show who wrote it."""
    world = bound()
    made = held(world).manifest()
    book = {"manager": "kubectl", "fieldsV1": {"f:data": {f"f:{name}": {}}}}
    made = {**made, "metadata": {**made["metadata"], "managedFields": [*made["metadata"]["managedFields"], book]}}
    put(world.lowers[A].secrets, made)
    assert granted(world).ref == REF


def test_a_missing_token_is_issued_again() -> None:
    """Another client removed its key from the Secret."""
    world = bound()
    held(world)
    change_as_other_client(world.lowers[A].secrets, NAME, lambda found: found["data"].pop("token"))
    assert granted(world).ref == REF


def test_a_running_pod_without_upper_tokens_gets_none() -> None:
    """It was created without that identity, and does not mount them."""
    world = bound()
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(spec=SPEC)))
    assert decide(world) == Decision()


# Deletion.


def test_tokens_are_deleted_when_the_pod_is_absent_on_both_sides() -> None:
    """They are kept before that, because a missing upper pod may not have been deleted."""
    world = bound()
    held(world)
    running(world)
    delete_observed(world.lowers[A].upper_pods, "web")
    assert decide(world) == Decision()
    delete_observed(world.lowers[A].pods, "web")
    assert ended(world) == ["below-Pod-web"]


def test_tokens_of_a_pod_that_ended_are_kept_and_not_renewed() -> None:
    """The Secret stays as long as the pod does."""
    world = bound(status={"phase": "Succeeded"})
    held(world)
    running(world, phase="Succeeded")
    world.now = NOW + timedelta(hours=2)
    assert decide(world) == Decision()


def test_tokens_of_an_older_pod_of_the_name_are_deleted() -> None:
    """The new pod gets its own tokens."""
    world = bound()
    held(world, uid="older")
    wanted = decide(world).wanted
    assert [type(one) for one in wanted] == [Absent, TokenSecret]
    assert isinstance(wanted[0], Absent)
    assert wanted[0].uid == "below-older"


def test_a_secret_of_another_owner_is_not_changed() -> None:
    """It has the same name and annotations, but another owner's mark."""
    world = bound(HOME)
    stranger = secret()
    put(world.lowers[A].secrets, with_owner_marks(stranger, "Pod-web", STRANGER, uid="foreign"))
    delete_observed(world.lowers[A].upper_pods, "web")
    assert decide(world) == Decision()


@pytest.mark.parametrize("cache", ["secrets", "pods", "upper_pods"])
def test_nothing_is_decided_before_all_caches_are_synced(cache: str) -> None:
    """Otherwise a token could be deleted for a pod that is not listed yet."""
    world = bound()
    held(world)
    delete_observed(world.lowers[A].upper_pods, "web")
    getattr(world.lowers[A], cache).mark_stale()
    assert decide(world) == Decision()


def test_the_secret_rule_does_not_delete_token_secrets() -> None:
    """No upper pod refers to a token Secret, but it is no copy."""
    world = bound()
    held(world)
    rule, key = config.RULE, secret_key(A, "default", "Secret", NAME)
    assert decision_and_plan(rule, key, world)[1] == Plan(())
    assert key not in set(rule.keys(world, A))


# Watches.


def enqueued_keys(world: World, cache: str, delta: Delta, lower: str = A) -> list[str]:
    """Return the names of the keys that a change enqueues."""
    (route,) = (one for one in RULE.watches() if one.cache == cache)
    changed = changed_facts(delta)
    is_passed_on = changed is None or bool(changed.intersection(route.facts))
    return list(sorted_names(route.keys(world, lower, delta))) if is_passed_on else []


def test_every_pod_and_every_token_secret_has_a_key() -> None:
    """Secrets of an earlier run are included."""
    world = bound()
    held(world, uid="older")
    put(world.lowers[A].upper_pods, make_upper_pod("other"))
    assert list(sorted_names(RULE.keys(world, A))) == ["default/other", "default/web"]
    assert list(RULE.keys(world, B)) == []


def test_pods_enqueue_the_rule_only_if_tokens_are_used() -> None:
    """Without tokens pods cause no work, and a lower pod's plain status change enqueues nothing."""
    world = bound()
    upper, lower_entry = world.lowers[A].upper_pods.get("default", "web"), running(world)
    assert enqueued_keys(world, "upper_pods", Delta(None, upper)) == ["default/web"]
    assert (
        enqueued_keys(world, "pods", Delta(lower_entry, None))
        == enqueued_keys(world, "pods", Delta(None, lower_entry))
        == ["default/web"]
    )
    again = running(world)
    assert enqueued_keys(world, "pods", Delta(lower_entry, again)) == []
    assert enqueued_keys(world, "pods", Delta(again, running(world, phase="Failed"))) == ["default/web"]
    quiet = bound(HOME)
    assert (
        enqueued_keys(quiet, "upper_pods", Delta(None, upper))
        == enqueued_keys(quiet, "pods", Delta(None, lower_entry))
        == []
    )
    held(quiet)
    assert enqueued_keys(quiet, "upper_pods", Delta(None, upper)) == ["default/web"]


def test_token_secrets_enqueue_the_rule() -> None:
    """Other Secrets do not."""
    world = bound()
    entry = held(world)
    other = put(
        world.lowers[A].secrets, with_owner_marks({**secret(), "metadata": {"name": "s", "namespace": "default"}}, "x")
    )
    assert (
        enqueued_keys(world, "secrets", Delta(None, entry))
        == enqueued_keys(world, "secrets", Delta(entry, None))
        == ["default/web"]
    )
    assert enqueued_keys(world, "secrets", Delta(None, other)) == []


def test_a_new_upper_ca_enqueues_the_pods_of_its_namespace() -> None:
    """Another ConfigMap does not, and neither does it without the identity of the upper cluster."""
    world = bound()
    entry = world.upper.config_maps.get("default", AUTHORITY)
    other = put(world.upper.config_maps, config_map("settings"))
    assert enqueued_keys(world, "upper.config_maps", Delta(None, entry)) == ["default/web"]
    assert enqueued_keys(world, "upper.config_maps", Delta(None, other)) == []
    assert enqueued_keys(bound(HOME), "upper.config_maps", Delta(None, entry)) == []


def test_tokens_of_a_running_pod_are_renewed_in_an_excluded_namespace() -> None:
    """The pod keeps its lower pod, which was created with that identity."""
    world = bound(AWAY + "excludeNamespaces: [default]\n", status={"phase": "Running"})
    held(world)
    running(world, phase="Running")
    world.now = NOW + timedelta(minutes=50)
    assert granted(world).reason == "its tokens expire soon"
