"""Tests of copies of ConfigMaps and Secrets, and of reserved names that the upper cluster does not have.

Behavior that all mirrored kinds share is tested in test_mirror.py, and updates of content by the scenarios config_map_*
and optional_*.
"""

from copy import deepcopy
from typing import Any

import pytest
from rulekit import Asked
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    changed,
    config_map,
    drop,
    home,
    lose,
    marked,
    names,
    put,
    raised,
    referring,
    reload,
    secret,
    thing,
    twin,
    upper_pod,
    world,
    written,
)

from tensile.kube.store import Cache, Entry
from tensile.names import LEGACY, NO_ORIGINAL, OWNER, UPPER_UID
from tensile.objects import CONFIG_MAP, SECRET, SERVICE_ACCOUNT, Kind, Manifest, Ref, annotations, labels
from tensile.reconcile.plan import Plan
from tensile.reconcile.pods.references import Reference, copy_of
from tensile.reconcile.rules import config, namespaces, service_accounts
from tensile.reconcile.rules.config import LIMIT, RETRY_SECONDS, key_of, missing
from tensile.reconcile.world import Key, Problem, World

KINDS = {"ConfigMap": CONFIG_MAP, "Secret": SECRET}
TOKEN = "kubernetes.io/service-account-token"
DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}]


def key(kind: str = "Secret", name: str = "thing", lower: str = A) -> Key:
    """Return the key of a name in namespace default."""
    return key_of(lower, "default", kind, name)


ASKED = Asked(config.RULE, key())
planned, the_step = ASKED.plan, ASKED.step


def naming(kind: str = "Secret", *, optional: bool = True, name: str = "thing") -> Manifest:
    """Return the spec of a pod that refers to a name by a volume."""
    of = {"config_maps" if kind == "ConfigMap" else "secrets": [name]}
    return referring(**of, optional=optional)


def bound(spec: Manifest | None = None, more: str = "", **pod: Any) -> World:
    """Create a world in which a pod with an optional Secret `thing` is bound to lower-a, and no such Secret exists."""
    here = world(more=more)
    raised(here)
    home(here, namespace=pod.get("namespace", "default"))
    put(here.lowers[A].upper_pods, upper_pod(spec=naming() if spec is None else spec, **pod))
    return here


def needing(**pod: Any) -> World:
    """Create a world in which a bound pod requires Secret `thing` and ConfigMap `settings` of the upper cluster."""
    spec = referring(config_maps=["settings"], secrets=["thing"])
    here = bound(spec, **pod)
    put(here.upper.secrets, secret("thing", namespace=pod.get("namespace", "default")))
    put(here.upper.config_maps, config_map())
    return here


def caches(here: World, kind: str = "Secret") -> tuple[Cache, Cache]:
    """Return the upper and the lower cache of a kind."""
    above, below = here.upper.cache(KINDS[kind]), here.lowers[A].cache(KINDS[kind])
    assert above is not None
    assert below is not None
    return above, below


def carried_out(here: World, of: Key | None = None) -> Entry | None:
    """Apply the only step of a plan in lower-a, as a cluster would, and return the resulting object."""
    step = the_step(here, of)
    below = caches(here, step.ref.kind.name)[1]
    if step.verb == "delete":
        drop(below, step.ref.name)
        return None
    assert step.verb == "create"
    made = deepcopy(step.body) or {}
    return put(below, written({**made, "metadata": {**made["metadata"], "uid": f"below-{below.version}"}}))


def original(kind: str, name: str = "thing", **meta: Any) -> Manifest:
    """Return the upper object of a name."""
    return config_map(name, **meta) if kind == "ConfigMap" else secret(name, **meta)


def awaited(here: World, *references: Reference) -> list[str]:
    """Return the keys on which a pod in `default` of lower-a depends."""
    return list(names(missing(here, here.lowers[A], "default", references)))


def test_a_secret_is_copied_with_its_type_and_our_marks() -> None:
    """The type of a Secret is validated at its creation, and is immutable."""
    step = the_step(needing())
    assert (step.verb, step.ref) == ("create", Ref(A, SECRET, "default", "thing"))
    assert step.body == copy_of(secret("thing"), OWNER_HERE, "default")
    assert step.body["type"] == "Opaque"


@pytest.mark.parametrize(
    "pod",
    [{"ownerReferences": DAEMON}, {"namespace": "kube-system"}, {"status": {"phase": "Succeeded"}}],
    ids=["of a DaemonSet", "of an excluded namespace", "that ended"],
)
def test_a_pod_that_is_not_mirrored_causes_no_copy(pod: dict[str, Any]) -> None:
    """Otherwise the Secrets of the upper cluster's own agents would be in every lower cluster.

    No name is reserved for it either.
    """
    of = key_of(A, pod.get("namespace", "default"), "Secret", "thing")
    assert planned(needing(**pod), of) == planned(bound(**pod), of) == Plan(())


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_copy_is_kept_while_a_lower_pod_refers_to_it(phase: str) -> None:
    """A pod whose deletion the guard blocks keeps its configuration."""
    here = needing()
    carried_out(here)
    put(here.lowers[A].pods, twin(upper_pod(spec=naming(optional=False)), {"phase": phase}))
    drop(here.lowers[A].upper_pods, "web")
    assert planned(here) == Plan(())
    drop(here.lowers[A].pods, "web")
    assert (the_step(here).verb, the_step(here).reason) == ("delete", "no pod refers to it any more")


def test_a_reference_of_a_lower_pod_alone_is_no_problem() -> None:
    """Admission in the lower cluster may add pull secrets that the upper cluster does not have."""
    here = bound({})
    put(here.lowers[A].pods, twin(upper_pod(spec=naming(optional=False))))
    assert planned(here) == Plan(())


def test_a_pod_waits_for_the_copies_that_do_not_exist_yet() -> None:
    """The order is stable.

    References of other kinds do not count, and neither does the copy of another upper object.
    """
    here = needing()
    wanted = [Reference(kind, name, optional=False) for kind, name in (("Secret", "thing"), ("ConfigMap", "settings"))]
    claim = Reference("PersistentVolumeClaim", "disk", optional=False)
    assert awaited(here, *wanted, claim) == ["default/ConfigMap/settings", "default/Secret/thing"]
    assert ASKED.known(here) == ["default/ConfigMap/settings", "default/Secret/thing"]
    carried_out(here)
    carried_out(here, key("ConfigMap", "settings"))
    assert awaited(here, *wanted) == []
    put(here.upper.secrets, secret("thing", uid="second"))
    put(here.lowers[A].config_maps, config_map())
    assert awaited(here, *wanted) == ["default/ConfigMap/settings", "default/Secret/thing"]


# Reserved names.


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_an_optional_missing_object_is_reserved(kind: str) -> None:
    """The reserved object is empty, and its annotation shows that it has no upper object.

    The pod waits for it.
    """
    here, optional = bound(naming(kind)), Reference(kind, "thing", optional=True)
    assert awaited(here, optional) == [f"default/{kind}/thing"]
    step = the_step(here, key(kind))
    assert (step.verb, step.ref.name, step.in_plan) == ("create", "thing", True)
    assert step.body is not None
    assert not {"data", "binaryData", "stringData"} & step.body.keys()
    assert labels(step.body) == {OWNER: OWNER_HERE.mark}
    assert annotations(step.body)[UPPER_UID] == NO_ORIGINAL
    carried_out(here, key(kind))
    assert awaited(here, optional) == []
    assert awaited(here, optional._replace(optional=False)) == [f"default/{kind}/thing"]
    assert planned(here, key(kind)) == Plan(())


PULLING = {"imagePullSecrets": [{"name": "thing"}]}
IN_ENV = {"valueFrom": {"secretKeyRef": {"name": "thing", "key": "k", "optional": True}}}
OPTIONAL = {
    "pull secret": PULLING,
    "variable": {"containers": [{"name": "m", "env": [{"name": "A", **IN_ENV}]}]},
    "variables": {"initContainers": [{"name": "m", "envFrom": [{"secretRef": {"name": "thing", "optional": True}}]}]},
    "debug container": {"ephemeralContainers": [{"name": "m", "env": [{"name": "A", **IN_ENV}]}]},
    "volume": {"volumes": [{"name": "v", "secret": {"secretName": "thing", "optional": True}}]},
    "projected": {
        "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "thing", "optional": True}}]}}]
    },
}


@pytest.mark.parametrize("spec", OPTIONAL.values(), ids=OPTIONAL)
def test_the_name_in_every_optional_kind_of_reference_is_reserved(spec: Manifest) -> None:
    """Kubernetes starts a pod without the object in each case, and adds it later in most of them."""
    assert the_step(bound(spec)).verb == "create"


def test_the_name_of_a_required_missing_object_is_not_reserved() -> None:
    """The pod does not start, so nothing is created in the lower cluster."""
    here = bound(naming(optional=False))
    found = planned(here)
    assert (found.steps, found.problem) == (
        (),
        Problem("SecretNotFound", "Secret default/thing does not exist in the upper cluster"),
    )


def test_a_name_is_reserved_for_one_pod_even_if_another_requires_the_object() -> None:
    """The first pod starts, and the problem is only for the second one."""
    here = bound()
    put(here.lowers[A].upper_pods, upper_pod("strict", naming(optional=False)))
    carried_out(here)
    found = planned(here)
    assert found.steps == ()
    assert found.problem == ("SecretNotFound", "Secret default/thing does not exist in the upper cluster")


@pytest.mark.parametrize("forged", [{}, {"uid": "another"}], ids=["label alone", "all marks"])
def test_a_lower_pod_alone_reserves_no_name(forged: dict[str, Any]) -> None:
    """Any client that may create pods there can write its spec."""
    here = bound({})
    pod = twin(upper_pod("other", naming(), **forged))
    put(here.lowers[A].pods, pod if forged else {**pod, "metadata": {**pod["metadata"], "managedFields": []}})
    assert planned(here) == Plan(())


def test_a_copy_whose_upper_object_is_missing_is_kept() -> None:
    """A lost permission looks like a deletion, so the content stays, and new pods use it."""
    here = bound()
    put(here.upper.secrets, secret("thing"))
    carried_out(here)
    lose(here.upper.secrets, "thing")
    assert planned(here) == Plan(())
    assert awaited(here, Reference("Secret", "thing", optional=True)) == []


def test_the_name_of_a_secret_that_is_never_copied_is_reserved() -> None:
    """A token of the upper cluster has a name that may be that of another Secret in the lower cluster."""
    here, optional = bound(), Reference("Secret", "thing", optional=True)
    put(here.upper.secrets, secret("thing", TOKEN))
    assert awaited(here, optional) == ["default/Secret/thing"]
    carried_out(here)
    assert awaited(here, optional) == []
    assert planned(here) == Plan(())


def test_the_copy_of_a_secret_that_became_a_token_is_replaced_by_a_reserved_name() -> None:
    """The earlier Secret is not the one to which the pod refers now."""
    here = bound()
    put(here.upper.secrets, secret("thing", uid="earlier"))
    carried_out(here)
    put(here.upper.secrets, secret("thing", TOKEN, uid="later"))
    assert awaited(here, Reference("Secret", "thing", optional=True)) == ["default/Secret/thing"]
    assert the_step(here).verb == "delete"
    carried_out(here)
    held = carried_out(here)
    assert held is not None
    assert held.facts.upper_uid == NO_ORIGINAL


@pytest.mark.parametrize("mode", ["fail", "adopt"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_object_of_another_owner_with_a_reserved_name_is_a_conflict(kind: str, mode: str) -> None:
    """It is never adopted, whatever its marks, because that would remove its content."""
    here = bound(naming(kind), more=f"onConflict: {mode}\n")
    marks = {"labels": {OWNER: OWNER_HERE.mark}, "annotations": {LEGACY: "true", UPPER_UID: NO_ORIGINAL}}
    for theirs in (original(kind, **marks), marked(original(kind), NO_ORIGINAL, STRANGER)):
        put(caches(here, kind)[1], theirs)
        found = planned(here, key(kind))
        assert found.steps == ()
        assert found.problem is not None
        assert found.problem.reason == "NameConflict"
        assert f"{kind} default/thing exists in lower cluster lower-a and has another owner" in found.problem.message
        assert "the upper cluster has no such object" in found.problem.message
        assert awaited(here, Reference(kind, "thing", optional=True)) == [f"default/{kind}/thing"]


def test_running_pods_get_an_event_if_their_reserved_name_conflicts() -> None:
    """They may read an object of another owner.

    Only a few of them get an Event, and only for a conflict.
    """
    here = bound()
    for place in range(8):
        put(here.lowers[A].upper_pods, pod := upper_pod(f"p{place}", naming()))
        put(here.lowers[A].pods, twin(pod, {"phase": "Running"}))
    here.problems[key()] = Problem("NameConflict", "it is taken")
    *told, create = planned(here).steps
    assert create.verb == "create"
    assert {one.body["involvedObject"]["name"] for one in told if one.body} == {f"p{place}" for place in range(5)}
    assert {one.body["message"] for one in told if one.body} == {
        "delete this pod, it may read an object of another owner: it is taken"
    }
    here.problems[key()] = Problem("Forbidden", "no")
    assert [step.verb for step in planned(here).steps] == ["create"]


def test_content_that_another_client_adds_to_a_reserved_object_is_removed() -> None:
    """Otherwise a pod would read it."""
    here = bound()
    carried_out(here)
    changed(here.lowers[A].secrets, "thing", lambda one: one.update(data={"key": "dmFsdWU="}))
    assert the_step(here).operations == ({"op": "remove", "path": "/data"},)


def test_no_name_is_reserved_without_pod_namespace_or_our_node() -> None:
    """The other lower has no pod, the namespace may not exist yet, and the node may belong to another owner."""
    here = bound()
    assert planned(here, key(lower=B)) == Plan(())
    drop(here.lowers[A].namespaces, "default", "")
    decision, found = ASKED.decision(here), planned(here)
    assert (decision.depends_on, found) == ((namespaces.key_of(A, "default"),), Plan(()))
    drop(here.upper.nodes, A, "")
    assert ASKED.decision(here).depends_on == ()
    put(here.upper.nodes, thing("Node", A, ""))
    assert planned(here) == Plan(())


def held(name: str, namespace: str = "default", of: Kind = SECRET) -> Manifest:
    """Return an object that reserves a name."""
    made = secret(name, namespace=namespace) if of == SECRET else config_map(name, namespace=namespace)
    return marked(made, NO_ORIGINAL)


def test_each_namespace_has_a_limit_of_reserved_names_per_kind() -> None:
    """Copies and other namespaces do not count, and existing reserved names stay."""
    here = bound()
    below = here.lowers[A].secrets
    put(below, *(held(f"n{place}") for place in range(LIMIT - 1)))
    put(below, *(held(f"n{place}", "other") for place in range(5)), marked(secret("copy"), "above"))
    assert the_step(here).verb == "create"
    put(below, held("last"))
    decision, found = ASKED.decision(here), planned(here)
    assert (found.steps, decision.requeue_after) == ((), RETRY_SECONDS)
    assert found.problem is not None
    assert found.problem.reason == "TooManyReservedNames"
    assert "namespace default of lower cluster lower-a" in found.problem.message
    put(here.lowers[A].upper_pods, upper_pod("second", naming(name="last")))
    assert planned(here, key(name="last")).problem is None
    put(here.lowers[A].upper_pods, upper_pod("third", naming("ConfigMap")))
    assert the_step(here, key("ConfigMap")).verb == "create"


def account(*pulls: str) -> Manifest:
    """Return the upper ServiceAccount `robot` with pull secrets."""
    return {**thing("ServiceAccount", "robot"), "imagePullSecrets": [{"name": one} for one in pulls]}


def test_the_names_of_a_service_accounts_pull_secrets_are_reserved() -> None:
    """Admission in the lower cluster adds them to a pod without pull secrets."""
    here = bound({"serviceAccountName": "robot"})
    put(here.upper.more[SERVICE_ACCOUNT], account("thing"))
    user = Reference("ServiceAccount", "robot", optional=False)
    assert service_accounts.pulling(here, "default", "thing") == ["robot"]
    assert awaited(here, user) == ["default/Secret/thing"]
    carried_out(here)
    assert awaited(here, user) == []
    reload(here, more="serviceAccounts: {identity: none}\n")
    drop(here.lowers[A].secrets, "thing")
    assert awaited(here, user) == []
