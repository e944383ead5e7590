"""Tests of the oracles for hostile tenants, which list what those reach or delay, with one violation each."""

from base64 import b64encode

import pytest

from bench.model.hostility import lateness, oracles
from bench.model.hostility.lateness import BOUND, Due, Lateness, ObservedState
from bench.model.hostility.ledger import Ledger, is_marked
from bench.model.hostility.markers import ABOVE, BELOW, TOKEN, Markers, token_for
from bench.model.hostility.setting import HOSTILE_NAMESPACES, SETTINGS, LowerNamespaces, Setting
from bench.model.sequences.model import LOWERS
from tensile.names import FIELD_MANAGER, OWNER, UPPER_UID
from tensile.objects import EVENT, POD, SECRET, SERVICE, SERVICE_ACCOUNT, UPPER, Manifest, Ref, uid

A, B = LOWERS
MARK = "0123456789abcdef"
ALL_MARKS = {
    "labels": {OWNER: MARK},
    "annotations": {UPPER_UID: "u-web"},
    "managedFields": [
        {"manager": FIELD_MANAGER, "fieldsV1": {"f:metadata": {"f:annotations": {f"f:{UPPER_UID}": {}}}}}
    ],
}


# Settings and places.


def test_settings_cover_all_combinations() -> None:
    """They contain both mappings, every identity, both ways of conflicts, and every ground in both lowers.

    The first one is the simplest.
    """
    assert SETTINGS[0] == Setting()
    assert {one.hostile_namespace for one in SETTINGS} == set(HOSTILE_NAMESPACES)
    for mapping, identity, conflict in {(one.mapping, one.identity, one.conflict) for one in SETTINGS}:
        of_one = [one for one in SETTINGS if one[:3] == (mapping, identity, conflict)]
        assert {one.lower for one in of_one} == {A, B}
        assert any(one.is_cut for one in of_one) == (mapping == "prefix")


@pytest.mark.parametrize("setting", SETTINGS[::7])
def test_a_setting_is_read_as_a_topology(setting: Setting) -> None:
    """It has two lowers with the mapping, conflict mode and controllers of the setting."""
    found = setting.read()
    assert [lower.name for lower in found.lowers] == [A, B]
    assert {lower.namespaces.mapping for lower in found.lowers} == {setting.mapping}
    assert {lower.on_conflict for lower in found.lowers} == {setting.conflict}
    assert all(bool(lower.controllers) == setting.has_controllers for lower in found.lowers)


def test_lower_namespaces_are_derived_without_the_engines_code() -> None:
    """They have the same name or the topology's name as prefix; only tenants' namespaces are mapped back."""
    same, prefix = (LowerNamespaces(Setting(mapping=one, hostile_namespace="tenant")) for one in ("same", "prefix"))
    assert (same.of("bank", A), prefix.of("bank", A)) == ("bank", "demo-bank")
    assert (same.above(A, "shop"), prefix.above(A, "demo-shop")) == ("shop", "shop")
    assert (same.above(A, "team"), prefix.above(A, "shop"), prefix.above(A, "")) == ("", "", "")
    assert (same.hostile_namespace(), prefix.hostile_namespace()) == ("mallory-up", "demo-mallory-up")
    assert (
        prefix.learn(A, "demo-shop", "bank")
        == "namespace demo-shop in lower-a was made for bank, whose lower namespace is demo-bank"
    )


def test_the_lower_namespace_of_a_long_name_is_learned() -> None:
    """Two upper namespaces must never share one."""
    setting = Setting(mapping="prefix", hostile_namespace="tenant", is_cut=True)
    places = LowerNamespaces(setting)
    assert places.of(setting.bank, A) == ""
    assert places.learn(A, "demo-cut", setting.bank) == ""
    assert (places.of(setting.bank, A), places.of(setting.bank, B)) == ("demo-cut", "")
    assert places.learn(A, "demo-cut", setting.hostile) == (
        f"namespace demo-cut in lower-a was made for {setting.hostile} and for {setting.bank}"
    )


def test_a_lower_namespace_that_is_older_than_the_engine_is_no_place() -> None:
    """With a prefix, its name is taken in that lower cluster, and no object of the tenant is created there."""
    setting = Setting(mapping="prefix", hostile_namespace="squatted", lower=B)
    places = LowerNamespaces(setting)
    assert (places.hostile_namespace(), places.of("shop", B), places.of("shop", A)) == ("demo-shop", "", "demo-shop")
    assert (places.above(B, "demo-shop"), places.above(A, "demo-shop")) == ("", "shop")
    assert (setting.is_controlled("shop", B), setting.is_controlled("shop", A), setting.mapped) == (True, False, "")


# Marker words.


def test_marker_words_are_found_in_plain_text_base64_and_tokens() -> None:
    """Each word is returned with its origin, even if the origin is another play."""
    marks = Markers("t")
    plain, hidden = marks.new("bank", SECRET, "database"), marks.new(BELOW)
    token = b64encode(token_for("shop", "payer", "u-1").encode()).decode()
    encoded = b64encode(hidden.encode()).decode()
    raw = f'{{"a": "{plain}", "b": "{encoded}", "ip": "6.6.1.2", "token": "{token}", "other": "ZXlKb"}}'.encode()
    found = {word: tuple(origin) for word, origin in marks.found(raw)}
    assert found == {
        plain: ("bank", "Secret", "database"),
        hidden: (BELOW, "", ""),
        "6.6.1.2": (BELOW, "", ""),
        "the token of u-1": ("shop", TOKEN, "u-1"),
    }
    assert next(origin.namespace for _, origin in Markers("o").found(raw)) == "another play, t"


# The ledger.


def known(setting: Setting = Setting(), **pods: str) -> Ledger:  # noqa: B008 - it is a tuple
    """Return a ledger with upper pods of bank by name and lower, which refer to Secret database and account payer."""
    ledger = Ledger(setting, MARK)
    for name, lower in pods.items():
        ledger.note(Ref(UPPER, POD, "bank", name), upper_pod(name, lower), 0.0)
    return ledger


def upper_pod(name: str, lower: str, phase: str = "Running", namespace: str = "bank", **meta: object) -> Manifest:
    """Return an upper pod."""
    spec = {
        "nodeName": lower,
        "serviceAccountName": "payer",
        "containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "database"}}]}],
    }
    found = {"name": name, "namespace": namespace, "uid": f"u-{name}", **meta}
    return {"metadata": found, "spec": spec, "status": {"phase": phase}}


def test_the_references_of_a_pod_are_remembered_for_a_moment_after_its_end() -> None:
    """An account also refers to its pull secrets; other lowers and namespaces have no such references."""
    ledger = known(web=A)
    account = {"metadata": {"uid": "u-payer"}, "imagePullSecrets": [{"name": "pull"}]}
    ledger.note(Ref(UPPER, SERVICE_ACCOUNT, "bank", "payer"), account, 0.0)
    asked = [("Secret", "database"), ("Secret", "pull"), ("ServiceAccount", "payer"), ("Pod", "")]
    assert all(ledger.is_or_was_needed(A, "bank", need, 99.0) for need in asked)
    assert not any(ledger.is_or_was_needed(B, "bank", need, 0.0) for need in asked)
    assert not ledger.is_or_was_needed(A, "shop", asked[0], 0.0)
    ledger.note(Ref(UPPER, POD, "bank", "web"), upper_pod("web", A, "Succeeded"), 5.0)
    ledger.blurred = 99.0
    assert ledger.is_or_was_needed(A, "bank", asked[1], 5.5)
    assert not ledger.is_or_was_needed(A, "bank", asked[1], 6.5)
    ledger.blurred = 5.0
    assert ledger.is_or_was_needed(A, "bank", asked[1], 99.0)


def test_an_object_is_marked_only_with_label_annotation_and_field_manager() -> None:
    """The engine's field manager has to own the annotation."""
    assert is_marked({"metadata": ALL_MARKS}, MARK)
    for left_out in ALL_MARKS:
        assert not is_marked({"metadata": {key: ALL_MARKS[key] for key in ALL_MARKS if key != left_out}}, MARK)
    assert not is_marked({"metadata": ALL_MARKS}, "another")


# Oracles.


def leaked(ref: Ref, *words: str, ledger: Ledger, node: str = "") -> list[str]:
    """Return the violations for words in an object."""
    spec = f', "spec": {{"nodeName": "{node}"}}' if node else ""
    raw = f'{{"words": "{" ".join(words)}"{spec}}}'.encode()
    return [words.partition(": ")[2] for words, _ in oracles.leaks(ref, raw, ledger, 0.0)]


def test_words_of_a_tenant_are_allowed_only_in_its_own_objects_and_places() -> None:
    """Words of a Secret are allowed only in a lower cluster in which a pod refers to it."""
    ledger = known(web=A)
    plain, secret = ledger.markers.new("bank"), ledger.markers.new("bank", SECRET, "database")
    private = ledger.markers.new("bank", SECRET, "private")
    assert leaked(Ref(A, SECRET, "bank", "database"), plain, secret, ledger=ledger) == []
    assert "not its place" in leaked(Ref(A, POD, "aaa", "web"), plain, ledger=ledger)[0]
    assert "another tenant's object" in leaked(Ref(UPPER, POD, "shop", "web"), plain, ledger=ledger)[0]
    assert leaked(Ref(UPPER, POD, "bank", "web"), plain, ledger=ledger) == []
    for lower, word in ((B, secret), (A, private)):
        assert "no pod bound here asks" in leaked(Ref(lower, SECRET, "bank", "x"), word, ledger=ledger)[0]


def test_words_of_a_hostile_tenant_are_allowed_only_in_its_own_places() -> None:
    """Those of the hostile lower tenant may also be in the upper namespace whose place it writes in.

    Pods of the other lower cluster there must not contain them.
    """
    ledger = known(Setting(hostile_namespace="victim", lower=B), web=A)
    below, above = ledger.markers.new(BELOW), ledger.markers.new(ABOVE)
    assert leaked(Ref(B, POD, "bank", "x"), below, ledger=ledger) == []
    assert leaked(Ref(UPPER, POD, "bank", "x"), below, ledger=ledger, node=B) == []
    assert leaked(Ref(UPPER, EVENT, "bank", "x"), below, ledger=ledger) == []
    assert leaked(Ref(UPPER, POD, "mallory-up", "x"), above, ledger=ledger) == []
    assert "another lower" in leaked(Ref(UPPER, POD, "bank", "x"), below, ledger=ledger, node=A)[0]
    assert "another tenant's place" in leaked(Ref(A, POD, "bank", "x"), below, ledger=ledger)[0]
    assert "another tenant's object" in leaked(Ref(UPPER, POD, "shop", "x"), below, ledger=ledger)[0]
    assert "not its place" in leaked(Ref(B, POD, "bank", "x"), above, ledger=ledger)[0]


def test_a_token_is_allowed_only_in_its_own_secret() -> None:
    """The Secret has to be in the place of its pod's namespace."""
    ledger = known(web=A)
    raw = b'{"token": "%b"}' % b64encode(token_for("bank", "payer", "u-web").encode())
    for namespace, name, expected in (
        ("bank", "upper-token-u-web", ""),
        ("bank", "other", "not where its token belongs"),
        ("aaa", "upper-token-u-web", "not its place"),
    ):
        found = [words for words, _ in oracles.leaks(Ref(A, SECRET, namespace, name), raw, ledger, 0.0)]
        assert [words.rpartition(": ")[2] for words in found] == ([expected] if expected else [])


def copy(upper_uid: str, made: str = "l-1", **fields: object) -> Manifest:
    """Return a lower object that was created for an upper one."""
    return {"metadata": {"uid": made, "annotations": {UPPER_UID: upper_uid}}, **fields}


def misplaced(ref: Ref, manifest: Manifest, ledger: Ledger, *, is_new: bool = True) -> list[str]:
    """Return the violations for the place of an object."""
    found = oracles.misplaced(ref, manifest, ledger, 0.0, is_new=is_new)
    return [words.partition(": ")[2] for words in found]


def test_a_lower_object_has_to_be_in_the_place_of_its_upper_object() -> None:
    """It needs an existing upper object and a pod in that lower that refers to it.

    An existing copy may be kept without a pod.
    """
    ledger = known(web=A)
    for kind, name in ((SECRET, "database"), (SERVICE, "front")):
        ledger.note(Ref(UPPER, kind, "bank", name), {"metadata": {"uid": f"u-{name}"}}, 0.0)
    assert misplaced(Ref(A, SECRET, "bank", "database"), copy("u-database"), ledger) == []
    assert misplaced(Ref(A, SERVICE, "bank", "front"), copy("u-front"), ledger) == []
    assert "not its place" in misplaced(Ref(A, SECRET, "aaa", "database"), copy("u-database"), ledger)[0]
    assert "which never was above" in misplaced(Ref(A, SECRET, "bank", "database"), copy("u-other"), ledger)[0]
    for kind, name in ((SECRET, "database"), (SERVICE, "front")):
        ref = Ref(B, kind, "bank", name)
        assert "no pod bound here asks" in misplaced(ref, copy(f"u-{name}"), ledger)[0]
        assert misplaced(ref, copy(f"u-{name}"), ledger, is_new=False) == []
    ledger.hostile.add("l-1")
    assert misplaced(Ref(A, SECRET, "aaa", "database"), copy("u-database"), ledger) == []


def test_an_object_that_holds_a_name_has_to_be_empty_and_referred_to() -> None:
    """It is created where a pod has an optional reference, so that the pod does not get another owner's object."""
    ledger = known(web=A)
    ref = Ref(A, SECRET, "bank", "database")
    assert misplaced(ref, copy("none"), ledger) == []
    assert list(oracles.misplaced(ref, copy("none", data={"k": "eA=="}), ledger, 0.0, is_new=True)) == [
        f"{ref} holds a name and is not empty"
    ]
    assert "no pod bound here asks" in misplaced(ref._replace(name="private"), copy("none"), ledger)[0]
    assert "not its place" in misplaced(ref._replace(namespace="aaa"), copy("none"), ledger)[0]


def test_a_write_to_another_owners_object_is_a_violation() -> None:
    """So is one to a forged object, unless it has all marks and is in the place of an upper namespace."""
    ledger = known(Setting(hostile_namespace="victim", lower=B))
    forged, ref = copy("u-web", "forged"), Ref(B, POD, "bank", "web")
    elsewhere = ref._replace(namespace="aaa")
    assert oracles.touched("patch", ref, copy("u-web", "ours"), ledger, is_wanted=True) == ""
    ledger.hostile.add("forged")
    said = oracles.touched("patch", ref, forged, ledger, is_wanted=True)
    assert said.endswith("is a stranger's, without all our marks")
    assert oracles.touched("delete", elsewhere, forged, ledger, is_wanted=False).endswith("no place")
    ledger.marked.add("forged")
    assert oracles.touched("delete", ref, forged, ledger, is_wanted=False) == ""
    assert oracles.touched("delete", elsewhere, forged, ledger, is_wanted=False).endswith("no place")
    ledger.strangers[ref] = forged
    assert oracles.touched("delete", ref, forged, ledger, is_wanted=False).endswith("is a stranger's")


def test_an_object_of_another_owner_may_be_adopted_if_the_topology_allows_it() -> None:
    """Only a patch is allowed, in the place of an upper object whose copy belongs there."""
    ledger = known(Setting(hostile_namespace="victim", lower=B, conflict="adopt"))
    ledger.hostile.add("forged")
    ref, forged = Ref(B, POD, "bank", "web"), copy("", "forged")
    assert oracles.touched("patch", ref, forged, ledger, is_wanted=True) == ""
    assert oracles.touched("patch", ref, forged, ledger, is_wanted=False)
    assert oracles.touched("delete", ref, forged, ledger, is_wanted=True)


def test_changed_replaced_and_deleted_objects_of_other_owners_are_violations() -> None:
    """Unchanged ones are not listed."""
    ledger, ref = known(), Ref(A, SECRET, "team", "own")
    before = {"metadata": {"uid": "1", "resourceVersion": "7"}}
    ledger.strangers[ref] = before
    assert list(oracles.changed([(ref, before)], ledger)) == []
    for after in (None, {"metadata": {"uid": "1", "resourceVersion": "8"}}, {"metadata": {"uid": "2"}}):
        assert list(oracles.changed([(ref, after)], ledger)) == [f"{ref} is a stranger's and was touched"]


def test_a_pod_that_refers_to_a_lower_only_object_must_not_be_created() -> None:
    """This holds even for optional references."""
    ledger = known()
    ledger.strangers[Ref(A, SECRET, "bank", "database")] = {}
    pod = {**upper_pod("web", A), "metadata": {"uid": "l-1", "annotations": {UPPER_UID: "u-web"}}}
    assert len(list(oracles.borrowed(Ref(A, POD, "bank", "web"), pod, ledger))) == 1
    assert list(oracles.borrowed(Ref(B, POD, "bank", "web"), pod, ledger)) == []
    ledger.hostile.add("l-1")
    assert list(oracles.borrowed(Ref(A, POD, "bank", "web"), pod, ledger)) == []


def test_the_kubelet_api_has_to_reach_the_pods_own_lower_pod() -> None:
    """Another namespace, a forged pod or the copy of another pod is a violation.

    It is allowed if the hostile tenant writes in the pod's place.
    """
    pod, ledger = upper_pod("web", A), known(Setting(hostile_namespace="victim", lower=B), web=A)
    assert oracles.reached(pod, ("bank", "web"), copy("u-web"), ledger) == ""
    assert oracles.reached(pod, ("bank", "web"), None, ledger) == ""
    assert oracles.reached(pod, ("aaa", "web"), copy("u-web"), ledger).endswith("not its place")
    assert oracles.reached(pod, ("bank", "web"), copy("u-other"), ledger).endswith("another pod's")
    ledger.hostile.add("l-1")
    assert oracles.reached(pod, ("bank", "web"), copy("u-web"), ledger).endswith("a forged pod")
    assert oracles.reached(upper_pod("web", B), ("bank", "web"), copy("u-web"), ledger) == ""


def test_a_copy_to_which_no_pod_refers_is_left_over() -> None:
    """It is not if a lower pod with all marks refers to it, an upper pod does, or it is terminating."""
    ledger, ref = known(), Ref(A, SECRET, "bank", "database")
    left = {"metadata": {"uid": "l-1", **ALL_MARKS}}
    assert oracles.left(ref, left, [], ledger, 0.0) == f"{ref} is left though no pod asks for it"
    pod = {**upper_pod("web", A), "metadata": ALL_MARKS}
    assert oracles.left(ref, left, [pod], ledger, 0.0) == ""
    assert oracles.left(ref, left, [], known(web=A), 0.0) == ""
    assert oracles.left(ref, {"metadata": {**left["metadata"], "deletionTimestamp": "now"}}, [], ledger, 0.0) == ""
    assert oracles.left(ref, copy("u-database"), [], ledger, 0.0) == ""


# Lateness.


def due(above: list[Manifest], below: dict[str, list[Manifest]], ledger: Ledger, *, has: bool = True) -> list[str]:
    """Return what is due."""
    sight = ObservedState({uid(one): one for one in above}, {A: [], B: [], **below}, lambda *_: has)
    return [one.problem.partition(": ")[2] or one.problem for one in lateness.due(sight, ledger)]


def lower_pod(upper_uid: str, phase: str = "Running", **meta: object) -> Manifest:
    """Return a lower pod."""
    found = {"name": "web", "namespace": "bank", "uid": f"l-{upper_uid}", "annotations": {UPPER_UID: upper_uid}, **meta}
    return {"metadata": found, "spec": {"nodeName": "n1"}, "status": {"phase": phase}}


def test_an_honest_pod_has_to_be_created_reported_and_deleted() -> None:
    """A lower pod is due once its references exist, its phase in the upper status, and its deletion with the upper pod.

    The time that kubelets need is not counted.
    """
    ledger, pending = known(), upper_pod("web", A, "Pending")
    assert due([pending], {}, ledger) == ["is Pending above and not below"]
    assert due([pending], {}, ledger, has=False) == []
    assert due([pending], {A: [lower_pod("u-web", "Pending")]}, ledger) == []
    assert due([pending], {A: [lower_pod("u-web")]}, ledger) == ["is Pending above and Running below"]
    assert due([pending], {A: [lower_pod("u-old", "Running")]}, ledger) == [
        "is Pending above and not below",
        "bank/web runs on in lower-a",
    ]
    deleted = upper_pod("web", A, deletionTimestamp="now")
    assert due([deleted], {A: [lower_pod("u-web")]}, ledger) == ["is deleted and not gone"]
    assert due([deleted], {A: [lower_pod("u-web", deletionTimestamp="now")]}, ledger) == []
    assert due([], {A: [lower_pod("u-web")]}, ledger) == ["bank/web runs on in lower-a"]
    assert due([], {A: [lower_pod("u-web", deletionTimestamp="now")]}, ledger) == []


def test_a_pod_whose_lower_pod_was_killed_has_to_be_failed() -> None:
    """Only a client of its own tenant may kill it; any other failed pod is a violation."""
    ledger, running, failed = known(), upper_pod("web", A), upper_pod("web", A, "Failed")
    sight = ObservedState({"u-web": failed}, {A: [], B: []}, lambda *_: True)
    assert list(lateness.lost(sight, ledger)) == ["bank/web is Failed (None), and no client ended it"]
    ledger.killed.add("u-web")
    assert due([running], {}, ledger) == ["was ended below, and is Running above"]
    assert due([failed], {}, ledger) == []
    assert list(lateness.lost(sight, ledger)) == []


def test_nothing_is_due_for_pods_in_places_of_the_hostile_tenant() -> None:
    """Nor for its own pods.

    Pods in other lowers are due, unless an older pod of that name may still run where the hostile tenant writes.
    """
    ledger = known(Setting(hostile_namespace="victim", lower=B))
    assert due([upper_pod("web", B, "Pending")], {}, ledger) == []
    assert due([upper_pod("web", A, "Pending", namespace="mallory-up")], {}, ledger) == []
    elsewhere = upper_pod("web", A, "Pending")
    older = lower_pod("u-old", **ALL_MARKS, finalizers=["stays"])
    assert due([elsewhere], {B: [older]}, ledger) == []
    ending = {"deletionTimestamp": "soon", "deletionGracePeriodSeconds": 30}
    assert due([elsewhere], {B: [lower_pod("u-old", **ALL_MARKS, **ending)]}, ledger) == []
    never = lower_pod("u-old", **ALL_MARKS, **ending | {"deletionGracePeriodSeconds": 10**8})
    free = lower_pod("u-old", **ALL_MARKS)
    for harmless in ({**older, "spec": {}}, {**older, "status": {"phase": "Failed"}}, lower_pod("u-old"), free, never):
        assert due([elsewhere], {B: [harmless]}, ledger) == ["is Pending above and not below"]


def test_lateness_is_measured_from_the_first_time_that_something_is_due() -> None:
    """A change of its description does not matter, and an excuse restarts the measurement."""
    late, ends = Lateness(), Due("u", True, "is deleted")
    assert late.update([Due("u", False, "one")], 0.0) == []
    assert late.update([Due("u", False, "two"), ends], BOUND) == []
    assert late.update([Due("u", False, "two"), ends], BOUND + 0.5) == ["two for 5 s"]
    late.reset()
    assert late.update([Due("u", False, "two")], BOUND + 1.0) == []
    assert late.worst == BOUND + 0.5
