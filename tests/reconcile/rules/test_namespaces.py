"""Namespaces below: made when a pod needs one, with the upper's Pod Security, and never taken from anybody."""

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
from tensile.reconcile.rules.namespaces import NAME, NamespaceFacts, NamespaceRule, digest, key_of, ready
from tensile.reconcile.world import World

RULE = NamespaceRule()
KEY = key_of(A, "default")
ASKED = Asked(RULE, KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.heard
ENFORCE = "pod-security.kubernetes.io/enforce"
ENDING = {"deletionTimestamp": "2026-03-01T12:00:00Z"}


def needed(**labels: str) -> World:
    """Make a world where a pod in namespace `default`, which has these labels above, is bound to lower-a."""
    here = world()
    raised(here)
    put(here.upper.namespaces, space(uid="above", labels={"team": "web", **labels}))
    put(here.lowers[A].upper_pods, upper_pod())
    return here


def ours(**labels: str) -> Manifest:
    """Make the namespace below as we made it."""
    return marked(space(uid="below", labels=labels, annotations={UPPER_NAMESPACE: "default"}), "above")


def test_a_namespace_is_made_for_a_pod() -> None:
    """With our marks, and the Pod Security labels of the one above: else all would be allowed there; no others."""
    step = the_step(needed(**{ENFORCE: "restricted"}))
    assert (step.verb, step.ref) == ("create", Ref(A, NAMESPACE, "", "default"))
    assert step.body is not None
    assert step.body["metadata"] == {
        "name": "default",
        "labels": {ENFORCE: "restricted", "kubernetes.io/metadata.name": "default", OWNER: OWNER_HERE.mark},
        "annotations": {OWNER_NAME: "demo", UPPER_UID: "above", UPPER_NAMESPACE: "default"},
    }


def test_no_namespace_is_made_for_pods_of_a_node_that_is_not_ours() -> None:
    """They run on that node, which may be a real machine; one that is there already is kept in step."""
    here = needed(**{ENFORCE: "restricted"})
    drop(here.upper.nodes, A, "")
    assert planned(here) == Plan(())
    put(here.upper.nodes, thing("Node", A, ""))
    assert planned(here) == Plan(())
    put(here.lowers[A].namespaces, ours())
    assert the_step(here).verb == "patch"


def test_a_namespace_is_made_for_a_claim_that_a_pod_waits_for() -> None:
    """The scheduler binds the pod only once its volume is there; without the controller nothing is made."""
    here = world()
    raised(here)
    put(here.upper.namespaces, space(uid="above"))
    notes = {SELECTED_NODE: A, "volume.kubernetes.io/storage-provisioner": PROVISIONER}
    put(here.upper.more[CLAIM], {**thing("PersistentVolumeClaim", "data", annotations=notes), "spec": {}})
    assert the_step(here).verb == "create"
    reload(here, more="controllers: []")
    assert planned(here) == Plan(())


def test_an_excluded_namespace_is_not_made() -> None:
    """No pod of it is mirrored."""
    here = needed()
    reload(here, more="excludeNamespaces: [default]")
    assert planned(here) == Plan(())


def test_a_namespace_that_is_not_known_above_is_not_made() -> None:
    """Its labels are not known either; the watch will tell."""
    here = needed()
    lose(here.upper.namespaces, "default", "")
    assert planned(here) == Plan(())


def test_nothing_is_made_while_it_may_be_there() -> None:
    """A cache that is not complete says nothing about what is missing."""
    here = needed()
    here.lowers[A].namespaces.mark_stale()
    assert planned(here) == Plan(())


def test_labels_of_ours_follow_the_upper() -> None:
    """A stricter profile above holds below too; labels that others set there stay."""
    here = needed(**{ENFORCE: "restricted"})
    put(here.lowers[A].namespaces, ours(**{ENFORCE: "privileged"}))
    changed(here.lowers[A].namespaces, "default", lambda one: one["metadata"]["labels"].update(theirs="yes"), "")
    step = the_step(here)
    assert (step.verb, step.uid) == ("patch", "below")
    assert [(one["op"], one["path"], one["value"]) for one in step.operations] == [
        ("replace", "/metadata/labels/pod-security.kubernetes.io~1enforce", "restricted")
    ]


def test_a_label_taken_off_above_is_taken_off_below() -> None:
    """Since we put it there."""
    here = needed()
    put(here.lowers[A].namespaces, ours(**{ENFORCE: "privileged"}))
    (operation,) = the_step(here).operations
    assert (operation["op"], operation["path"]) == ("remove", "/metadata/labels/pod-security.kubernetes.io~1enforce")


def test_labels_of_ours_follow_the_upper_between_two_pods() -> None:
    """Else the next pod would start under the profile of the last; not while the Node is not ours, or if excluded."""
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


def test_a_namespace_made_anew_above_changes_nothing_below_without_a_pod() -> None:
    """The one below may hold data of the earlier one's pods, and no pod needs it for the new one yet."""
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
def test_a_namespace_of_others_is_used_as_it_is(theirs: Manifest) -> None:
    """Neither changed nor called a conflict."""
    here = needed(**{ENFORCE: "restricted"})
    put(here.lowers[A].namespaces, theirs)
    put(here.lowers[A].accounts, account())
    assert planned(here) == Plan(())
    assert ready(here.lowers[A], "default") == "below"


def test_a_namespace_made_anew_above_marks_the_one_below_anew() -> None:
    """It is not replaced: others may have put something there."""
    here = needed()
    earlier = space(uid="below", annotations={UPPER_NAMESPACE: "default"})
    put(here.lowers[A].namespaces, marked(earlier, "an earlier one"))
    step = the_step(here)
    assert step.verb == "patch"
    assert [one["value"] for one in step.operations] == ["above"]


def test_a_namespace_is_ready_with_its_account() -> None:
    """Kubernetes refuses pods until the ServiceAccount `default` is there."""
    here = needed()
    lower = here.lowers[A]
    assert ready(lower, "default") == ""
    put(lower.namespaces, ours())
    assert ready(lower, "default") == ""
    put(lower.accounts, account(name="other"))
    assert ready(lower, "default") == ""
    put(lower.accounts, account())
    assert ready(lower, "default") == "below"


def test_there_is_a_key_for_each_namespace_with_a_pod() -> None:
    """Once, however many pods it has."""
    here = world()
    put(here.lowers[A].upper_pods, upper_pod("one"), upper_pod("two"), upper_pod("three", namespace="other"))
    assert sorted(RULE.keys(here, A)) == [key_of(A, "default"), key_of(A, "other")]
    assert list(RULE.keys(here, B)) == []
    assert RULE.name == KEY.rule == NAME


def test_a_change_above_concerns_every_lower() -> None:
    """A claim may wait for it, or the namespace below may be left from earlier pods."""
    here = needed()
    entry = here.upper.namespaces.get("", "default")
    for lower in (A, B):
        assert heard(here, "upper.namespaces", None, entry, lower) == ["default"]


def test_a_change_below_concerns_the_namespace() -> None:
    """Whether it comes or goes; its account counts as part of it."""
    here = needed()
    home(here)
    lower = here.lowers[A]
    assert heard(here, "namespaces", lower.namespaces.get("", "default"), None, A) == ["default"]
    assert heard(here, "accounts", None, lower.accounts.get("default", "default"), A) == ["default"]


def test_a_digest_says_whether_a_namespace_is_ending() -> None:
    """And keeps its bytes."""
    raw = orjson.dumps(space())
    assert digest(raw) == Transformed(raw, NamespaceFacts())
    assert digest(orjson.dumps(space(**ENDING))).facts == NamespaceFacts(ending=True)


def test_a_digest_says_whose_a_namespace_is_and_for_which_one_above() -> None:
    """By the marks that an engine wrote; the same marks by another hand say nothing."""
    assert digest(orjson.dumps(ours())).facts == NamespaceFacts(False, OWNER_HERE.mark, "above", "default")
    by_hand = ours()
    by_hand["metadata"]["managedFields"][0]["manager"] = "kubectl-edit"
    assert digest(orjson.dumps(by_hand)).facts == NamespaceFacts()


PREFIXED = "name: lower-a, namespaces: {mapping: prefix}"


def prefixed_world() -> World:
    """Make the same world where namespaces below begin with the topology's name."""
    here = world(PREFIXED)
    raised(here)
    put(here.upper.namespaces, space(uid="above"))
    put(here.lowers[A].upper_pods, upper_pod())
    return here


def test_with_a_prefix_the_namespace_is_called_after_the_topology() -> None:
    """It says which one above it is for: a name that was cut would not."""
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
    ids=["somebody's", "another owner's"],
)
def test_with_a_prefix_somebody_elses_namespace_of_that_name_is_a_conflict(space_below: Manifest) -> None:
    """It is reported, not touched, and no pod is made in it."""
    here = prefixed_world()
    put(here.lowers[A].namespaces, space_below)
    put(here.lowers[A].accounts, account("demo-default"))
    found = planned(here)
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    assert "Namespace demo-default exists in lower cluster lower-a and has another owner" in found.problem.message
    assert ready(here.lowers[A], "default") == ""


def test_two_namespaces_whose_names_are_cut_to_the_same_are_told_apart() -> None:
    """The one that came later is told of, and nothing of the other's is changed."""
    here = prefixed_world()
    theirs = marked(space("demo-default", uid="below", annotations={UPPER_NAMESPACE: "elsewhere"}), "its own")
    put(here.lowers[A].namespaces, theirs)
    decision = RULE.decide(KEY, here)
    assert decision.wanted == ()
    assert decision.problem is not None
    assert decision.problem.reason == "NameConflict"
    assert "belongs to upper namespace elsewhere, not to default" in decision.problem.message
