"""Tests of lower namespaces: created when a pod needs one, with the upper Pod Security labels, and never taken over."""

import orjson
import pytest
from rulekit import Asked
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    account,
    changed,
    drop,
    home,
    lose,
    marked,
    put,
    raised,
    reload,
    space,
    thing,
    upper_pod,
    world,
    written,
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
ASKED = Asked(RULE, KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.heard
ENFORCE = "pod-security.kubernetes.io/enforce"
ENDING = {"deletionTimestamp": "2026-03-01T12:00:00Z"}


def needed(**labels: str) -> World:
    """Create a world with a pod bound to lower-a in namespace `default`, whose upper labels include these."""
    here = world()
    raised(here)
    put(here.upper.namespaces, space(uid="above", labels={"team": "web", **labels}))
    put(here.lowers[A].upper_pods, upper_pod())
    return here


def ours(**labels: str) -> Manifest:
    """Return the lower namespace as the engine made it."""
    return marked(space(uid="below", labels=labels, annotations={UPPER_NAMESPACE: "default"}), "above")


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
    here = needed(**{ENFORCE: "restricted"})
    drop(here.upper.nodes, A, "")
    assert planned(here) == Plan(())
    put(here.upper.nodes, thing("Node", A, ""))
    assert planned(here) == Plan(())
    put(here.lowers[A].namespaces, ours())
    assert the_step(here).verb == "patch"


def test_a_namespace_is_created_for_a_claim_of_a_waiting_pod() -> None:
    """The scheduler binds the pod only once its volume exists.

    Without the controller nothing is created.
    """
    here = world()
    raised(here)
    put(here.upper.namespaces, space(uid="above"))
    notes = {SELECTED_NODE: A, "volume.kubernetes.io/storage-provisioner": PROVISIONER}
    put(here.upper.more[CLAIM], {**thing("PersistentVolumeClaim", "data", annotations=notes), "spec": {}})
    assert the_step(here).verb == "create"
    reload(here, more="controllers: []")
    assert planned(here) == Plan(())


def test_an_excluded_namespace_is_not_created() -> None:
    """No pod of it is mirrored."""
    here = needed()
    reload(here, more="excludeNamespaces: [default]")
    assert planned(here) == Plan(())


def test_a_namespace_that_the_upper_cluster_lacks_is_not_created() -> None:
    """Its labels are unknown until the watch reports it."""
    here = needed()
    lose(here.upper.namespaces, "default", "")
    assert planned(here) == Plan(())


def test_no_namespace_is_created_before_the_cache_is_synced() -> None:
    """A namespace that the cache lacks may exist."""
    here = needed()
    here.lowers[A].namespaces.mark_stale()
    assert planned(here) == Plan(())


def test_our_labels_follow_the_upper_namespace() -> None:
    """A stricter profile applies in the lower cluster too, and labels of other clients stay."""
    here = needed(**{ENFORCE: "restricted"})
    put(here.lowers[A].namespaces, ours(**{ENFORCE: "privileged"}))
    changed(here.lowers[A].namespaces, "default", lambda one: one["metadata"]["labels"].update(theirs="yes"), "")
    step = the_step(here)
    assert (step.verb, step.uid) == ("patch", "below")
    assert [(one["op"], one["path"], one["value"]) for one in step.operations] == [
        ("replace", "/metadata/labels/pod-security.kubernetes.io~1enforce", "restricted")
    ]


def test_a_label_that_is_removed_from_the_upper_namespace_is_removed_from_the_lower_one() -> None:
    """This engine wrote it."""
    here = needed()
    put(here.lowers[A].namespaces, ours(**{ENFORCE: "privileged"}))
    (operation,) = the_step(here).operations
    assert (operation["op"], operation["path"]) == ("remove", "/metadata/labels/pod-security.kubernetes.io~1enforce")


def test_our_labels_are_updated_while_the_namespace_has_no_pod() -> None:
    """Otherwise the next pod would start under the old profile.

    They are not updated without our Node, or if the namespace is excluded.
    """
    here = needed(**{ENFORCE: "restricted"})
    put(here.lowers[A].namespaces, ours(**{ENFORCE: "privileged"}))
    drop(here.lowers[A].upper_pods, "web")
    assert list(RULE.keys(here, A)) == [KEY]
    assert the_step(here).verb == "patch"
    node = here.upper.nodes.get("", A)
    assert node is not None
    drop(here.upper.nodes, A, "")
    assert planned(here) == Plan(())
    put(here.upper.nodes, node.manifest())
    reload(here, more="excludeNamespaces: [default]")
    assert planned(here) == Plan(())


def test_a_namespace_that_was_created_again_changes_nothing_without_a_pod() -> None:
    """The lower one may contain data of earlier pods, and no pod needs it for the new one yet."""
    here = needed(**{ENFORCE: "restricted"})
    put(here.lowers[A].namespaces, marked(space(uid="below", annotations={UPPER_NAMESPACE: "default"}), "earlier"))
    drop(here.lowers[A].upper_pods, "web")
    assert planned(here) == Plan(())


@pytest.mark.parametrize(
    "theirs",
    [
        space(uid="below"),
        space(uid="below", labels={OWNER: OWNER_HERE.mark}),
        marked(space(uid="below"), "above", STRANGER),
    ],
    ids=["without marks", "with a forged label", "of another owner"],
)
def test_a_lower_namespace_of_another_client_is_used_unchanged(theirs: Manifest) -> None:
    """It is no conflict either."""
    here = needed(**{ENFORCE: "restricted"})
    put(here.lowers[A].namespaces, theirs)
    put(here.lowers[A].accounts, account())
    assert planned(here) == Plan(())
    assert ready(here.lowers[A], "default") == "below"


def test_an_upper_namespace_that_was_created_again_marks_the_lower_one_again() -> None:
    """The lower namespace is not replaced, because it may contain objects of other clients."""
    here = needed()
    earlier = space(uid="below", annotations={UPPER_NAMESPACE: "default"})
    put(here.lowers[A].namespaces, marked(earlier, "an earlier one"))
    step = the_step(here)
    assert step.verb == "patch"
    assert [one["value"] for one in step.operations] == ["above"]


def test_a_namespace_is_ready_once_its_default_service_account_exists() -> None:
    """Kubernetes refuses pods until then."""
    here = needed()
    lower = here.lowers[A]
    assert ready(lower, "default") == ""
    put(lower.namespaces, ours())
    assert ready(lower, "default") == ""
    put(lower.accounts, account(name="other"))
    assert ready(lower, "default") == ""
    put(lower.accounts, account())
    assert ready(lower, "default") == "below"


def test_each_namespace_with_a_pod_has_one_key() -> None:
    """The number of its pods does not matter."""
    here = world()
    put(here.lowers[A].upper_pods, upper_pod("one"), upper_pod("two"), upper_pod("three", namespace="other"))
    assert sorted(RULE.keys(here, A)) == [key_of(A, "default"), key_of(A, "other")]
    assert list(RULE.keys(here, B)) == []
    assert RULE.name == KEY.rule == NAME


def test_a_change_of_an_upper_namespace_enqueues_its_key_in_every_lower() -> None:
    """A claim may wait for it, or the lower namespace may exist for earlier pods."""
    here = needed()
    entry = here.upper.namespaces.get("", "default")
    for lower in (A, B):
        assert heard(here, "upper.namespaces", None, entry, lower) == ["default"]


def test_a_change_of_a_lower_namespace_or_its_service_account_enqueues_its_key() -> None:
    """Creations and deletions are watched."""
    here = needed()
    home(here)
    lower = here.lowers[A]
    assert heard(here, "namespaces", lower.namespaces.get("", "default"), None, A) == ["default"]
    assert heard(here, "accounts", None, lower.accounts.get("default", "default"), A) == ["default"]


def test_a_digest_shows_whether_a_namespace_is_terminating() -> None:
    """It has the bytes of the namespace."""
    raw = orjson.dumps(space())
    assert transform(raw) == Transformed(raw, NamespaceFacts())
    assert transform(orjson.dumps(space(**ENDING))).facts == NamespaceFacts(ending=True)


def test_a_digest_has_the_owner_and_the_upper_namespace() -> None:
    """Only marks that an engine wrote count, and the same marks by another client do not."""
    assert transform(orjson.dumps(ours())).facts == NamespaceFacts(False, OWNER_HERE.mark, "above", "default")
    by_hand = ours()
    by_hand["metadata"]["managedFields"][0]["manager"] = "kubectl-edit"
    assert transform(orjson.dumps(by_hand)).facts == NamespaceFacts()


PREFIXED = "name: lower-a, namespaces: {mapping: prefix}"


def prefixed_world() -> World:
    """Create the same world with the prefix mapping of namespaces."""
    here = world(PREFIXED)
    raised(here)
    put(here.upper.namespaces, space(uid="above"))
    put(here.lowers[A].upper_pods, upper_pod())
    return here


def test_with_a_prefix_the_lower_namespace_has_the_topologys_name() -> None:
    """Its annotation has the upper name, which a truncated name does not reveal."""
    here = prefixed_world()
    step = the_step(here)
    assert (step.verb, step.ref) == ("create", Ref(A, NAMESPACE, "", "demo-default"))
    assert step.body is not None
    assert step.body["metadata"]["annotations"][UPPER_NAMESPACE] == "default"
    put(here.lowers[A].namespaces, written({**step.body, "metadata": {**step.body["metadata"], "uid": "below"}}))
    put(here.lowers[A].accounts, account("demo-default"))
    assert planned(here) == Plan(())
    assert ready(here.lowers[A], "default") == "below"


@pytest.mark.parametrize(
    "space_below",
    [
        space("demo-default", uid="below"),
        marked(space("demo-default", uid="below", annotations={UPPER_NAMESPACE: "default"}), "above", STRANGER),
    ],
    ids=["without marks", "of another owner"],
)
def test_with_a_prefix_a_namespace_of_another_owner_is_a_conflict(space_below: Manifest) -> None:
    """It is reported and not changed, and no pod is created in it."""
    here = prefixed_world()
    put(here.lowers[A].namespaces, space_below)
    put(here.lowers[A].accounts, account("demo-default"))
    found = planned(here)
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    assert "Namespace demo-default exists in lower cluster lower-a and has another owner" in found.problem.message
    assert ready(here.lowers[A], "default") == ""


def test_two_namespaces_with_the_same_truncated_name_are_distinguished() -> None:
    """The later one has a conflict, and the namespace of the other is not changed."""
    here = prefixed_world()
    theirs = marked(space("demo-default", uid="below", annotations={UPPER_NAMESPACE: "elsewhere"}), "its own")
    put(here.lowers[A].namespaces, theirs)
    decision = RULE.decide(KEY, here)
    assert decision.wanted == ()
    assert decision.problem is not None
    assert decision.problem.reason == "NameConflict"
    assert "belongs to upper namespace elsewhere, not to default" in decision.problem.message
