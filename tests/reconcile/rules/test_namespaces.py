"""Tests of lower namespaces: created when a pod needs one, with the upper Pod Security labels, and never taken over."""

import orjson
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
    delete_observed,
    make_namespace,
    make_object,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    relist_without,
    with_managed_fields,
    with_owner_marks,
)

from tensile.kube.store import Transformed
from tensile.names import OWNER, OWNER_NAME, PROVISIONER, UPPER_NAMESPACE, UPPER_UID
from tensile.objects import CLAIM, NAMESPACE, Manifest, Ref
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules.claims import SELECTED_NODE
from tensile.reconcile.rules.namespaces import NAME, NamespaceFacts, NamespaceRule, key_of, ready, transform
from tensile.reconcile.world import World

RULE = NamespaceRule()
KEY = key_of(A, "default")
ASKED = RuleUnderTest(RULE, KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.affected_keys
ENFORCE = "pod-security.kubernetes.io/enforce"
ENDING = {"deletionTimestamp": "2026-03-01T12:00:00Z"}


def needed(**labels: str) -> World:
    """Create a world with a pod bound to lower-a in namespace `default`, whose upper labels include these."""
    world = make_world()
    add_virtual_node(world)
    put(world.upper.namespaces, make_namespace(uid="above", labels={"team": "web", **labels}))
    put(world.lowers[A].upper_pods, make_upper_pod())
    return world


def own_namespace(**labels: str) -> Manifest:
    """Return the lower namespace as the engine made it."""
    return with_owner_marks(
        make_namespace(uid="below", labels=labels, annotations={UPPER_NAMESPACE: "default"}), "above"
    )


def test_a_namespace_is_created_for_a_pod() -> None:
    """It has our marks and the upper Pod Security labels, because all would be allowed without them.

    Other labels are not copied.
    """
    step = the_step(needed(**{ENFORCE: "restricted"}))
    assert (step.verb, step.ref) == ("create", Ref(A, NAMESPACE, "", "default"))
    assert step.body is not None
    assert step.body["metadata"] == {
        "name": "default",
        "labels": {ENFORCE: "restricted", "kubernetes.io/metadata.name": "default", OWNER: OWNER_HERE.mark},
        "annotations": {OWNER_NAME: "demo", UPPER_UID: "above", UPPER_NAMESPACE: "default"},
    }


def test_no_namespace_is_created_for_pods_of_a_node_that_is_not_ours() -> None:
    """Such a node may be a real machine.

    An existing namespace with our marks is still updated.
    """
    world = needed(**{ENFORCE: "restricted"})
    delete_observed(world.upper.nodes, A, "")
    assert planned(world) == Plan(())
    put(world.upper.nodes, make_object("Node", A, ""))
    assert planned(world) == Plan(())
    put(world.lowers[A].namespaces, own_namespace())
    assert the_step(world).verb == "patch"


def test_a_namespace_is_created_for_a_claim_of_a_waiting_pod() -> None:
    """The scheduler binds the pod only once its volume exists.

    Without the controller nothing is created.
    """
    world = make_world()
    add_virtual_node(world)
    put(world.upper.namespaces, make_namespace(uid="above"))
    notes = {SELECTED_NODE: A, "volume.kubernetes.io/storage-provisioner": PROVISIONER}
    put(world.upper.more[CLAIM], {**make_object("PersistentVolumeClaim", "data", annotations=notes), "spec": {}})
    assert the_step(world).verb == "create"
    apply_topology(world, more="controllers: []")
    assert planned(world) == Plan(())


def test_an_excluded_namespace_is_not_created() -> None:
    """No pod of it is mirrored."""
    world = needed()
    apply_topology(world, more="excludeNamespaces: [default]")
    assert planned(world) == Plan(())


def test_a_namespace_that_the_upper_cluster_lacks_is_not_created() -> None:
    """Its labels are unknown until the watch reports it."""
    world = needed()
    relist_without(world.upper.namespaces, "default", "")
    assert planned(world) == Plan(())


def test_no_namespace_is_created_before_the_cache_is_synced() -> None:
    """A namespace that the cache lacks may exist."""
    world = needed()
    world.lowers[A].namespaces.mark_stale()
    assert planned(world) == Plan(())


def test_our_labels_follow_the_upper_namespace() -> None:
    """A stricter profile applies in the lower cluster too, and labels of other clients stay."""
    world = needed(**{ENFORCE: "restricted"})
    put(world.lowers[A].namespaces, own_namespace(**{ENFORCE: "privileged"}))
    change_as_other_client(
        world.lowers[A].namespaces, "default", lambda one: one["metadata"]["labels"].update(theirs="yes"), ""
    )
    step = the_step(world)
    assert (step.verb, step.uid) == ("patch", "below")
    assert [(one["op"], one["path"], one["value"]) for one in step.operations] == [
        ("replace", "/metadata/labels/pod-security.kubernetes.io~1enforce", "restricted")
    ]


def test_a_label_that_is_removed_from_the_upper_namespace_is_removed_from_the_lower_one() -> None:
    """This engine wrote it."""
    world = needed()
    put(world.lowers[A].namespaces, own_namespace(**{ENFORCE: "privileged"}))
    (operation,) = the_step(world).operations
    assert (operation["op"], operation["path"]) == ("remove", "/metadata/labels/pod-security.kubernetes.io~1enforce")


def test_our_labels_are_updated_while_the_namespace_has_no_pod() -> None:
    """Otherwise the next pod would start under the old profile.

    They are not updated without our Node, or if the namespace is excluded.
    """
    world = needed(**{ENFORCE: "restricted"})
    put(world.lowers[A].namespaces, own_namespace(**{ENFORCE: "privileged"}))
    delete_observed(world.lowers[A].upper_pods, "web")
    assert list(RULE.keys(world, A)) == [KEY]
    assert the_step(world).verb == "patch"
    node = world.upper.nodes.get("", A)
    assert node is not None
    delete_observed(world.upper.nodes, A, "")
    assert planned(world) == Plan(())
    put(world.upper.nodes, node.manifest())
    apply_topology(world, more="excludeNamespaces: [default]")
    assert planned(world) == Plan(())


def test_a_namespace_that_was_created_again_changes_nothing_without_a_pod() -> None:
    """The lower one may contain data of earlier pods, and no pod needs it for the new one yet."""
    world = needed(**{ENFORCE: "restricted"})
    put(
        world.lowers[A].namespaces,
        with_owner_marks(make_namespace(uid="below", annotations={UPPER_NAMESPACE: "default"}), "earlier"),
    )
    delete_observed(world.lowers[A].upper_pods, "web")
    assert planned(world) == Plan(())


@pytest.mark.parametrize(
    "theirs",
    [
        make_namespace(uid="below"),
        make_namespace(uid="below", labels={OWNER: OWNER_HERE.mark}),
        with_owner_marks(make_namespace(uid="below"), "above", STRANGER),
    ],
    ids=["without marks", "with a forged label", "of another owner"],
)
def test_a_lower_namespace_of_another_client_is_used_unchanged(theirs: Manifest) -> None:
    """It is no conflict either."""
    world = needed(**{ENFORCE: "restricted"})
    put(world.lowers[A].namespaces, theirs)
    put(world.lowers[A].accounts, make_service_account())
    assert planned(world) == Plan(())
    assert ready(world.lowers[A], "default") == "below"


def test_an_upper_namespace_that_was_created_again_marks_the_lower_one_again() -> None:
    """The lower namespace is not replaced, because it may contain objects of other clients."""
    world = needed()
    earlier = make_namespace(uid="below", annotations={UPPER_NAMESPACE: "default"})
    put(world.lowers[A].namespaces, with_owner_marks(earlier, "an earlier one"))
    step = the_step(world)
    assert step.verb == "patch"
    assert [one["value"] for one in step.operations] == ["above"]


def test_a_namespace_is_ready_once_its_default_service_account_exists() -> None:
    """Kubernetes refuses pods until then."""
    world = needed()
    lower = world.lowers[A]
    assert ready(lower, "default") == ""
    put(lower.namespaces, own_namespace())
    assert ready(lower, "default") == ""
    put(lower.accounts, make_service_account(name="other"))
    assert ready(lower, "default") == ""
    put(lower.accounts, make_service_account())
    assert ready(lower, "default") == "below"


def test_each_namespace_with_a_pod_has_one_key() -> None:
    """The number of its pods does not matter."""
    world = make_world()
    put(
        world.lowers[A].upper_pods,
        make_upper_pod("one"),
        make_upper_pod("two"),
        make_upper_pod("three", namespace="other"),
    )
    assert sorted(RULE.keys(world, A)) == [key_of(A, "default"), key_of(A, "other")]
    assert list(RULE.keys(world, B)) == []
    assert RULE.name == KEY.rule == NAME


def test_a_change_of_an_upper_namespace_enqueues_its_key_in_every_lower() -> None:
    """A claim may wait for it, or the lower namespace may exist for earlier pods."""
    world = needed()
    entry = world.upper.namespaces.get("", "default")
    for lower in (A, B):
        assert heard(world, "upper.namespaces", None, entry, lower) == ["default"]


def test_a_change_of_a_lower_namespace_or_its_service_account_enqueues_its_key() -> None:
    """Creations and deletions are watched."""
    world = needed()
    add_namespace(world)
    lower = world.lowers[A]
    assert heard(world, "namespaces", lower.namespaces.get("", "default"), None, A) == ["default"]
    assert heard(world, "accounts", None, lower.accounts.get("default", "default"), A) == ["default"]


def test_a_digest_shows_whether_a_namespace_is_terminating() -> None:
    """It has the bytes of the namespace."""
    raw = orjson.dumps(make_namespace())
    assert transform(raw) == Transformed(raw, NamespaceFacts())
    assert transform(orjson.dumps(make_namespace(**ENDING))).facts == NamespaceFacts(ending=True)


def test_a_digest_has_the_owner_and_the_upper_namespace() -> None:
    """Only marks that an engine wrote count, and the same marks by another client do not."""
    assert transform(orjson.dumps(own_namespace())).facts == NamespaceFacts(False, OWNER_HERE.mark, "above", "default")
    by_hand = own_namespace()
    by_hand["metadata"]["managedFields"][0]["manager"] = "kubectl-edit"
    assert transform(orjson.dumps(by_hand)).facts == NamespaceFacts()


PREFIXED = "name: lower-a, namespaces: {mapping: prefix}"


def prefixed_world() -> World:
    """Create the same world with the prefix mapping of namespaces."""
    world = make_world(PREFIXED)
    add_virtual_node(world)
    put(world.upper.namespaces, make_namespace(uid="above"))
    put(world.lowers[A].upper_pods, make_upper_pod())
    return world


def test_with_a_prefix_the_lower_namespace_has_the_topologys_name() -> None:
    """Its annotation has the upper name, which a truncated name does not reveal."""
    world = prefixed_world()
    step = the_step(world)
    assert (step.verb, step.ref) == ("create", Ref(A, NAMESPACE, "", "demo-default"))
    assert step.body is not None
    assert step.body["metadata"]["annotations"][UPPER_NAMESPACE] == "default"
    put(
        world.lowers[A].namespaces,
        with_managed_fields({**step.body, "metadata": {**step.body["metadata"], "uid": "below"}}),
    )
    put(world.lowers[A].accounts, make_service_account("demo-default"))
    assert planned(world) == Plan(())
    assert ready(world.lowers[A], "default") == "below"


@pytest.mark.parametrize(
    "space_below",
    [
        make_namespace("demo-default", uid="below"),
        with_owner_marks(
            make_namespace("demo-default", uid="below", annotations={UPPER_NAMESPACE: "default"}), "above", STRANGER
        ),
    ],
    ids=["without marks", "of another owner"],
)
def test_with_a_prefix_a_namespace_of_another_owner_is_a_conflict(space_below: Manifest) -> None:
    """It is reported and not changed, and no pod is created in it."""
    world = prefixed_world()
    put(world.lowers[A].namespaces, space_below)
    put(world.lowers[A].accounts, make_service_account("demo-default"))
    found = planned(world)
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    assert "Namespace demo-default exists in lower cluster lower-a and has another owner" in found.problem.message
    assert ready(world.lowers[A], "default") == ""


def test_two_namespaces_with_the_same_truncated_name_are_distinguished() -> None:
    """The later one has a conflict, and the namespace of the other is not changed."""
    world = prefixed_world()
    theirs = with_owner_marks(
        make_namespace("demo-default", uid="below", annotations={UPPER_NAMESPACE: "elsewhere"}), "its own"
    )
    put(world.lowers[A].namespaces, theirs)
    decision = RULE.decide(KEY, world)
    assert decision.wanted == ()
    assert decision.problem is not None
    assert decision.problem.reason == "NameConflict"
    assert "belongs to upper namespace elsewhere, not to default" in decision.problem.message
