"""Tests of the caches and feeds of each cluster: every required object once, and only facts of foreign objects."""

import orjson
import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    config_map,
    make_lower_node,
    make_lower_pod,
    make_namespace,
    make_service_account,
    make_topology,
    make_upper_pod,
    secret,
    with_owner_marks,
)

from tensile.engine.caches import bound_feed, lower_feeds, lower_world, upper_feeds, upper_world
from tensile.kube.fleet import InformerSpec
from tensile.objects import CONFIG_MAP, NODE, POD, SECRET, UPPER, Manifest
from tensile.reconcile import mirrored_kinds
from tensile.reconcile.dryrun.patch import is_selected
from tensile.reconcile.pods.index import PodFacts
from tensile.reconcile.rules.namespaces import NamespaceFacts
from tensile.reconcile.world import LowerWorld

LOWER_KINDS = ["Pod", "Pod", "Namespace", "ServiceAccount", "ConfigMap", "Secret", "Node"]


def lower() -> LowerWorld:
    """Return the caches of lower-a, without controllers."""
    return lower_world(make_topology("name: lower-a, controllers: []").lowers[0])


def takers(feeds: list[InformerSpec], kind: str, manifest: Manifest) -> list[InformerSpec]:
    """Return the feeds whose selection includes an object."""
    return [feed for feed in feeds if feed.kind.name == kind and is_selected(manifest, feed.selection)]


def test_every_cache_has_exactly_one_feed() -> None:
    """A cache without a feed would never be complete, and no decision would be made."""
    lower_state, upper = lower_world(make_topology("name: lower-a, controllers: []").lowers[0]), upper_world()
    feeds = [bound_feed(lower_state), *lower_feeds(lower_state, OWNER_HERE)]
    assert {id(feed.cache) for feed in feeds} == {id(cache) for cache in lower_state.caches()}
    assert len(feeds) == len(list(lower_state.caches()))
    upper_objects = upper_feeds(upper, OWNER_HERE, ())
    assert {id(feed.cache) for feed in upper_objects if not feed.spare} == {id(cache) for cache in upper.caches()}
    assert [feed.cache for feed in upper_objects if feed.spare] == [upper.policies]
    assert [feed.kind.name for feed in lower_feeds(lower_state, OWNER_HERE)] == LOWER_KINDS


def test_the_caches_for_placement_are_only_fed_if_placement_is_enabled() -> None:
    """They are a second view of the nodes and of the foreign pods, which costs nothing while it is disabled."""
    lower_state = lower()
    before, feeds = lower_feeds(lower_state, OWNER_HERE), lower_feeds(lower_state, OWNER_HERE, places=True)
    more = feeds[len(before) :]
    assert [(feed.kind, id(feed.cache)) for feed in more] == [
        (NODE, id(lower_state.place_nodes)),
        (POD, id(lower_state.place_pods)),
    ]
    assert more[1].selection == next(feed.selection for feed in feeds if feed.cache is lower_state.foreign_pods)


def test_each_feed_names_its_cluster() -> None:
    """Bound pods come from the upper cluster, although their cache belongs to the lower."""
    assert bound_feed(lower()).cluster == UPPER
    assert {feed.cluster for feed in lower_feeds(lower(), OWNER_HERE)} == {A}
    assert {feed.cluster for feed in upper_feeds(upper_world(), OWNER_HERE, ())} == {UPPER}


def test_only_upper_pods_that_are_bound_to_the_virtual_node_are_watched() -> None:
    """The name of the node counts, which can differ from that of the lower."""
    spec = make_topology("name: lower-a, node: {name: edge-1}").lowers[0]
    selection = bound_feed(lower_world(spec)).selection
    assert is_selected(make_upper_pod(spec={"nodeName": "edge-1"}), selection)
    assert not is_selected(make_upper_pod(spec={"nodeName": "lower-a"}), selection)


@pytest.mark.parametrize(
    "pod",
    [
        make_upper_pod(),
        make_lower_pod(make_upper_pod()),
        with_owner_marks(make_upper_pod(), "one", STRANGER),
        make_upper_pod(labels={"owner": "x"}),
    ],
    ids=["unmarked", "this owner's", "another owner's", "another label"],
)
def test_each_lower_pod_is_watched_by_exactly_one_feed(pod: Manifest) -> None:
    """Otherwise its requests would be counted twice, or its name would be considered unused."""
    lower_state = lower()
    (feed,) = takers(lower_feeds(lower_state, OWNER_HERE), "Pod", pod)
    ours = pod["metadata"].get("labels", {}).get("tensile-kube.io/owner") == OWNER_HERE.mark
    assert feed.cache is (lower_state.pods if ours else lower_state.foreign_pods)


@pytest.mark.parametrize("kind", [CONFIG_MAP, SECRET])
def test_only_own_config_maps_and_secrets_of_a_lower_are_watched(kind: object) -> None:
    """The engine must not read the content of foreign ones."""
    made = config_map() if kind == CONFIG_MAP else secret()
    feeds = lower_feeds(lower(), OWNER_HERE)
    assert takers(feeds, made["kind"], made) == []
    assert takers(feeds, made["kind"], with_owner_marks(made, "one", STRANGER)) == []
    assert len(takers(feeds, made["kind"], with_owner_marks(made, "one"))) == 1


def test_only_virtual_nodes_of_the_upper_cluster_are_watched() -> None:
    """Those of other engines show whether these run; each real node is updated every ten seconds."""
    feeds = upper_feeds(upper_world(), OWNER_HERE, ())
    assert takers(feeds, "Node", make_lower_node()) == []
    assert (
        len(takers(feeds, "Node", with_owner_marks(make_lower_node(), "one", labels={"type": "virtual-kubelet"}))) == 1
    )


def test_helm_release_secrets_are_not_watched() -> None:
    """They are large, and no pod refers to them."""
    feeds = upper_feeds(upper_world(), OWNER_HERE, ())
    assert takers(feeds, "Secret", secret(kind="helm.sh/release.v1")) == []
    assert len(takers(feeds, "Secret", secret())) == 1


def test_only_the_replaced_pod_is_kept_of_a_pod_that_a_descheduler_created() -> None:
    """Such a pod is watched whether it has a node or not, and its content is not stored."""
    upper = upper_world()
    feeds = upper_feeds(upper, OWNER_HERE, ())
    assert takers(feeds, "Pod", make_upper_pod()) == []
    made = make_upper_pod(labels={"create-by-descheduler": "true"}, annotations={"tensile-kube.io/replaces": "old"})
    assert len(takers(feeds, "Pod", made)) == 1
    upper.remade.put(stored(made))
    assert [(entry.raw, entry.facts) for entry in upper.remade] == [(b"", "old")]


def test_only_the_default_service_account_is_watched() -> None:
    """Its existence shows that a namespace is ready for pods."""
    feeds = lower_feeds(lower(), OWNER_HERE)
    assert len(takers(feeds, "ServiceAccount", make_service_account())) == 1
    assert takers(feeds, "ServiceAccount", make_service_account(name="builder")) == []


def test_foreign_objects_are_stored_as_facts_and_own_objects_completely() -> None:
    """Of a ServiceAccount, only its existence is stored."""
    lower_state = lower()
    lower_state.pods.put(stored(make_lower_pod(make_upper_pod())))
    lower_state.foreign_pods.put(stored(make_upper_pod()))
    lower_state.accounts.put(stored(make_service_account()))
    lower_state.namespaces.put(stored(make_namespace()))
    ours = lower_state.pods.get("default", "web")
    assert ours is not None
    assert ours.raw
    assert isinstance(ours.facts, PodFacts)
    foreign, default = lower_state.foreign_pods.get("default", "web"), lower_state.accounts.get("default", "default")
    assert foreign is not None
    assert (foreign.raw, bool(foreign.facts)) == (b"", True)
    assert default is not None
    assert (default.raw, default.facts) == (b"", None)
    assert [entry.facts for entry in lower_state.namespaces] == [NamespaceFacts()]


def test_the_last_state_of_a_deleted_own_lower_pod_is_kept() -> None:
    """Its last status still has to be mirrored; the last state of foreign and upper pods is not kept."""
    lower_state = lower()
    for cache in (lower_state.pods, lower_state.foreign_pods, lower_state.upper_pods):
        cache.put(stored(make_upper_pod(), 5))
        cache.remove(stored(make_upper_pod(status={"phase": "Succeeded"}), 6))
    assert orjson.loads(lower_state.pods.last("default", "web"))["status"]["phase"] == "Succeeded"
    assert lower_state.foreign_pods.last("default", "web") == lower_state.upper_pods.last("default", "web") == b""


def stored(manifest: Manifest, version: int = 5) -> bytes:
    """Return an object as the API sends it."""
    return orjson.dumps({**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(version)}})


def test_the_kinds_of_a_controller_are_only_watched_if_it_is_enabled() -> None:
    """A disabled controller needs no memory and no permissions."""
    for controller in mirrored_kinds.FOLLOWS:
        above, below = (set(mirrored_kinds.watched_kinds((controller,), is_upper=side)) for side in (True, False))
        spec = make_topology(f"name: lower-a, controllers: [{controller}]").lowers[0]
        upper, lower_state = upper_world(), lower_world(spec)
        fed = {feed.kind for feed in upper_feeds(upper, OWNER_HERE, (controller,))}
        assert fed - {feed.kind for feed in upper_feeds(upper, OWNER_HERE, ())} == above
        fed = {id(feed.cache) for feed in lower_feeds(lower_state, OWNER_HERE)}
        assert fed - {id(cache) for cache in lower_state.caches()} == {id(lower_state.more[kind]) for kind in below}


def test_each_kind_of_a_controller_has_its_own_cache_on_each_side() -> None:
    """A cache is not synced until it is fed."""
    lower_state, upper = lower(), upper_world()
    assert set(lower_state.more) == set(mirrored_kinds.watched_kinds(mirrored_kinds.FOLLOWS, is_upper=False))
    assert set(upper.more) == set(mirrored_kinds.watched_kinds(mirrored_kinds.FOLLOWS, is_upper=True))
    assert not any(cache.synced for cache in (*lower_state.more.values(), *upper.more.values()))
