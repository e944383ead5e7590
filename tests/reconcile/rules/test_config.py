"""Copies of ConfigMaps and Secrets: below before the pod, kept in step, gone with the last one that refers to them."""

from copy import deepcopy
from typing import Any

import pytest
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    B,
    changed,
    config_map,
    decided,
    drop,
    home,
    lose,
    marked,
    names,
    put,
    raised,
    referring,
    secret,
    thing,
    twin,
    upper_pod,
    world,
    written,
)

from tensile.kube.store import Cache, Delta, Entry
from tensile.names import OWNER
from tensile.objects import CONFIG_MAP, EVENT, SECRET, Kind, Manifest, Ref
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.pods.references import Reference, copy_of
from tensile.reconcile.rules import config, namespaces
from tensile.reconcile.rules.config import NAME, key_of, missing
from tensile.reconcile.world import Key, LowerWorld, Problem, World

RULE = config.RULE
KEY = key_of(A, "default", "ConfigMap", "settings")
SECRET_KEY = key_of(A, "default", "Secret", "password")
REF = Ref(A, CONFIG_MAP, "default", "settings")
SPEC = referring(config_maps=["settings"], secrets=["password"])
DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}]


def bound(**pod: Any) -> World:
    """Make a world where a pod that refers to settings and password is bound to lower-a, and both are there above."""
    here = world()
    raised(here)
    home(here)
    put(here.lowers[A].upper_pods, upper_pod(**({"spec": SPEC} | pod)))
    put(here.upper.config_maps, config_map("settings"))
    put(here.upper.secrets, secret("password"))
    return here


def copied(here: World) -> World:
    """Put the copies below, as the engine makes them."""
    for above, below in zip((here.upper.config_maps, here.upper.secrets), _copies(here.lowers[A]), strict=True):
        for entry in above:
            made = copy_of(deepcopy(entry.manifest()), OWNER_HERE, entry.namespace)
            made["metadata"]["uid"] = f"below-{entry.uid}"
            put(below, written(made))
    return here


def _copies(lower: LowerWorld) -> tuple[Cache, Cache]:
    return lower.config_maps, lower.secrets


def planned(here: World, key: Key = KEY) -> Plan:
    """Plan a key."""
    return decided(RULE, key, here)[1]


def the_step(here: World, key: Key = KEY) -> Step:
    """Return the one step of a plan that has no problem."""
    found = planned(here, key)
    assert found.problem is None
    (step,) = found.steps
    return step


def test_what_a_pod_refers_to_is_copied() -> None:
    """With its content, its labels and our marks; and what the upper cluster made for itself stays there."""
    here = bound()
    step = the_step(here)
    assert (step.verb, step.ref, step.reason) == ("create", REF, "pods on node lower-a refer to it")
    assert step.body == copy_of(config_map("settings"), OWNER_HERE, "default")


def test_a_secret_is_copied_with_its_type() -> None:
    """A type is checked at creation, and cannot be changed."""
    body = the_step(bound(), SECRET_KEY).body
    assert body is not None
    assert (body["type"], body["data"]) == ("Opaque", {"key": "dmFsdWU="})


def test_what_nobody_refers_to_is_not_copied() -> None:
    """Nothing leaves the upper cluster without need."""
    here = bound()
    put(here.upper.config_maps, config_map("other"))
    assert planned(here, key_of(A, "default", "ConfigMap", "other")) == Plan(())


def test_it_is_copied_only_where_the_pod_is() -> None:
    """The other lower gets nothing."""
    here = bound()
    assert planned(here, key_of(B, "default", "ConfigMap", "settings")) == Plan(())


@pytest.mark.parametrize(
    "pod",
    [
        {"ownerReferences": DAEMON},
        {"namespace": "kube-system"},
        {"status": {"phase": "Succeeded"}},
    ],
    ids=["of a DaemonSet", "of an excluded namespace", "that ended"],
)
def test_a_pod_that_is_not_mirrored_takes_nothing_down(pod: dict[str, Any]) -> None:
    """Or the Secrets of the upper's own agents would be in every lower cluster."""
    here = bound(**pod)
    namespace = pod.get("namespace", "default")
    home(here, namespace=namespace)
    put(here.upper.secrets, secret("password", namespace=namespace))
    assert planned(here, key_of(A, namespace, "Secret", "password")) == Plan(())


@pytest.mark.parametrize("key", [KEY, SECRET_KEY])
def test_nothing_is_copied_for_pods_of_a_node_that_is_not_ours(key: Key) -> None:
    """They run on that node, which may be a real machine; a copy that is there stays as long as they refer to it."""
    here = bound()
    drop(here.upper.nodes, A, "")
    assert planned(here, key) == Plan(())
    put(here.upper.nodes, thing("Node", A, ""))
    assert planned(here, key) == Plan(())
    copied(here)
    assert planned(here, key) == Plan(())


def test_a_pod_of_a_daemon_set_that_asks_for_it_is_mirrored_with_all() -> None:
    """Its author set the label."""
    here = bound(ownerReferences=DAEMON, labels={"virtual-pod": "true"})
    assert the_step(here, SECRET_KEY).verb == "create"


def test_a_copy_waits_for_its_namespace() -> None:
    """And is looked at again once that was."""
    here = bound()
    drop(here.lowers[A].namespaces, "default", "")
    decision, found = decided(RULE, KEY, here)
    assert decision.depends_on == (namespaces.key_of(A, "default"),)
    assert found == Plan(())


def test_a_change_above_follows_below() -> None:
    """Content, labels, and annotations."""
    here = copied(bound())
    assert planned(here) == Plan(())
    changed(here.upper.config_maps, "settings", lambda one: one.update(data={"key": "new"}))
    step = the_step(here)
    assert (step.verb, step.uid) == ("patch", "below-ConfigMap-settings")
    assert step.operations == ({"op": "replace", "path": "/data/key", "value": "new"},)


@pytest.mark.parametrize(
    ("field", "value", "operation"),
    [("binaryData", {"raw": "AAE="}, "add"), ("immutable", True, "add"), ("data", None, "remove")],
)
def test_every_part_of_the_content_follows(field: str, value: Any, operation: str) -> None:
    """Also what comes and goes as a whole."""
    here = copied(bound())
    changed(here.upper.config_maps, "settings", lambda one: (one.pop(field, None) and None) or _set(one, field, value))
    (found,) = the_step(here).operations
    assert (found["op"], found["path"]) == (operation, f"/{field}")


def _set(one: Manifest, field: str, value: Any) -> None:
    if value is not None:
        one[field] = value


def test_what_others_added_below_stays() -> None:
    """A label of theirs is no difference; content is ours as a whole."""
    here = copied(bound())
    changed(here.lowers[A].config_maps, "settings", lambda one: one["metadata"]["labels"].update(theirs="yes"))
    assert planned(here) == Plan(())
    changed(here.lowers[A].config_maps, "settings", lambda one: one["data"].update(theirs="yes"))
    assert the_step(here).operations == ({"op": "remove", "path": "/data/theirs"},)


@pytest.mark.parametrize("owner", [None, STRANGER], ids=["nobody's", "another's"])
def test_an_object_of_others_is_a_conflict(owner: Any) -> None:
    """It is not touched, whether pods refer to it or not any more."""
    here = bound()
    theirs = config_map("settings", {"key": "theirs"}, labels={OWNER: OWNER_HERE.mark})
    put(here.lowers[A].config_maps, marked(theirs, "above", owner) if owner else theirs)
    found = planned(here)
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "NameConflict"
    drop(here.lowers[A].upper_pods, "web")
    assert planned(here) == Plan(())


def test_a_replaced_original_replaces_its_copy() -> None:
    """Deleted and made anew above: the copy, perhaps immutable, goes by its UID, and is made once it is gone."""
    here = copied(bound())
    put(here.upper.config_maps, config_map("settings", uid="second"))
    step = the_step(here)
    assert (step.verb, step.uid, step.requested) == ("delete", "below-ConfigMap-settings", True)
    drop(here.lowers[A].config_maps, "settings")
    assert the_step(here).verb == "create"


@pytest.mark.parametrize("key", [KEY, SECRET_KEY])
def test_the_copy_goes_with_the_last_pod(key: Key) -> None:
    """Not before: another pod still needs it."""
    here = copied(bound())
    put(here.lowers[A].upper_pods, upper_pod("other", SPEC))
    drop(here.lowers[A].upper_pods, "web")
    assert planned(here, key) == Plan(())
    drop(here.lowers[A].upper_pods, "other")
    step = the_step(here, key)
    assert (step.verb, step.reason, step.requested) == ("delete", "no pod refers to it any more", True)


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_copy_stays_while_a_lower_pod_refers_to_it(phase: str) -> None:
    """What the guard keeps running keeps its configuration."""
    here = copied(bound())
    put(here.lowers[A].pods, twin(upper_pod(spec=SPEC), {"phase": phase}))
    drop(here.lowers[A].upper_pods, "web")
    assert planned(here) == Plan(())
    drop(here.lowers[A].pods, "web")
    assert the_step(here).verb == "delete"


def test_a_deletion_above_that_was_seen_is_followed() -> None:
    """The pods that refer to it find out below as they would above."""
    here = copied(bound())
    drop(here.upper.config_maps, "settings")
    found = planned(here)
    assert [(one.verb, one.reason) for one in found.steps] == [("delete", "the upper ConfigMap was deleted")]
    assert found.problem is not None
    assert found.problem == ("ConfigMapNotFound", "ConfigMap default/settings: it does not exist")


def test_the_deletion_of_an_older_original_takes_no_newer_ones_copy() -> None:
    """Another engine has heard of the newer one first, and made the copy."""
    here = copied(bound())
    lose(here.upper.config_maps, "settings")
    put(here.upper.config_maps, config_map(uid="older"))
    drop(here.upper.config_maps, "settings")
    assert planned(here).steps == ()


def test_an_original_that_is_merely_missing_takes_nothing_with_it() -> None:
    """A lost right or a restored store looks the same as a deletion; pods go on with what they have."""
    here = copied(bound())
    lose(here.upper.config_maps, "settings")
    found = planned(here)
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "ConfigMapNotFound"
    here.upper.config_maps.confirm_absent("default", "settings")
    assert planned(here).steps == ()


def test_what_was_never_there_is_said() -> None:
    """The pod that needs it can show why it does not start."""
    here = bound()
    drop(here.upper.secrets, "password")
    found = planned(here, SECRET_KEY)
    assert found == Plan((), found.problem)
    assert found.problem == ("SecretNotFound", "Secret default/password: it does not exist")


def test_what_only_a_lower_pod_refers_to_is_no_problem() -> None:
    """Admission below adds pull secrets of its own, of which the upper cluster knows nothing."""
    here = world()
    home(here)
    put(here.lowers[A].upper_pods, upper_pod())
    put(here.lowers[A].pods, twin(upper_pod(spec=SPEC)))
    assert planned(here, SECRET_KEY) == Plan(())


@pytest.mark.parametrize("kind", ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"])
def test_credentials_of_the_upper_cluster_are_not_copied(kind: str) -> None:
    """Not even when a pod names them."""
    here = bound()
    put(here.upper.secrets, secret("password", kind, uid="token"))
    found = planned(here, SECRET_KEY)
    assert found.steps == ()
    assert found.problem is not None
    assert found.problem.reason == "SecretNotMirrored"
    assert kind in found.problem.message


INCOMPLETE = ["upper.config_maps", "pods", "upper_pods", "config_maps", "namespaces", "foreign_pods"]


@pytest.mark.parametrize("name", INCOMPLETE)
def test_nothing_is_decided_from_an_incomplete_cache(name: str) -> None:
    """Absence means nothing then: neither a copy nor the end of one."""
    here = copied(bound())
    drop(here.lowers[A].upper_pods, "web")
    assert the_step(here).verb == "delete"
    scope, _, attribute = name.rpartition(".")
    getattr(here.upper if scope else here.lowers[A], attribute).mark_stale()
    assert planned(here) == Plan(())


# What a pod waits for.


def awaited(here: World, *references: Reference) -> list[str]:
    """Return what a pod in `default` of lower-a waits for."""
    return list(names(missing(here, here.lowers[A], "default", references)))


SETTINGS = Reference("ConfigMap", "settings", optional=False)
PASSWORD = Reference("Secret", "password", optional=False)


def test_a_pod_waits_for_what_is_not_below_yet() -> None:
    """In an order that does not change, and not for kinds that others see to."""
    here = bound()
    claim = Reference("PersistentVolumeClaim", "disk", optional=False)
    assert awaited(here, PASSWORD, SETTINGS, claim) == ["default/ConfigMap/settings", "default/Secret/password"]
    assert awaited(copied(here), PASSWORD, SETTINGS) == []


def test_a_copy_of_an_earlier_original_does_not_count() -> None:
    """The pod would start with the content of one that is gone."""
    here = copied(bound())
    put(here.upper.config_maps, config_map("settings", uid="second"))
    assert awaited(here, SETTINGS) == ["default/ConfigMap/settings"]


def test_an_object_of_others_does_not_count() -> None:
    """It only has the same name."""
    here = bound()
    put(here.lowers[A].config_maps, config_map("settings"))
    assert awaited(here, SETTINGS) == ["default/ConfigMap/settings"]


# Which changes concern which keys.


def heard(here: World, cache: str, before: Entry | None, after: Entry | None, lower: str = A) -> list[str]:
    """Return the names of the keys that a change in a cache concerns."""
    routes = [route for route in RULE.watches() if route.cache == cache]
    found = [key for route in routes for key in route.keys(here, lower, Delta(before, after))]
    assert all((key.rule, key.lower) == (NAME, lower) for key in found)
    return list(names(found))


BOTH = ["default/ConfigMap/settings", "default/Secret/password"]


def test_every_reference_and_every_copy_has_a_key() -> None:
    """Once each; what has neither is nobody's business."""
    here = copied(bound())
    put(here.lowers[A].upper_pods, upper_pod("other", SPEC))
    put(here.lowers[A].secrets, marked(secret("left-over"), "above"))
    put(here.upper.secrets, secret("unrelated"))
    assert list(names(RULE.keys(here, A))) == [*BOTH[:1], "default/Secret/left-over", *BOTH[1:]]
    assert list(RULE.keys(here, B)) == []


@pytest.mark.parametrize(("cache", "name"), [("config_maps", "settings"), ("secrets", "password")])
def test_a_change_of_an_original_concerns_those_who_refer_to_it_or_have_a_copy(cache: str, name: str) -> None:
    """Not the other lowers."""
    here = copied(bound())
    entry = getattr(here.upper, cache).get("default", name)
    assert len(heard(here, f"upper.{cache}", None, entry)) == 1
    assert heard(here, f"upper.{cache}", None, entry, B) == []
    drop(here.lowers[A].upper_pods, "web")
    assert len(heard(here, f"upper.{cache}", entry, None)) == 1
    drop(getattr(here.lowers[A], cache), name)
    assert heard(here, f"upper.{cache}", entry, None) == []


def test_a_change_of_a_copy_concerns_it() -> None:
    """Somebody may have taken it away."""
    here = copied(bound())
    assert heard(here, "config_maps", here.lowers[A].config_maps.get("default", "settings"), None) == BOTH[:1]
    assert heard(here, "secrets", here.lowers[A].secrets.get("default", "password"), None) == BOTH[1:]


def pods(*, above: bool, **given: Any) -> Entry:
    """Return the cache's entry of a pod on one of the two sides."""
    here = world()
    pod = upper_pod(**({"spec": SPEC} | given))
    return put(here.lowers[A].upper_pods, pod) if above else put(here.lowers[A].pods, twin(pod, pod["status"]))


@pytest.mark.parametrize(("cache", "above"), [("upper_pods", True), ("pods", False)])
def test_a_pod_that_comes_or_goes_concerns_what_it_refers_to(cache: str, above: bool) -> None:  # noqa: FBT001 - a parameter
    """On both sides; one that changes in another way concerns nothing."""
    here, entry = world(), pods(above=above)
    assert heard(here, cache, None, entry) == BOTH
    assert heard(here, cache, entry, None) == BOTH
    assert heard(here, cache, entry, entry) == []


def test_an_upper_pod_that_ends_needs_nothing_any_more() -> None:
    """As if it had gone."""
    here, running, ended = world(), pods(above=True), pods(above=True, status={"phase": "Failed"})
    assert heard(here, "upper_pods", running, ended) == BOTH
    assert heard(here, "upper_pods", ended, None) == []


def test_a_lower_pod_that_ended_and_goes_lets_its_copies_go() -> None:
    """It kept them until then: a finished job leaves nothing behind."""
    here, ended = world(), pods(above=False, status={"phase": "Succeeded"})
    assert heard(here, "pods", ended, None) == BOTH


def test_kinds_that_others_see_to_concern_nobody_here() -> None:
    """A claim is not copied by this rule."""
    spec = {"volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]}
    assert heard(world(), "upper_pods", None, pods(above=True, spec=spec)) == []


def test_the_keys_name_kind_and_object() -> None:
    """By their upper namespace, so that two kinds of one name differ."""
    assert Key(NAME, A, "default", "ConfigMap/settings") == KEY
    assert (RULE.name, SECRET.name) == (NAME, "Secret")


@pytest.mark.parametrize(("key", "kind", "name"), [(KEY, CONFIG_MAP, "settings"), (SECRET_KEY, SECRET, "password")])
def test_a_change_that_is_refused_is_told_on_the_object_above(key: Key, kind: Kind, name: str) -> None:
    """Pods run on with what they have: nothing else would say that they do not have what is above."""
    here = copied(bound())
    above = here.upper.config_maps if kind is CONFIG_MAP else here.upper.secrets
    changed(above, name, lambda one: one.update(data={"key": "bmV3"}))
    here.problems[key] = Problem("Forbidden", "no")
    told, patch = planned(here, key).steps
    assert (told.ref.kind, told.body["reason"], patch.verb) == (EVENT, "Forbidden", "patch")
    assert told.body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": kind.name,
        "namespace": "default",
        "name": name,
        "uid": f"{kind.name}-{name}",
    }
    assert told.body["message"] == f"{kind.name} default/{name} is not in step in lower cluster lower-a: no"


def test_a_copy_that_is_refused_is_told_by_the_pods() -> None:
    """They wait for it, and say why."""
    here = bound()
    here.problems[KEY] = Problem("Forbidden", "no")
    assert [step.verb for step in planned(here).steps] == ["create"]
    assert planned(here).steps[0].ref == REF
