"""Tests that apply to each mirrored kind: a copy is only written if pods can use it."""

from collections.abc import Callable

import pytest
from rbackit import BINDING_KEY, ROLE_KEY, granted, with_role
from rulekit import Asked
from servicekit import KEY as SERVICE_KEY
from servicekit import exposed
from worldkit import A, config_map, drop, home, put, raised, referring, upper_pod, world

from tensile.objects import SERVICE_ACCOUNT
from tensile.reconcile.desired import Decision
from tensile.reconcile.rules import config, namespaces, rbac, service_accounts, services
from tensile.reconcile.world import World


def configured() -> World:
    """Create a world in which a pod refers to a ConfigMap of the upper cluster."""
    here = world()
    raised(here)
    home(here)
    put(here.upper.config_maps, config_map())
    put(here.lowers[A].upper_pods, upper_pod(spec=referring(config_maps=["settings"])))
    return here


def without_account() -> World:
    """Create a world in which the ServiceAccount of a pod has no copy yet."""
    here = granted()
    drop(here.lowers[A].more[SERVICE_ACCOUNT], "robot")
    return here


KINDS: dict[str, tuple[Asked, Callable[[], World]]] = {
    "ConfigMap": (Asked(config.RULE, config.key_of(A, "default", "ConfigMap", "settings")), configured),
    "ServiceAccount": (Asked(service_accounts.RULE, service_accounts.key_of(A, "default", "robot")), without_account),
    "Service": (Asked(services.RULE, SERVICE_KEY), exposed),
    "Role": (Asked(rbac.RULE, ROLE_KEY), granted),
    "RoleBinding": (Asked(rbac.RULE, BINDING_KEY), lambda: with_role(granted())),
}


@pytest.mark.parametrize(("asked", "made"), KINDS.values(), ids=KINDS)
def test_a_copy_requires_its_lower_namespace_and_the_lowers_own_node(asked: Asked, made: Callable[[], World]) -> None:
    """Pods on a node that is not ours do not run in this lower cluster."""
    here = made()
    assert asked.step(here).verb == "create"
    drop(here.lowers[A].namespaces, "default", "")
    assert asked.decision(here) == Decision(depends_on=(namespaces.key_of(A, "default"),))
    home(here)
    drop(here.upper.nodes, A, "")
    assert asked.decision(here) == Decision()
