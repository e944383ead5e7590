"""Tests that objects in a lower namespace without an upper namespace are not treated as those of another namespace.

Such namespaces result from a changed mapping after a restart, or from an annotation that a client removed.
"""

from collections.abc import Iterator

import pytest
from servicekit import endpoint_slice, service
from storagekit import make_claim, make_lower_claim
from worldkit import (
    A,
    add_virtual_node,
    config_map,
    make_lower_pod,
    make_namespace,
    make_object,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    secret,
    spec_with_references,
    with_owner_marks,
)

from tensile.engine.caches import rules
from tensile.kube.store import Delta
from tensile.kubelet.pods.service_account import secret_name
from tensile.names import TOKEN_POD, UPPER_NAMESPACE
from tensile.objects import CLAIM, ENDPOINT_SLICE, ROLE, ROLE_BINDING, SERVICE, SERVICE_ACCOUNT, UPPER, Kind, Manifest
from tensile.reconcile.desired import Decision, Rule, VerifyAbsent, find_cache
from tensile.reconcile.rules import orphans
from tensile.reconcile.world import Key, World

NOWHERE = "nowhere"
EVERYTHING = "controllers: [PV, Service, ServiceAccount, RBAC]\nservices: {kubeSystem: true}\n"
BY_NAMESPACE = {"dependency", "account", "rights", "token", "service", "slice", "claim", "pod"}
"""Rules whose keys have an upper namespace."""
RIGHTS = "rbac.authorization.k8s.io/v1"


def placed(manifest: Manifest) -> Manifest:
    """Return an object with the unknown namespace."""
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": NOWHERE}}


def of_kinds() -> dict[Kind, Manifest]:
    """Return one object of each kind that a controller creates, as an earlier run left it."""
    robot = {"kind": "ServiceAccount", "namespace": "", "name": "robot"}
    role_ref = {"kind": "Role", "name": "reader"}
    made = {
        SERVICE: service(),
        ENDPOINT_SLICE: endpoint_slice(),
        SERVICE_ACCOUNT: make_service_account(name="robot"),
        ROLE: make_object("Role", "reader", api=RIGHTS),
        ROLE_BINDING: {**make_object("RoleBinding", "reads", api=RIGHTS), "roleRef": role_ref, "subjects": [robot]},
    }
    ours = {
        kind: placed(with_owner_marks(one, f"above-{kind.name}", uid=f"below-{kind.name}"))
        for kind, one in made.items()
    }
    return {**ours, CLAIM: placed(make_lower_claim(make_claim()))}


def left() -> World:
    """Create a world with one object of each kind in a lower namespace to which no upper namespace maps."""
    world = make_world("name: lower-a, namespaces: {mapping: prefix}", more=EVERYTHING)
    add_virtual_node(world)
    lower = world.lowers[A]
    put(lower.namespaces, make_namespace(NOWHERE))
    refers = {**spec_with_references(config_maps=["settings"], secrets=["password"]), "serviceAccountName": "robot"}
    refers["volumes"] += [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    put(lower.pods, make_lower_pod(make_upper_pod("left", refers, namespace=NOWHERE)))
    put(lower.config_maps, placed(with_owner_marks(config_map(), "above")))
    tokens = secret(secret_name("gone"), annotations={TOKEN_POD: "gone"})
    put(lower.secrets, placed(with_owner_marks(secret(), "above")), placed(with_owner_marks(tokens, "gone")))
    for kind, one in of_kinds().items():
        put(lower.more[kind], one)
    return world


def all_enqueued_keys(world: World, rule: Rule) -> Iterator[Key]:
    """Yield every key of a rule, and those of every change in its caches."""
    yield from rule.keys(world, A)
    for route in rule.watches():
        for entry in find_cache(world, A, route.cache):
            for delta in (Delta(None, entry), Delta(entry, None), Delta(entry, entry)):
                yield from route.keys(world, A, delta)


def test_every_key_of_a_namespaced_rule_has_an_upper_namespace() -> None:
    """This holds for existing, created and deleted objects, and no mapping for an empty namespace is recorded."""
    world = left()
    found = [key for rule in rules() for key in all_enqueued_keys(world, rule)]
    assert {key.rule for key in found} >= {"orphans", "strays", "claim-orphans", "vacancy"}
    assert "pod" not in {key.rule for key in found}
    assert [key for key in found if key.rule in BY_NAMESPACE and not key.namespace] == []
    assert [key for key in found if key.rule == "namespace" and not key.name] == []
    assert "" not in world.lowers[A].namespace_origins.values()
    assert world.lowers[A].namespace("") == ""


@pytest.mark.parametrize("rule", [orphans.SERVICES, orphans.CLAIMS, orphans.RIGHTS], ids=lambda rule: rule.name)
def test_objects_in_an_unknown_namespace_are_neither_confirmed_nor_deleted(rule: Rule) -> None:
    """A read without a namespace would find no object, and its absence would count as a deletion."""
    world, key = left(), orphans.key_of(rule.name, A)
    assert rule.decide(key, world) == Decision()
    for kind in (SERVICE, ENDPOINT_SLICE, CLAIM, ROLE, ROLE_BINDING):
        for entry in world.lowers[A].more[kind]:
            world.upper.more[kind].confirm_absent("", entry.name)
    assert rule.decide(key, world) == Decision()


def test_objects_are_mirrored_again_if_their_namespaces_annotation_is_known() -> None:
    """They have keys then, and missing upper objects are read in the upper namespace."""
    world = left()
    note = {UPPER_NAMESPACE: "team"}
    put(world.lowers[A].namespaces, with_owner_marks(make_namespace("demo-team", annotations=note), "above-team"))
    for kind, one in of_kinds().items():
        put(world.lowers[A].more[kind], {**one, "metadata": {**one["metadata"], "namespace": "demo-team"}})
    found = {(key.rule, key.namespace) for rule in rules() for key in rule.keys(world, A)}
    assert {("service", "team"), ("slice", "team"), ("claim", "team"), ("account", "team"), ("rights", "team")} <= found
    (rule,) = (one for one in rules() if one.name == orphans.CLAIMS.name)
    (wanted,) = rule.decide(orphans.key_of(rule.name, A), world).wanted
    assert isinstance(wanted, VerifyAbsent)
    assert (wanted.ref.cluster, wanted.ref.kind, wanted.ref.namespace) == (UPPER, CLAIM, "team")
