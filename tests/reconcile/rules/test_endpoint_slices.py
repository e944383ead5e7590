"""Slices below: one for each above, of Services that are ours below, decoded only when something differs."""

from typing import Any

import pytest
from rulekit import Asked
from servicekit import (
    ALIAS_KEY,
    ALIAS_SLICE_KEY,
    KEY,
    SERVER,
    SLICE_KEY,
    SLICE_REF,
    below,
    done,
    endpoint,
    exposed,
    running,
    service,
    sliced,
)
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    changed,
    decided,
    drop,
    marked,
    names,
    put,
    reload,
    upper_pod,
)

from tensile.kube import store
from tensile.names import OWNER, OWNER_NAME, UPPER_UID
from tensile.objects import ENDPOINT_SLICE, SERVICE, UPPER, Manifest, Ref
from tensile.reconcile.desired import EmitEvent, Patched, Present
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import endpoint_slices
from tensile.reconcile.rules.endpoint_slices import slice_key
from tensile.reconcile.rules.services import service_key
from tensile.reconcile.world import Problem

RULE = endpoint_slices.RULE
ASKED = Asked(RULE, SLICE_KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.heard
EVERY = ["default/kubernetes-upper", "default/web-1"]


def test_a_slice_is_made_once_its_service_is_there() -> None:
    """With the endpoints above, whose addresses hold everywhere; nodes, zones and pods of the upper stay there."""
    here = exposed()
    decision, found = decided(RULE, SLICE_KEY, here)
    assert (decision.depends_on, found) == ((KEY,), Plan(()))
    step = the_step(done(here, KEY))
    assert (step.verb, step.ref, step.reason) == ("create", SLICE_REF, "endpoints of Service web")
    conditions = {"ready": True, "serving": True, "terminating": False}
    assert step.body == {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "web-1",
            "namespace": "default",
            "labels": {
                "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "tensile-kube.io",
                OWNER: OWNER_HERE.mark,
            },
            "annotations": {OWNER_NAME: "demo", UPPER_UID: "EndpointSlice-web-1"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "below-Service-web"},
            ],
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [f"10.1.0.{one}"], "conditions": conditions} for one in (1, 2)],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def test_what_is_in_step_is_not_even_decoded() -> None:
    """Most looks are at slices that did not change."""
    here = done(exposed())
    store._recent.clear()
    decision = RULE.decide(SLICE_KEY, here)
    assert decision.wanted == ()
    assert store._recent == {}


def test_what_changes_without_meaning_is_not_written() -> None:
    """Such as where an endpoint is: what is kept of the slice is the same."""
    here = done(exposed())
    changed(here.upper.more[ENDPOINT_SLICE], "web-1", lambda one: one["metadata"].update(generation=7))
    moved = sliced("web-1", endpoint("10.1.0.1", nodeName="other"), endpoint("10.1.0.2", hints={"forZones": []}))
    put(here.upper.more[ENDPOINT_SLICE], moved)
    assert planned(here) == Plan(())


@pytest.mark.parametrize(
    ("above", "path"),
    [
        (sliced("web-1", endpoint("10.1.0.1", ready=False), endpoint("10.1.0.2")), "/endpoints"),
        (sliced("web-1", endpoint("10.1.0.2")), "/endpoints"),
        ({**sliced(), "endpoints": None}, "/endpoints"),
        ({**sliced(), "ports": [{"name": "http", "port": 81, "protocol": "TCP"}]}, "/ports"),
    ],
    ids=["not ready", "gone", "none", "port"],
)
def test_a_change_above_is_laid_over(above: Manifest, path: str) -> None:
    """Behind the fence of the slice's UID; it is nothing that a person decides about."""
    here = done(exposed())
    put(here.upper.more[ENDPOINT_SLICE], above)
    step = the_step(here)
    assert (step.verb, step.ref, step.uid, step.in_plan) == ("patch", SLICE_REF, "below-EndpointSlice-web-1", False)
    assert [(one["op"], one["path"]) for one in step.operations] == [("replace", path)]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"endpoints": []}, "/endpoints"),
        ({"ports": []}, "/ports"),
    ],
)
def test_what_somebody_changes_below_is_put_back(change: Manifest, path: str) -> None:
    """The upper cluster says who answers."""
    here = done(exposed())
    changed(here.lowers[A].more[ENDPOINT_SLICE], "web-1", lambda one: one.update(change))
    assert [one["path"] for one in the_step(here).operations] == [path]


def test_labels_are_put_back_and_those_of_others_stay() -> None:
    """Without the one that names the manager, Kubernetes' own would take the slice for its."""
    here = done(exposed())
    managed = "endpointslice.kubernetes.io/managed-by"
    below_slices = here.lowers[A].more[ENDPOINT_SLICE]
    changed(below_slices, "web-1", lambda one: one["metadata"]["labels"].update({managed: "me", "theirs": "1"}))
    (operation,) = the_step(here).operations
    assert (operation["op"], operation["path"]) == (
        "replace",
        "/metadata/labels/endpointslice.kubernetes.io~1managed-by",
    )
    changed(below_slices, "web-1", lambda one: one["metadata"]["labels"].update({managed: "tensile-kube.io"}))
    assert planned(here) == Plan(())


def test_a_slice_goes_over_to_a_service_that_was_made_anew() -> None:
    """Else Kubernetes would take it away with the old one."""
    here = done(exposed())
    changed(here.lowers[A].more[SERVICE], "web", lambda one: one["metadata"].update(uid="another"))
    (operation,) = the_step(here).operations
    assert (operation["path"], operation["value"][0]["uid"]) == ("/metadata/ownerReferences", "another")


def test_without_its_service_below_there_is_no_slice() -> None:
    """It would send the traffic of whoever takes that name to our pods."""
    here = done(exposed())
    drop(here.lowers[A].more[SERVICE], "web")
    step = the_step(here)
    assert (step.verb, step.uid, step.requested) == ("delete", "below-EndpointSlice-web-1", True)


@pytest.mark.parametrize(
    "taken", [service(), marked(service(), "Service-web", STRANGER)], ids=["nobody's", "another's"]
)
def test_a_service_that_is_not_ours_gets_no_endpoints_of_ours(taken: Manifest) -> None:
    """Neither new ones, nor does it keep those that ours had."""
    here = exposed()
    put(here.lowers[A].more[SERVICE], taken)
    assert decided(RULE, SLICE_KEY, here)[0].depends_on == (KEY,)
    here = done(exposed())
    put(here.lowers[A].more[SERVICE], taken)
    assert the_step(here).verb == "delete"


def test_a_service_of_an_older_object_above_is_waited_for() -> None:
    """It is about to be made anew."""
    here = done(exposed(), KEY)
    put(here.upper.more[SERVICE], {**service(), "metadata": service()["metadata"] | {"uid": "another"}})
    decision, found = decided(RULE, SLICE_KEY, here)
    assert (decision.depends_on, found) == ((KEY,), Plan(()))


@pytest.mark.parametrize("is_enabled", [True, False], ids=["no upper pod is left", "the controller is disabled"])
def test_endpoints_of_a_service_that_is_kept_follow(is_enabled: bool) -> None:  # noqa: FBT001 - a parameter
    """A pod that only runs below must not call an address that is gone. New slices are only for upper pods."""
    here = running(done(exposed()))
    if is_enabled:
        drop(here.lowers[A].upper_pods, "web")
    else:
        reload(here, f"name: {A}, controllers: []")
    put(here.upper.more[ENDPOINT_SLICE], sliced("web-1", endpoint("10.1.0.9")))
    put(here.upper.more[ENDPOINT_SLICE], sliced("web-2"))
    assert [one["path"] for one in the_step(here).operations] == ["/endpoints"]
    if is_enabled:
        assert planned(here, slice_key(A, "default", "web-2")) == Plan(())
    else:
        assert the_step(here, slice_key(A, "default", "web-2")).verb == "create"
    assert slice_key(A, "default", "web-2") in RULE.keys(here, A)
    drop(here.upper.more[ENDPOINT_SLICE], "web-1")
    assert the_step(here).verb == "delete"
    put(here.upper.more[ENDPOINT_SLICE], {**sliced(), "metadata": sliced()["metadata"] | {"uid": "another"}})
    assert the_step(here).verb == "delete"


def test_a_slice_of_no_service_stays_above() -> None:
    """Or of one that is not there."""
    here = done(exposed(), KEY)
    put(here.upper.more[ENDPOINT_SLICE], sliced("odd", of="nothing"))
    assert planned(here, slice_key(A, "default", "odd")) == Plan(())


def test_a_slice_that_is_given_to_another_service_follows() -> None:
    """If that is below; else it goes."""
    here = done(exposed())
    put(here.upper.more[SERVICE], service("api"))
    done(here, service_key(A, "default", "api"))
    put(here.upper.more[ENDPOINT_SLICE], sliced(of="api"))
    paths = {one["path"] for one in the_step(here).operations}
    assert paths == {"/metadata/labels/kubernetes.io~1service-name", "/metadata/ownerReferences"}
    put(here.upper.more[ENDPOINT_SLICE], sliced(of="nothing"))
    assert the_step(here).verb == "delete"


def test_one_that_was_made_anew_above_is_made_anew_below() -> None:
    """It may be of another kind of addresses, which cannot change."""
    here = done(exposed())
    put(here.upper.more[ENDPOINT_SLICE], {**sliced(), "metadata": sliced()["metadata"] | {"uid": "another"}})
    assert the_step(here).verb == "delete"


def test_a_name_that_is_taken_is_not_touched() -> None:
    """It is a problem of that key alone, and said on the Service above, which lacks those endpoints below."""
    here = done(exposed(), KEY)
    put(here.lowers[A].more[ENDPOINT_SLICE], sliced())
    found = planned(here)
    assert (found.steps, found.problem and found.problem.reason) == ((), "NameConflict")
    here.problems[SLICE_KEY] = Problem("NameConflict", "is not ours")
    told, _ = decided(RULE, SLICE_KEY, here)[0].wanted
    assert told == EmitEvent(Ref(UPPER, SERVICE, "default", "web"), "Service-web", "NameConflict", "is not ours")
    drop(here.lowers[A].more[SERVICE], "web")
    assert planned(here) == Plan(())


def test_a_change_that_is_refused_is_said_on_the_service_above() -> None:
    """The endpoints below are those of before; once they are right, nothing is said."""
    here = done(exposed())
    here.problems[SLICE_KEY] = Problem("Denied", "a policy")
    assert decided(RULE, SLICE_KEY, here)[0].wanted == ()
    put(here.upper.more[ENDPOINT_SLICE], sliced("web-1", endpoint("10.1.0.9")))
    told, changed_one = decided(RULE, SLICE_KEY, here)[0].wanted
    assert told == EmitEvent(Ref(UPPER, SERVICE, "default", "web"), "Service-web", "Denied", "a policy")
    assert isinstance(changed_one, Patched)


def test_an_alias_has_nobody_above_to_tell() -> None:
    """It has no Service there."""
    here = done(exposed(server=SERVER), ALIAS_KEY)
    here.problems[ALIAS_SLICE_KEY] = Problem("NameConflict", "is not ours")
    (wanted,) = decided(RULE, ALIAS_SLICE_KEY, here)[0].wanted
    assert isinstance(wanted, Present)


def test_the_alias_has_a_slice() -> None:
    """With the address at which pods below reach the upper cluster."""
    here = done(exposed(server=SERVER), ALIAS_KEY)
    body = the_step(here, ALIAS_SLICE_KEY).body
    assert body is not None
    assert body["endpoints"] == [{"addresses": ["10.200.0.1"], "conditions": {"ready": True}}]
    assert body["ports"] == [{"name": "https", "protocol": "TCP", "port": 6443}]
    done(here, ALIAS_SLICE_KEY)
    assert planned(here, ALIAS_SLICE_KEY) == Plan(())
    assert below(here, ENDPOINT_SLICE, "kubernetes-upper")["metadata"]["annotations"][UPPER_UID] == OWNER_HERE.upper


def test_the_slice_of_an_alias_that_is_none_any_more_goes() -> None:
    """Its name was changed: with its Service, or before it."""
    here = done(exposed(server=SERVER), ALIAS_KEY, ALIAS_SLICE_KEY)
    reload(here, more="services: {upperAlias: top}")
    assert the_step(here, ALIAS_SLICE_KEY).verb == "delete"


def test_every_slice_has_a_key() -> None:
    """Of a namespace with pods, and what is below of others."""
    here = exposed()
    put(here.upper.more[ENDPOINT_SLICE], sliced("far", namespace="shop"))
    put(here.lowers[A].more[ENDPOINT_SLICE], marked(sliced("left", namespace="gone"), "x"))
    assert list(names(RULE.keys(here, A))) == [*EVERY, "gone/left"]
    assert list(RULE.keys(here, B)) == []


def test_slices_are_heard_on_both_sides() -> None:
    """Above where it matters to this lower: a change of one concerns no other."""
    here = done(exposed())
    far = put(here.upper.more[ENDPOINT_SLICE], sliced("far", namespace="shop"))
    assert heard(here, "upper.EndpointSlice", None, far) == []
    near = put(here.upper.more[ENDPOINT_SLICE], sliced())
    assert heard(here, "upper.EndpointSlice", near, near) == ["default/web-1"]
    copy = here.lowers[A].more[ENDPOINT_SLICE].get("default", "web-1")
    assert heard(here, "EndpointSlice", copy, None) == ["default/web-1"]


def test_a_service_below_concerns_its_slices_when_it_comes_or_goes() -> None:
    """Those above, and those below that may be of others now; not when its ports change."""
    here = done(exposed())
    put(here.lowers[A].more[ENDPOINT_SLICE], marked(sliced("web-old"), "x"))
    (held,) = here.lowers[A].more[SERVICE]
    assert heard(here, "Service", None, held) == ["default/web-1", "default/web-old"]
    assert heard(here, "Service", held, None) == ["default/web-1", "default/web-old"]
    after = changed(here.lowers[A].more[SERVICE], "web", _renamed_port)
    assert heard(here, "Service", held, after) == []
    another = changed(here.lowers[A].more[SERVICE], "web", lambda one: one["metadata"].update(uid="another"))
    assert heard(here, "Service", after, another) == ["default/web-1", "default/web-old"]
    alias = put(here.lowers[A].more[SERVICE], service("kubernetes-upper"))
    assert heard(here, "Service", None, alias) == ["default/kubernetes-upper"]


def _renamed_port(found: dict[str, Any]) -> None:
    found["spec"]["ports"][0]["name"] = "other"


def test_the_first_pod_of_a_namespace_has_its_slices_looked_at() -> None:
    """Those that came while it had only pods that have ended were not made; more pods change nothing."""
    here = exposed()
    first = here.lowers[A].upper_pods.get("default", "web")
    assert heard(here, "upper_pods", None, first) == ["default/web-1"]
    second = put(here.lowers[A].upper_pods, upper_pod("second"))
    assert heard(here, "upper_pods", None, second) == []
