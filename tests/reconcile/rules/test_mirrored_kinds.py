"""Tests that apply to each mirrored kind: a copy is only written if pods can use it."""

from collections.abc import Callable

import pytest
from rbackit import BINDING_KEY, ROLE_KEY, put_lower_role, rbac_world
from rulekit import RuleUnderTest
from servicekit import KEY as SERVICE_KEY
from servicekit import service_world
from worldkit import (
    A,
    add_namespace,
    add_virtual_node,
    config_map,
    delete_observed,
    make_upper_pod,
    make_world,
    put,
    spec_with_references,
)

from tensile.objects import SERVICE_ACCOUNT
from tensile.reconcile.desired import Decision
from tensile.reconcile.rules import config, namespaces, rbac, service_accounts, services
from tensile.reconcile.world import World


def configured() -> World:
    """Create a world in which a pod refers to a ConfigMap of the upper cluster."""
    world = make_world()
    add_virtual_node(world)
    add_namespace(world)
    put(world.upper.config_maps, config_map())
    put(world.lowers[A].upper_pods, make_upper_pod(spec=spec_with_references(config_maps=["settings"])))
    return world


def without_account() -> World:
    """Create a world in which the ServiceAccount of a pod has no copy yet."""
    world = rbac_world()
    delete_observed(world.lowers[A].more[SERVICE_ACCOUNT], "robot")
    return world


KINDS: dict[str, tuple[RuleUnderTest, Callable[[], World]]] = {
    "ConfigMap": (RuleUnderTest(config.RULE, config.key_of(A, "default", "ConfigMap", "settings")), configured),
    "ServiceAccount": (
        RuleUnderTest(service_accounts.RULE, service_accounts.key_of(A, "default", "robot")),
        without_account,
    ),
    "Service": (RuleUnderTest(services.RULE, SERVICE_KEY), service_world),
    "Role": (RuleUnderTest(rbac.RULE, ROLE_KEY), rbac_world),
    "RoleBinding": (RuleUnderTest(rbac.RULE, BINDING_KEY), lambda: put_lower_role(rbac_world())),
}


@pytest.mark.parametrize(("rule_under_test", "made"), KINDS.values(), ids=KINDS)
def test_a_copy_requires_its_lower_namespace_and_the_lowers_own_node(
    rule_under_test: RuleUnderTest, made: Callable[[], World]
) -> None:
    """Pods on a node that is not ours do not run in this lower cluster."""
    world = made()
    assert rule_under_test.step(world).verb == "create"
    delete_observed(world.lowers[A].namespaces, "default", "")
    assert rule_under_test.decision(world) == Decision(depends_on=(namespaces.key_of(A, "default"),))
    add_namespace(world)
    delete_observed(world.upper.nodes, A, "")
    assert rule_under_test.decision(world) == Decision()
