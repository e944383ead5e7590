"""Tests of copies of ConfigMaps and Secrets, and of reserved names that the upper cluster does not have.

Behavior that all mirrored kinds share is tested in test_mirror.py, and updates of content by the scenarios config_map_*
and optional_*.
"""

from copy import deepcopy
from typing import Any

import pytest
from rulekit import RuleUnderTest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    add_namespace,
    add_virtual_node,
    apply_topology,
    change_as_other_client,
    config_map,
    delete_observed,
    make_lower_pod,
    make_object,
    make_upper_pod,
    make_world,
    put,
    relist_without,
    secret,
    sorted_names,
    spec_with_references,
    with_managed_fields,
    with_owner_marks,
)

from tensile.kube.store import Cache, Entry
from tensile.names import LEGACY, NO_ORIGINAL, OWNER, UPPER_UID
from tensile.objects import CONFIG_MAP, SECRET, SERVICE_ACCOUNT, Kind, Manifest, Ref, annotations, labels
from tensile.reconcile.plan import Plan
from tensile.reconcile.pods.references import Reference, copy_of
from tensile.reconcile.rules import config, namespaces, service_accounts
from tensile.reconcile.rules.config import LIMIT, RETRY_SECONDS, key_of, missing
from tensile.reconcile.world import Key, Problem, World

KINDS = {"ConfigMap": CONFIG_MAP, "Secret": SECRET}
TOKEN = "kubernetes.io/service-account-token"
DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}]


def key(kind: str = "Secret", name: str = "thing", lower: str = A) -> Key:
    """Return the key of a name in namespace default."""
    return key_of(lower, "default", kind, name)


ASKED = RuleUnderTest(config.RULE, key())
planned, the_step = ASKED.plan, ASKED.step


def naming(kind: str = "Secret", *, optional: bool = True, name: str = "thing") -> Manifest:
    """Return the spec of a pod that refers to a name by a volume."""
    of = {"config_maps" if kind == "ConfigMap" else "secrets": [name]}
    return spec_with_references(**of, optional=optional)


def bound(spec: Manifest | None = None, more: str = "", **pod: Any) -> World:
    """Create a world in which a pod with an optional Secret `thing` is bound to lower-a, and no such Secret exists."""
    world = make_world(more=more)
    add_virtual_node(world)
    add_namespace(world, namespace=pod.get("namespace", "default"))
    put(world.lowers[A].upper_pods, make_upper_pod(spec=naming() if spec is None else spec, **pod))
    return world


def needing(**pod: Any) -> World:
    """Create a world in which a bound pod requires Secret `thing` and ConfigMap `settings` of the upper cluster."""
    spec = spec_with_references(config_maps=["settings"], secrets=["thing"])
    world = bound(spec, **pod)
    put(world.upper.secrets, secret("thing", namespace=pod.get("namespace", "default")))
    put(world.upper.config_maps, config_map())
    return world


def caches(world: World, kind: str = "Secret") -> tuple[Cache, Cache]:
    """Return the upper and the lower cache of a kind."""
    upper_cache, lower_cache = world.upper.cache(KINDS[kind]), world.lowers[A].cache(KINDS[kind])
    assert upper_cache is not None
    assert lower_cache is not None
    return upper_cache, lower_cache


def carried_out(world: World, of: Key | None = None) -> Entry | None:
    """Apply the only step of a plan in lower-a, as a cluster would, and return the resulting object."""
    step = the_step(world, of)
    lower_cache = caches(world, step.ref.kind.name)[1]
    if step.verb == "delete":
        delete_observed(lower_cache, step.ref.name)
        return None
    assert step.verb == "create"
    made = deepcopy(step.body) or {}
    return put(
        lower_cache,
        with_managed_fields({**made, "metadata": {**made["metadata"], "uid": f"below-{lower_cache.version}"}}),
    )


def original(kind: str, name: str = "thing", **meta: Any) -> Manifest:
    """Return the upper object of a name."""
    return config_map(name, **meta) if kind == "ConfigMap" else secret(name, **meta)


def awaited(world: World, *references: Reference) -> list[str]:
    """Return the keys on which a pod in `default` of lower-a depends."""
    return list(sorted_names(missing(world, world.lowers[A], "default", references)))


def test_a_secret_is_copied_with_its_type_and_our_marks() -> None:
    """The type of a Secret is validated at its creation, and is immutable."""
    step = the_step(needing())
    assert (step.verb, step.ref) == ("create", Ref(A, SECRET, "default", "thing"))
    assert step.body == copy_of(secret("thing"), OWNER_HERE, "default")
    assert step.body["type"] == "Opaque"


@pytest.mark.parametrize(
    "pod",
    [{"ownerReferences": DAEMON}, {"namespace": "kube-system"}, {"status": {"phase": "Succeeded"}}],
    ids=["of a DaemonSet", "of an excluded namespace", "that ended"],
)
def test_a_pod_that_is_not_mirrored_causes_no_copy(pod: dict[str, Any]) -> None:
    """Otherwise the Secrets of the upper cluster's own agents would be in every lower cluster.

    No name is reserved for it either.
    """
    of = key_of(A, pod.get("namespace", "default"), "Secret", "thing")
    assert planned(needing(**pod), of) == planned(bound(**pod), of) == Plan(())


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_copy_is_kept_while_a_lower_pod_refers_to_it(phase: str) -> None:
    """A pod whose deletion the guard blocks keeps its configuration."""
    world = needing()
    carried_out(world)
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(spec=naming(optional=False)), {"phase": phase}))
    delete_observed(world.lowers[A].upper_pods, "web")
    assert planned(world) == Plan(())
    delete_observed(world.lowers[A].pods, "web")
    assert (the_step(world).verb, the_step(world).reason) == ("delete", "no pod refers to it any more")


def test_a_reference_of_a_lower_pod_alone_is_no_problem() -> None:
    """Admission in the lower cluster may add pull secrets that the upper cluster does not have."""
    world = bound({})
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(spec=naming(optional=False))))
    assert planned(world) == Plan(())


def test_a_pod_waits_for_the_copies_that_do_not_exist_yet() -> None:
    """The order is stable.

    References of other kinds do not count, and neither does the copy of another upper object.
    """
    world = needing()
    wanted = [Reference(kind, name, optional=False) for kind, name in (("Secret", "thing"), ("ConfigMap", "settings"))]
    claim = Reference("PersistentVolumeClaim", "disk", optional=False)
    assert awaited(world, *wanted, claim) == ["default/ConfigMap/settings", "default/Secret/thing"]
    assert ASKED.keys_in_lower(world) == ["default/ConfigMap/settings", "default/Secret/thing"]
    carried_out(world)
    carried_out(world, key("ConfigMap", "settings"))
    assert awaited(world, *wanted) == []
    put(world.upper.secrets, secret("thing", uid="second"))
    put(world.lowers[A].config_maps, config_map())
    assert awaited(world, *wanted) == ["default/ConfigMap/settings", "default/Secret/thing"]


# Reserved names.


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_an_optional_missing_object_is_reserved(kind: str) -> None:
    """The reserved object is empty, and its annotation shows that it has no upper object.

    The pod waits for it.
    """
    world, optional = bound(naming(kind)), Reference(kind, "thing", optional=True)
    assert awaited(world, optional) == [f"default/{kind}/thing"]
    step = the_step(world, key(kind))
    assert (step.verb, step.ref.name, step.in_plan) == ("create", "thing", True)
    assert step.body is not None
    assert not {"data", "binaryData", "stringData"} & step.body.keys()
    assert labels(step.body) == {OWNER: OWNER_HERE.mark}
    assert annotations(step.body)[UPPER_UID] == NO_ORIGINAL
    carried_out(world, key(kind))
    assert awaited(world, optional) == []
    assert awaited(world, optional._replace(optional=False)) == [f"default/{kind}/thing"]
    assert planned(world, key(kind)) == Plan(())


PULLING = {"imagePullSecrets": [{"name": "thing"}]}
IN_ENV = {"valueFrom": {"secretKeyRef": {"name": "thing", "key": "k", "optional": True}}}
OPTIONAL = {
    "pull secret": PULLING,
    "variable": {"containers": [{"name": "m", "env": [{"name": "A", **IN_ENV}]}]},
    "variables": {"initContainers": [{"name": "m", "envFrom": [{"secretRef": {"name": "thing", "optional": True}}]}]},
    "debug container": {"ephemeralContainers": [{"name": "m", "env": [{"name": "A", **IN_ENV}]}]},
    "volume": {"volumes": [{"name": "v", "secret": {"secretName": "thing", "optional": True}}]},
    "projected": {
        "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "thing", "optional": True}}]}}]
    },
}


@pytest.mark.parametrize("spec", OPTIONAL.values(), ids=OPTIONAL)
def test_the_name_in_every_optional_kind_of_reference_is_reserved(spec: Manifest) -> None:
    """Kubernetes starts a pod without the object in each case, and adds it later in most of them."""
    assert the_step(bound(spec)).verb == "create"


def test_the_name_of_a_required_missing_object_is_not_reserved() -> None:
    """The pod does not start, so nothing is created in the lower cluster."""
    world = bound(naming(optional=False))
    found = planned(world)
    assert (found.steps, found.problem) == (
        (),
        Problem("SecretNotFound", "Secret default/thing does not exist in the upper cluster"),
    )


def test_a_name_is_reserved_for_one_pod_even_if_another_requires_the_object() -> None:
    """The first pod starts, and the problem is only for the second one."""
    world = bound()
    put(world.lowers[A].upper_pods, make_upper_pod("strict", naming(optional=False)))
    carried_out(world)
    found = planned(world)
    assert found.steps == ()
    assert found.problem == ("SecretNotFound", "Secret default/thing does not exist in the upper cluster")


@pytest.mark.parametrize("forged", [{}, {"uid": "another"}], ids=["label alone", "all marks"])
def test_a_lower_pod_alone_reserves_no_name(forged: dict[str, Any]) -> None:
    """Any client that may create pods there can write its spec."""
    world = bound({})
    pod = make_lower_pod(make_upper_pod("other", naming(), **forged))
    put(world.lowers[A].pods, pod if forged else {**pod, "metadata": {**pod["metadata"], "managedFields": []}})
    assert planned(world) == Plan(())


def test_a_copy_whose_upper_object_is_missing_is_kept() -> None:
    """A lost permission looks like a deletion, so the content stays, and new pods use it."""
    world = bound()
    put(world.upper.secrets, secret("thing"))
    carried_out(world)
    relist_without(world.upper.secrets, "thing")
    assert planned(world) == Plan(())
    assert awaited(world, Reference("Secret", "thing", optional=True)) == []


def test_the_name_of_a_secret_that_is_never_copied_is_reserved() -> None:
    """A token of the upper cluster has a name that may be that of another Secret in the lower cluster."""
    world, optional = bound(), Reference("Secret", "thing", optional=True)
    put(world.upper.secrets, secret("thing", TOKEN))
    assert awaited(world, optional) == ["default/Secret/thing"]
    carried_out(world)
    assert awaited(world, optional) == []
    assert planned(world) == Plan(())


def test_the_copy_of_a_secret_that_became_a_token_is_replaced_by_a_reserved_name() -> None:
    """The earlier Secret is not the one to which the pod refers now."""
    world = bound()
    put(world.upper.secrets, secret("thing", uid="earlier"))
    carried_out(world)
    put(world.upper.secrets, secret("thing", TOKEN, uid="later"))
    assert awaited(world, Reference("Secret", "thing", optional=True)) == ["default/Secret/thing"]
    assert the_step(world).verb == "delete"
    carried_out(world)
    held = carried_out(world)
    assert held is not None
    assert held.facts.upper_uid == NO_ORIGINAL


@pytest.mark.parametrize("mode", ["fail", "adopt"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_object_of_another_owner_with_a_reserved_name_is_a_conflict(kind: str, mode: str) -> None:
    """It is never adopted, whatever its marks, because that would remove its content."""
    world = bound(naming(kind), more=f"onConflict: {mode}\n")
    marks = {"labels": {OWNER: OWNER_HERE.mark}, "annotations": {LEGACY: "true", UPPER_UID: NO_ORIGINAL}}
    for theirs in (original(kind, **marks), with_owner_marks(original(kind), NO_ORIGINAL, STRANGER)):
        put(caches(world, kind)[1], theirs)
        found = planned(world, key(kind))
        assert found.steps == ()
        assert found.problem is not None
        assert found.problem.reason == "NameConflict"
        assert f"{kind} default/thing exists in lower cluster lower-a and has another owner" in found.problem.message
        assert "the upper cluster has no such object" in found.problem.message
        assert awaited(world, Reference(kind, "thing", optional=True)) == [f"default/{kind}/thing"]


def test_running_pods_get_an_event_if_their_reserved_name_conflicts() -> None:
    """They may read an object of another owner.

    Only a few of them get an Event, and only for a conflict.
    """
    world = bound()
    for place in range(8):
        put(world.lowers[A].upper_pods, pod := make_upper_pod(f"p{place}", naming()))
        put(world.lowers[A].pods, make_lower_pod(pod, {"phase": "Running"}))
    world.problems[key()] = Problem("NameConflict", "it is taken")
    *events, create = planned(world).steps
    assert create.verb == "create"
    assert {one.body["involvedObject"]["name"] for one in events if one.body} == {f"p{place}" for place in range(5)}
    assert {one.body["message"] for one in events if one.body} == {
        "delete this pod, it may read an object of another owner: it is taken"
    }
    world.problems[key()] = Problem("Forbidden", "no")
    assert [step.verb for step in planned(world).steps] == ["create"]


def test_content_that_another_client_adds_to_a_reserved_object_is_removed() -> None:
    """Otherwise a pod would read it."""
    world = bound()
    carried_out(world)
    change_as_other_client(world.lowers[A].secrets, "thing", lambda one: one.update(data={"key": "dmFsdWU="}))
    assert the_step(world).operations == ({"op": "remove", "path": "/data"},)


def test_no_name_is_reserved_without_pod_namespace_or_our_node() -> None:
    """The other lower has no pod, the namespace may not exist yet, and the node may belong to another owner."""
    world = bound()
    assert planned(world, key(lower=B)) == Plan(())
    delete_observed(world.lowers[A].namespaces, "default", "")
    decision, found = ASKED.decision(world), planned(world)
    assert (decision.depends_on, found) == ((namespaces.key_of(A, "default"),), Plan(()))
    delete_observed(world.upper.nodes, A, "")
    assert ASKED.decision(world).depends_on == ()
    put(world.upper.nodes, make_object("Node", A, ""))
    assert planned(world) == Plan(())


def held(name: str, namespace: str = "default", of: Kind = SECRET) -> Manifest:
    """Return an object that reserves a name."""
    made = secret(name, namespace=namespace) if of == SECRET else config_map(name, namespace=namespace)
    return with_owner_marks(made, NO_ORIGINAL)


def test_each_namespace_has_a_limit_of_reserved_names_per_kind() -> None:
    """Copies and other namespaces do not count, and existing reserved names stay."""
    world = bound()
    lower_cache = world.lowers[A].secrets
    put(lower_cache, *(held(f"n{place}") for place in range(LIMIT - 1)))
    put(lower_cache, *(held(f"n{place}", "other") for place in range(5)), with_owner_marks(secret("copy"), "above"))
    assert the_step(world).verb == "create"
    put(lower_cache, held("last"))
    decision, found = ASKED.decision(world), planned(world)
    assert (found.steps, decision.requeue_after) == ((), RETRY_SECONDS)
    assert found.problem is not None
    assert found.problem.reason == "TooManyReservedNames"
    assert "namespace default of lower cluster lower-a" in found.problem.message
    put(world.lowers[A].upper_pods, make_upper_pod("second", naming(name="last")))
    assert planned(world, key(name="last")).problem is None
    put(world.lowers[A].upper_pods, make_upper_pod("third", naming("ConfigMap")))
    assert the_step(world, key("ConfigMap")).verb == "create"


def account(*pulls: str) -> Manifest:
    """Return the upper ServiceAccount `robot` with pull secrets."""
    return {**make_object("ServiceAccount", "robot"), "imagePullSecrets": [{"name": one} for one in pulls]}


def test_the_names_of_a_service_accounts_pull_secrets_are_reserved() -> None:
    """Admission in the lower cluster adds them to a pod without pull secrets."""
    world = bound({"serviceAccountName": "robot"})
    put(world.upper.more[SERVICE_ACCOUNT], account("thing"))
    user = Reference("ServiceAccount", "robot", optional=False)
    assert service_accounts.pulling(world, "default", "thing") == ["robot"]
    assert awaited(world, user) == ["default/Secret/thing"]
    carried_out(world)
    assert awaited(world, user) == []
    apply_topology(world, more="serviceAccounts: {identity: none}\n")
    delete_observed(world.lowers[A].secrets, "thing")
    assert awaited(world, user) == []
