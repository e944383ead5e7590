"""Tests of the caches of a world, the state of a lower as a whole, and copies of a world."""

import pytest
from worldkit import A, B, config_map, make_namespace, make_upper_pod, make_world, put, with_owner_marks

from tensile.kube.store import Cache
from tensile.names import UPPER_NAMESPACE
from tensile.objects import CONFIG_MAP, EVENT, LEASE, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT, UPPER, Kind
from tensile.reconcile.world import Key, LowerWorld, Problem, UpperWorld

BELOW = {
    POD: "pods",
    NAMESPACE: "namespaces",
    CONFIG_MAP: "config_maps",
    SECRET: "secrets",
}
DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "proxy", "uid": "d", "controller": True}]
ABOVE = {NODE: "nodes", NAMESPACE: "namespaces", CONFIG_MAP: "config_maps", SECRET: "secrets"}


@pytest.mark.parametrize(("kind", "name"), BELOW.items(), ids=BELOW.values())
def test_the_cache_of_a_lower_object_is_that_of_its_lower(kind: Kind, name: str) -> None:
    """It does not depend on the lower whose key uses it."""
    world = make_world()
    for asking in (A, B):
        assert world.cache(A, kind, asking) is getattr(world.lowers[A], name)


@pytest.mark.parametrize(("kind", "name"), ABOVE.items(), ids=ABOVE.values())
def test_the_cache_of_an_upper_object_is_the_same_for_every_lower(kind: Kind, name: str) -> None:
    """The upper cluster has one cache of each of these kinds."""
    world = make_world()
    assert world.cache(UPPER, kind, A) is world.cache(UPPER, kind, B) is getattr(world.upper, name)


def test_the_cache_of_a_lower_service_account_is_that_of_mirrored_accounts() -> None:
    """The other cache only shows which `default` accounts exist."""
    world = make_world()
    assert world.cache(A, SERVICE_ACCOUNT, A) is world.lowers[A].more[SERVICE_ACCOUNT]
    assert world.cache(A, SERVICE_ACCOUNT, A) is not world.lowers[A].accounts


def test_the_cache_of_an_upper_pod_is_that_of_its_node() -> None:
    """Each lower watches the upper pods that are bound to its own node."""
    world = make_world()
    assert world.cache(UPPER, POD, A) is world.lowers[A].upper_pods
    assert world.cache(UPPER, POD, B) is world.lowers[B].upper_pods


@pytest.mark.parametrize(("cluster", "kind"), [(UPPER, EVENT), (UPPER, LEASE), (A, EVENT), (A, NODE)])
def test_objects_that_are_not_watched_have_no_cache(cluster: str, kind: Kind) -> None:
    """Nodes of a lower cluster are counted, but never written."""
    assert make_world().cache(cluster, kind, A) is None


def _every(holder: UpperWorld | LowerWorld) -> set[int]:
    return {id(cache) for name in type(holder).__slots__ if isinstance(cache := getattr(holder, name), Cache)}


def test_caches_returns_every_cache() -> None:
    """A cache that is missing from it would not count for whether a lower is synced."""
    world = make_world()
    lower = world.lowers[A]
    upper_objects = [*world.upper.caches(), world.upper.policies]
    for holder, given in ((world.upper, upper_objects), (lower, [*lower.caches(), *lower.place_caches()])):
        assert {id(cache) for cache in given} == _every(holder)
        assert len(given) == len(_every(holder))


def test_the_caches_for_placement_do_not_count_for_whether_a_lower_is_settled() -> None:
    """They are only watched if placement is used, and a copy has its own ones."""
    lower = make_world().lowers[A]
    for cache in lower.place_caches():
        cache.mark_stale()
    assert lower.settled
    assert not any(one in list(lower.place_caches()) for one in lower.copy().place_caches())


def test_a_lower_is_settled_if_every_cache_is_synced() -> None:
    """A single cache that is not synced makes it unsettled."""
    lower = make_world().lowers[A]
    assert lower.settled
    for cache in lower.caches():
        cache.mark_stale()
        assert not lower.settled
        cache.replace((), 5)
    assert lower.settled


@pytest.mark.parametrize("side", ["upper_pods", "pods"])
def test_a_lower_is_empty_if_it_certainly_has_no_pods(side: str) -> None:
    """There are no pods on either side, and both caches are synced."""
    lower = make_world().lowers[A]
    assert lower.is_empty
    cache = getattr(lower, side)
    cache.mark_stale()
    assert not lower.is_empty
    cache.replace((), 5)
    put(cache, make_upper_pod())
    assert not lower.is_empty


def test_a_daemon_pod_of_the_virtual_node_does_not_count() -> None:
    """A DaemonSet's pod counts if its label requests mirroring, or if it has run in the lower cluster."""
    lower = make_world().lowers[A]
    put(lower.upper_pods, make_upper_pod("proxy", ownerReferences=DAEMON))
    assert not lower.is_bound
    assert lower.is_empty
    put(lower.upper_pods, make_upper_pod("proxy", ownerReferences=DAEMON, labels={"virtual-pod": "true"}))
    assert lower.is_bound
    ran = {"containerStatuses": [{"name": "main", "containerID": "c://1", "state": {"running": {}}}]}
    put(lower.upper_pods, make_upper_pod("proxy", ownerReferences=DAEMON, status=ran))
    assert lower.is_bound
    assert not lower.is_empty


def test_only_the_upper_pods_count_for_whether_a_disconnected_lower_is_empty() -> None:
    """The engine cannot read the other side."""
    lower = make_world().lowers[A]
    lower.connected = False
    lower.pods.mark_stale()
    assert lower.is_empty
    put(lower.upper_pods, make_upper_pod())
    assert not lower.is_empty


def test_a_lower_and_its_node_can_have_different_names() -> None:
    """The topology has both names."""
    world = make_world(f"name: {A}, node: {{name: vk-east}}", f"name: {B}")
    assert (world.lowers[A].name, world.lowers[A].node) == (A, "vk-east")
    assert world.virtual_nodes == {"vk-east", B}


def test_namespaces_have_the_same_name_in_the_lower_cluster_by_default() -> None:
    """The mapping is the same in both directions."""
    lower = make_world().lowers[A]
    assert lower.namespace("default") == lower.upper_namespace("default") == "default"


def test_a_copy_of_a_world_is_independent() -> None:
    """Each cache is another one with the same content, so changes of the copy do not affect the original."""
    world = make_world()
    put(world.upper.config_maps, config_map())
    put(world.lowers[A].upper_pods, make_upper_pod())
    world.lowers[A].unreachable_seconds = 60.0
    world.problems[Key("pod", A, "default", "web")] = Problem("Denied", "no room")
    made = world.copy()
    assert made.upper.config_maps.get("default", "settings") is not None
    assert len(made.lowers[A].upper_pods) == 1
    assert made.lowers[A].unreachable_seconds == 60.0
    assert made.problems == {}
    assert (made.topology, made.owner, made.node_address) == (world.topology, world.owner, world.node_address)
    for name in ("upper", *world.lowers):
        mine, theirs = (one.upper if name == "upper" else one.lowers[name] for one in (world, made))
        assert not _every(mine) & _every(theirs)


PREFIXED = "name: lower-a, namespaces: {mapping: prefix}"
LONG = "n" * 63


def test_the_prefix_mapping_puts_the_topologys_name_before_a_namespace() -> None:
    """A name that was mapped before is mapped back, but another name with the prefix is not."""
    lower = make_world(PREFIXED).lowers[A]
    assert lower.upper_namespace("demo-team") == ""
    assert lower.namespace("team") == "demo-team"
    assert lower.upper_namespace("demo-team") == "team"
    assert lower.upper_namespace("team") == ""


def test_a_prefixed_namespace_name_that_is_too_long_is_truncated_and_stays_unique() -> None:
    """It is valid with at most 63 characters, and two long names with the same beginning differ."""
    lower = make_world(PREFIXED).lowers[A]
    names = [lower.namespace(LONG), lower.namespace(LONG[:-1] + "m"), lower.namespace("a" * 48 + "-" + "b" * 10)]
    assert [len(name) <= 63 and name.startswith("demo-") for name in names] == [True] * 3
    assert len(set(names)) == 3
    assert "--" not in names[2]
    assert lower.upper_namespace(names[0]) == LONG
    assert lower.namespace("x" * 58) == "demo-" + "x" * 58


def test_the_annotation_of_a_lower_namespace_leads_to_its_upper_name_after_a_restart() -> None:
    """It only counts if the upper name maps to that very name, so a forged annotation has no effect."""
    lower = make_world(PREFIXED).lowers[A]
    mine = lower.namespace(LONG)
    lower.namespace_origins.clear()
    put(lower.namespaces, with_owner_marks(make_namespace(mine, annotations={UPPER_NAMESPACE: LONG}), "above"))
    put(lower.namespaces, with_owner_marks(make_namespace("demo-other", annotations={UPPER_NAMESPACE: LONG}), "above"))
    assert lower.upper_namespace(mine) == LONG
    assert lower.upper_namespace("demo-other") == ""


def test_a_copy_of_a_lower_has_its_own_namespace_names() -> None:
    """A name that is mapped in the copy is not known to the original."""
    lower = make_world(PREFIXED).lowers[A]
    lower.namespace("team")
    copy = lower.copy()
    copy.namespace("tried")
    assert copy.upper_namespace("demo-team") == "team"
    assert lower.upper_namespace("demo-tried") == ""
