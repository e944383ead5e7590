"""Services below: where their namespace has pods, as the ones above but for what is each cluster's own."""

from typing import Any

import pytest
from rulekit import Asked
from servicekit import (
    ALIAS_KEY,
    KEY,
    PORTS,
    REF,
    SERVER,
    SLICE_KEY,
    done,
    edited,
    exposed,
    running,
    service,
)
from worldkit import (
    OWNER_HERE,
    A,
    B,
    changed,
    drop,
    home,
    marked,
    names,
    put,
    reload,
    upper_pod,
)

from tensile.names import OWNER, OWNER_NAME, UPPER_UID
from tensile.objects import ENDPOINT_SLICE, SERVICE
from tensile.reconcile.plan import Plan
from tensile.reconcile.rules import services
from tensile.reconcile.rules.services import service_key
from tensile.reconcile.world import UpperServer, World

RULE = services.RULE
ASKED = Asked(RULE, KEY)
planned, the_step, heard = ASKED.plan, ASKED.step, ASKED.heard
DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}]


def operations(here: World) -> list[tuple[str, str]]:
    """Return the operations by which the Service below is put in step."""
    step = the_step(here)
    assert step.verb == "patch"
    return sorted((one["op"], one["path"]) for one in step.operations)


def test_a_service_is_made_where_its_namespace_has_pods() -> None:
    """With its labels, our marks, and nothing that the upper cluster gave out."""
    step = the_step(exposed())
    assert (step.verb, step.ref, step.reason) == (
        "create",
        REF,
        "pods of namespace default are in lower cluster lower-a",
    )
    assert step.body == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "web",
            "namespace": "default",
            "labels": {"team": "blue", OWNER: OWNER_HERE.mark},
            "annotations": {OWNER_NAME: "demo", UPPER_UID: "Service-web"},
        },
        "spec": {
            "type": "ClusterIP",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ipFamilyPolicy": "SingleStack",
            "ports": PORTS,
        },
    }


def test_what_is_in_step_is_left_alone() -> None:
    """Also with all that the lower cluster gave it itself."""
    here = done(exposed())
    given = {"clusterIP": "10.7.0.1", "clusterIPs": ["10.7.0.1"], "ipFamilies": ["IPv4"]}
    edited(here.lowers[A].more[SERVICE], "web", **given)
    assert planned(here) == Plan(())


def test_an_excluded_namespace_has_no_services_below() -> None:
    """No pod of it is mirrored; one that still runs there keeps what it has."""
    here = running(done(exposed()))
    reload(here, more="excludeNamespaces: [default]")
    assert planned(here) == Plan(())
    drop(here.lowers[A].pods, "web")
    assert the_step(here).verb == "delete"


def disabled() -> World:
    """Make a world where a pod runs below with all that it had before `Service` left `controllers`."""
    here = running(done(exposed(server=SERVER), KEY, SLICE_KEY, ALIAS_KEY))
    reload(here, f"name: {A}, controllers: []")
    return here


def test_without_the_controller_what_running_pods_have_is_kept_up_to_date() -> None:
    """Also the alias; nothing is created, not even again."""
    here = disabled()
    assert planned(here) == planned(here, ALIAS_KEY) == Plan(())
    edited(here.upper.more[SERVICE], "web", ports=[*PORTS, {"name": "b", "port": 81, "protocol": "TCP"}])
    assert operations(here) == [("replace", "/spec/ports")]
    drop(here.lowers[A].more[SERVICE], "web")
    assert planned(here) == Plan(())
    drop(here.lowers[A].pods, "web")
    assert the_step(here, ALIAS_KEY).verb == "delete"


def test_without_the_controller_a_service_goes_with_its_original() -> None:
    """Another one of that name does not take its place below."""
    here = disabled()
    put(here.upper.more[SERVICE], {**service(), "metadata": service()["metadata"] | {"uid": "another"}})
    assert the_step(here).verb == "delete"
    here = disabled()
    drop(here.upper.more[SERVICE], "web")
    assert the_step(here).verb == "delete"


def test_without_the_controller_no_service_is_replaced() -> None:
    """One that another client gave a selector stays: it would go, and not come again."""
    here = disabled()
    edited(here.lowers[A].more[SERVICE], "web", selector={"app": "theirs"})
    assert planned(here) == Plan(())


@pytest.mark.parametrize("missing", ["upper services", "upper slices", "services", "slices", "pods"])
def test_nothing_is_decided_on_half_a_picture(missing: str) -> None:
    """A list that has not come yet is no list of nothing."""
    here = done(exposed())
    drop(here.upper.more[SERVICE], "web")
    caches = {
        "upper services": here.upper.more[SERVICE],
        "upper slices": here.upper.more[ENDPOINT_SLICE],
        "services": here.lowers[A].more[SERVICE],
        "slices": here.lowers[A].more[ENDPOINT_SLICE],
        "pods": here.lowers[A].upper_pods,
    }
    assert the_step(here).verb == "delete"
    caches[missing].mark_stale()
    assert planned(here) == Plan(())


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"ports": [*PORTS, {"name": "b", "port": 81, "protocol": "TCP"}]}, [("replace", "/spec/ports")]),
        ({"sessionAffinity": "ClientIP"}, [("replace", "/spec/sessionAffinity")]),
        ({"publishNotReadyAddresses": True}, [("add", "/spec/publishNotReadyAddresses")]),
        ({"ipFamilyPolicy": "RequireDualStack"}, [("replace", "/spec/ipFamilyPolicy")]),
    ],
)
def test_a_change_above_comes_down(spec: dict[str, Any], found: list[tuple[str, str]]) -> None:
    """Of what means anything below (test_services_spec.py)."""
    here = done(exposed())
    edited(here.upper.more[SERVICE], "web", **spec)
    assert operations(here) == found


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"externalIPs": ["1.2.3.4"]}, [("remove", "/spec/externalIPs")]),
        ({"type": "NodePort"}, [("replace", "/spec/type")]),
        ({"ports": [{**PORTS[0], "nodePort": 30_000}]}, [("replace", "/spec/ports")]),
        ({"internalTrafficPolicy": "Local"}, [("replace", "/spec/internalTrafficPolicy")]),
    ],
)
def test_what_somebody_sets_below_is_put_back(spec: dict[str, Any], found: list[tuple[str, str]]) -> None:
    """What would lead strangers in, or traffic astray."""
    here = done(exposed())
    edited(here.lowers[A].more[SERVICE], "web", **spec)
    assert operations(here) == found


def test_labels_follow_and_those_of_others_stay() -> None:
    """A label that went above goes below."""
    here = done(exposed())
    changed(here.upper.more[SERVICE], "web", lambda one: one["metadata"].update(labels={"tier": "gold"}))
    changed(here.lowers[A].more[SERVICE], "web", lambda one: one["metadata"]["labels"].update(theirs="1"))
    assert operations(here) == [("add", "/metadata/labels/tier"), ("remove", "/metadata/labels/team")]


def test_one_that_cannot_become_what_it_should_is_made_anew() -> None:
    """For a selector below, Kubernetes makes slices of its own; what else cannot change is in test_services_spec.py."""
    here = done(exposed())
    edited(here.lowers[A].more[SERVICE], "web", selector={"app": "web"})
    step = the_step(here)
    assert (step.verb, step.uid, step.requested) == ("delete", "below-Service-web", True)
    drop(here.lowers[A].more[SERVICE], "web")
    assert the_step(here).verb == "create"


def test_the_apiservers_own_service_stays_above() -> None:
    """Every cluster has one."""
    here = exposed()
    put(here.upper.more[SERVICE], service("kubernetes"), service("kubernetes", "shop"))
    home(here, namespace="shop")
    put(here.lowers[A].upper_pods, upper_pod(namespace="shop"))
    assert planned(here, service_key(A, "default", "kubernetes")) == Plan(())
    assert the_step(here, service_key(A, "shop", "kubernetes")).verb == "create"


@pytest.mark.parametrize("pods", [True, False])
def test_services_of_kube_system_come_on_request_only(pods: bool) -> None:  # noqa: FBT001
    """Whether pods are mirrored from there, or not."""
    here = exposed(more="excludeNamespaces: []")
    key = service_key(A, "kube-system", "dns")
    home(here, namespace="kube-system")
    put(here.upper.more[SERVICE], service("dns", "kube-system"))
    if pods:
        put(here.lowers[A].upper_pods, upper_pod(namespace="kube-system"))
    assert planned(here, key) == Plan(())
    reload(here, more="excludeNamespaces: []\nservices: {kubeSystem: true}")
    assert the_step(here, key).verb == "create"
    assert key in set(RULE.keys(here, A))
    here.lowers[A].in_topology = False
    assert key not in set(RULE.keys(here, A))


# The alias.


def test_the_alias_is_in_each_namespace_with_pods() -> None:
    """On the port that clients know, marked as made for the upper cluster."""
    step = the_step(exposed(server=SERVER), ALIAS_KEY)
    assert step.body is not None
    assert step.body["metadata"]["annotations"][UPPER_UID] == OWNER_HERE.upper
    assert step.body["spec"]["ports"] == [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}]


@pytest.mark.parametrize("server", [None, UpperServer("127.0.0.1", 6443)], ids=["unknown", "loopback"])
def test_an_address_that_leads_nowhere_has_no_alias(server: UpperServer | None) -> None:
    """It would lead every pod to itself."""
    assert planned(exposed(server=server), ALIAS_KEY) == Plan(())


def test_a_service_of_the_aliass_name_takes_precedence() -> None:
    """The alias makes way for it, and comes back after it."""
    here = done(exposed(server=SERVER), ALIAS_KEY)
    put(here.upper.more[SERVICE], service("kubernetes-upper"))
    assert the_step(here, ALIAS_KEY).verb == "delete"
    drop(here.upper.more[SERVICE], "kubernetes-upper")
    assert planned(here, ALIAS_KEY) == Plan(())


def test_an_alias_that_is_none_any_more_goes() -> None:
    """Its name was changed."""
    here = done(exposed(server=SERVER), ALIAS_KEY)
    reload(here, more="services: {upperAlias: top}")
    assert the_step(here, ALIAS_KEY).verb == "delete"
    assert the_step(here, service_key(A, "default", "top")).verb == "create"


def test_there_is_no_alias_in_kube_system() -> None:
    """Nobody asked for it there."""
    here = exposed(server=SERVER, more="services: {kubeSystem: true}")
    assert planned(here, service_key(A, "kube-system", "kubernetes-upper")) == Plan(())


# Which changes concern which keys.


EVERY = ["default/kubernetes-upper", "default/web"]


def test_every_service_has_a_key() -> None:
    """Of a namespace with pods, and what is below of others."""
    here = exposed()
    put(here.upper.more[SERVICE], service("far", "shop"))
    put(here.lowers[A].more[SERVICE], marked(service("left", "gone"), "x"))
    assert list(names(RULE.keys(here, A))) == [*EVERY, "gone/left"]
    assert list(RULE.keys(here, B)) == []


def test_services_are_heard_on_both_sides() -> None:
    """Above where it matters to this lower."""
    here = done(exposed())
    far = put(here.upper.more[SERVICE], service("far", "shop"))
    assert heard(here, "upper.Service", None, far) == []
    near = here.upper.more[SERVICE].get("default", "web")
    assert heard(here, "upper.Service", near, near) == ["default/web"]
    (copy,) = here.lowers[A].more[SERVICE]
    assert heard(here, "Service", copy, None) == ["default/web"]
    drop(here.lowers[A].upper_pods, "web")
    assert heard(here, "upper.Service", near, None) == ["default/web"]


def test_what_is_below_keeps_the_lower_in_sight() -> None:
    """A lower that left the topology is left only when nothing of ours is in it."""
    here = done(exposed())
    lower = here.lowers[A]
    drop(lower.upper_pods, "web")
    assert not lower.is_empty
    drop(lower.more[SERVICE], "web")
    assert not lower.is_empty
    drop(lower.more[ENDPOINT_SLICE], "web-1")
    assert lower.is_empty
