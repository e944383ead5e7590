"""Where things are found in a world, what is known of a lower as a whole, and a copy for trying things out."""

import pytest
from worldkit import A, B, config_map, marked, put, space, upper_pod, world

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
def test_an_object_below_is_in_its_lowers_cache(kind: Kind, name: str) -> None:
    """Whichever lower's key asks for it."""
    here = world()
    for asking in (A, B):
        assert here.cache(A, kind, asking) is getattr(here.lowers[A], name)


@pytest.mark.parametrize(("kind", "name"), ABOVE.items(), ids=ABOVE.values())
def test_an_object_above_is_in_the_upper_clusters_cache(kind: Kind, name: str) -> None:
    """The same one for every lower."""
    here = world()
    assert here.cache(UPPER, kind, A) is here.cache(UPPER, kind, B) is getattr(here.upper, name)


def test_an_account_below_is_in_the_cache_of_what_is_ours() -> None:
    """That of the accounts `default` only tells that they are there."""
    here = world()
    assert here.cache(A, SERVICE_ACCOUNT, A) is here.lowers[A].more[SERVICE_ACCOUNT]
    assert here.cache(A, SERVICE_ACCOUNT, A) is not here.lowers[A].accounts


def test_an_upper_pod_is_in_the_cache_of_its_node() -> None:
    """Each lower follows the pods bound to its own."""
    here = world()
    assert here.cache(UPPER, POD, A) is here.lowers[A].upper_pods
    assert here.cache(UPPER, POD, B) is here.lowers[B].upper_pods


@pytest.mark.parametrize(("cluster", "kind"), [(UPPER, EVENT), (UPPER, LEASE), (A, EVENT), (A, NODE)])
def test_what_is_not_followed_has_no_cache(cluster: str, kind: Kind) -> None:
    """Nodes below are counted, never written."""
    assert world().cache(cluster, kind, A) is None


def _every(holder: UpperWorld | LowerWorld) -> set[int]:
    return {id(cache) for name in type(holder).__slots__ if isinstance(cache := getattr(holder, name), Cache)}


def test_every_cache_is_given() -> None:
    """One that is left out would not count for what is settled."""
    here = world()
    lower = here.lowers[A]
    above = [*here.upper.caches(), here.upper.policies]
    for holder, given in ((here.upper, above), (lower, [*lower.caches(), *lower.place_caches()])):
        assert {id(cache) for cache in given} == _every(holder)
        assert len(given) == len(_every(holder))


def test_a_lower_is_settled_without_what_placement_needs() -> None:
    """Those are followed only where somebody asks for placement; a copy has its own of them too."""
    lower = world().lowers[A]
    for cache in lower.place_caches():
        cache.mark_stale()
    assert lower.settled
    assert not any(one in list(lower.place_caches()) for one in lower.copy().place_caches())


def test_a_lower_is_settled_when_every_cache_is_complete() -> None:
    """One that is not is enough against it."""
    lower = world().lowers[A]
    assert lower.settled
    for cache in lower.caches():
        cache.mark_stale()
        assert not lower.settled
        cache.replace((), 5)
    assert lower.settled


@pytest.mark.parametrize("side", ["upper_pods", "pods"])
def test_a_lower_is_empty_when_it_certainly_has_no_pods(side: str) -> None:
    """On neither side; and a cache that is not complete is no certainty."""
    lower = world().lowers[A]
    assert lower.is_empty
    cache = getattr(lower, side)
    cache.mark_stale()
    assert not lower.is_empty
    cache.replace((), 5)
    put(cache, upper_pod())
    assert not lower.is_empty


def test_a_pod_that_is_there_because_the_node_is_does_not_count() -> None:
    """A DaemonSet's that did not ask to be mirrored; one that asked counts, and one that ran below."""
    lower = world().lowers[A]
    put(lower.upper_pods, upper_pod("proxy", ownerReferences=DAEMON))
    assert not lower.is_bound
    assert lower.is_empty
    put(lower.upper_pods, upper_pod("proxy", ownerReferences=DAEMON, labels={"virtual-pod": "true"}))
    assert lower.is_bound
    ran = {"containerStatuses": [{"name": "main", "containerID": "c://1", "state": {"running": {}}}]}
    put(lower.upper_pods, upper_pod("proxy", ownerReferences=DAEMON, status=ran))
    assert lower.is_bound
    assert not lower.is_empty


def test_of_a_lower_left_behind_only_the_upper_side_can_be_known() -> None:
    """Nobody can reach the other any more."""
    lower = world().lowers[A]
    lower.connected = False
    lower.pods.mark_stale()
    assert lower.is_empty
    put(lower.upper_pods, upper_pod())
    assert not lower.is_empty


def test_lowers_and_nodes_have_names_of_their_own() -> None:
    """Both are given in the topology."""
    here = world(f"name: {A}, node: {{name: vk-east}}", f"name: {B}")
    assert (here.lowers[A].name, here.lowers[A].node) == (A, "vk-east")
    assert here.virtual_nodes == {"vk-east", B}


def test_namespaces_have_the_same_name_below() -> None:
    """In both directions."""
    lower = world().lowers[A]
    assert lower.namespace("default") == lower.upper_namespace("default") == "default"


def test_a_copy_of_a_world_goes_its_own_way() -> None:
    """Every cache of it is another one with the same content, so that nothing tried out there happens here."""
    here = world()
    put(here.upper.config_maps, config_map())
    put(here.lowers[A].upper_pods, upper_pod())
    here.lowers[A].unreachable_seconds = 60.0
    here.problems[Key("pod", A, "default", "web")] = Problem("Denied", "no room")
    made = here.copy()
    assert made.upper.config_maps.get("default", "settings") is not None
    assert len(made.lowers[A].upper_pods) == 1
    assert made.lowers[A].unreachable_seconds == 60.0
    assert made.problems == {}
    assert (made.topology, made.owner, made.node_address) == (here.topology, here.owner, here.node_address)
    for name in ("upper", *here.lowers):
        mine, theirs = (one.upper if name == "upper" else one.lowers[name] for one in (here, made))
        assert not _every(mine) & _every(theirs)


PREFIXED = "name: lower-a, namespaces: {mapping: prefix}"
LONG = "n" * 63


def test_a_prefix_puts_the_topologys_name_before_a_namespace() -> None:
    """What was asked for once leads back; a name that merely begins so leads nowhere."""
    lower = world(PREFIXED).lowers[A]
    assert lower.upper_namespace("demo-team") == ""
    assert lower.namespace("team") == "demo-team"
    assert lower.upper_namespace("demo-team") == "team"
    assert lower.upper_namespace("team") == ""


def test_a_name_that_gets_too_long_is_cut_and_stays_its_own() -> None:
    """63 characters at most, a valid name, and two long ones that begin alike differ."""
    lower = world(PREFIXED).lowers[A]
    names = [lower.namespace(LONG), lower.namespace(LONG[:-1] + "m"), lower.namespace("a" * 48 + "-" + "b" * 10)]
    assert [len(name) <= 63 and name.startswith("demo-") for name in names] == [True] * 3
    assert len(set(names)) == 3
    assert "--" not in names[2]
    assert lower.upper_namespace(names[0]) == LONG
    assert lower.namespace("x" * 58) == "demo-" + "x" * 58


def test_after_a_restart_the_note_on_a_namespace_leads_back() -> None:
    """Only where the name above gives that very name below, so that a forged note misleads nobody."""
    lower = world(PREFIXED).lowers[A]
    mine = lower.namespace(LONG)
    lower.spaces.clear()
    put(lower.namespaces, marked(space(mine, annotations={UPPER_NAMESPACE: LONG}), "above"))
    put(lower.namespaces, marked(space("demo-other", annotations={UPPER_NAMESPACE: LONG}), "above"))
    assert lower.upper_namespace(mine) == LONG
    assert lower.upper_namespace("demo-other") == ""


def test_a_copy_of_a_lower_remembers_its_names_by_itself() -> None:
    """What is tried out on the copy is not remembered here."""
    lower = world(PREFIXED).lowers[A]
    lower.namespace("team")
    copy = lower.copy()
    copy.namespace("tried")
    assert copy.upper_namespace("demo-team") == "team"
    assert lower.upper_namespace("demo-tried") == ""
