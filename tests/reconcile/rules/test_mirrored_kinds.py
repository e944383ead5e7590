"""What holds for each mirrored kind of the engine: nothing is written before pods can use it."""

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
    """Make a world where a pod refers to a ConfigMap that the upper cluster has."""
    here = world()
    raised(here)
    home(here)
    put(here.upper.config_maps, config_map())
    put(here.lowers[A].upper_pods, upper_pod(spec=referring(config_maps=["settings"])))
    return here


def without_account() -> World:
    """Make a world where the account of a pod has no copy yet."""
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
def test_a_copy_waits_for_its_namespace_and_its_node(asked: Asked, made: Callable[[], World]) -> None:
    """Pods of a node that is not ours run somewhere else."""
    here = made()
    assert asked.step(here).verb == "create"
    drop(here.lowers[A].namespaces, "default", "")
    assert asked.decision(here) == Decision(depends_on=(namespaces.key_of(A, "default"),))
    home(here)
    drop(here.upper.nodes, A, "")
    assert asked.decision(here) == Decision()
