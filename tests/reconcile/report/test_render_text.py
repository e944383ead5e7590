"""Tests of the text output of a plan, which people read."""

import re

import pytest
from previewkit import (
    A,
    B,
    change,
    config,
    create,
    delete,
    json_patch,
    merge,
    node,
    observed_object,
    of_kind,
    plan_lines,
    pod,
    previewed,
    secret,
)

from tensile.objects import CLAIM, LEASE, NAMESPACE, VOLUME, Manifest
from tensile.reconcile.plan import Step
from tensile.reconcile.report import PlanScope, as_markdown, as_text
from tensile.reconcile.world import Key, Problem

WHOLE = """\
Upper cluster: 2 to change, 1 to delete
~ Pod shop/web: because
    spec.tolerations[not-ready:NoExecute].tolerationSeconds: removed (was 300)
~ Node lower-a: because
    metadata.labels.zone: "b" -> "c"
    status.allocatable.cpu: "8" -> "10"
    status.conditions[LowerReachable].status: "False" -> "True"
- Node lower-z: its lower cluster was removed from the topology

Lower cluster lower-a: 3 to add, 1 to change, 2 to delete
~ ConfigMap shop/settings: pods on node lower-a refer to it
    data.new: set to "1"
    data.old: removed (was "0")
    immutable: set to true
+ Secret shop/token: pods on node lower-a refer to it
    type: Opaque
    keys: password
- Pod shop/web-1: the upper pod was deleted
-/+ Pod shop/web-2: it was created for an upper object that is gone
    metadata.annotations.tensile-kube.io/upper-uid: "one" -> "two"
+ Pod shop/web-3: bound to node lower-a
    images: sidecar:1, app:2

Problems
! orphans on lower-a: DeletionLimitExceeded: 60 deletions are held back
! pod shop/web-1 on lower-b: QuotaExceeded: exceeded quota: pods=10

Plan: 3 to add, 3 to change, 3 to delete (upper: 2 to change, 1 to delete; \
lower-a: 3 to add, 1 to change, 2 to delete)"""

TOLERATION = {"key": "not-ready", "effect": "NoExecute", "operator": "Exists"}
ABOVE = observed_object({"spec": {"tolerations": [{**TOLERATION, "tolerationSeconds": 300}]}})
NODE = observed_object(
    {
        "metadata": {"labels": {"zone": "b"}},
        "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "LowerReachable", "status": "False"}]},
    }
)
OLD = observed_object({"data": {"old": "0"}})


def marked(uid: str) -> Manifest:
    """Return a pod that was made for the upper pod of that UID."""
    return {"metadata": {"annotations": {"tensile-kube.io/upper-uid": uid}}}


def containers(*images: str) -> Manifest:
    """Return a pod with a container for each image, of which the first is an init container."""
    first, *others = [{"name": f"c{place}", "image": image} for place, image in enumerate(images)]
    return {"spec": {"initContainers": [first], "containers": others}}


def numbered(count: int, **more: str) -> list[Step]:
    """Return steps that create so many pods with the same image."""
    return [create(pod(f"web-{place}"), containers("a", more.get("image", "a"))) for place in range(count)]


def last(text: str) -> str:
    """Return the last line, which scripts read."""
    return text.rsplit("\n", 1)[-1]


def test_the_text_of_a_plan_has_the_recorded_form() -> None:
    """Each cluster has its changes with reason and fields, and problems and counts follow.

    The order of the steps does not matter.
    """
    settings = [
        change(config(), OLD, {"data": {"new": "1"}}),
        json_patch(config(), {"op": "add", "path": "/immutable", "value": True}),
    ]
    conditions = [{"type": "LowerReachable", "status": "True"}]
    steps = [
        *(Step(one.verb, one.ref, "pods on node lower-a refer to it", patch=one.patch) for one in settings),
        create(secret(), {"type": "Opaque", "data": {"password": "cGFzc3dvcmQ="}}, "pods on node lower-a refer to it"),
        delete(pod("web-2"), "it was created for an upper object that is gone"),
        create(pod("web-2"), marked("two")),
        create(pod("web-3"), containers("sidecar:1", "app:2", "app:2"), "bound to node lower-a"),
        delete(pod("web-1"), "the upper pod was deleted"),
        json_patch(node(), {"op": "replace", "path": "/metadata/labels/zone", "value": "c"}),
        merge(node(), "strategic-merge-patch", status={"allocatable": {"cpu": "10"}, "conditions": conditions}),
        merge(pod("web", ""), "merge-patch", spec={"tolerations": [TOLERATION]}),
        delete(node("lower-z"), "its lower cluster was removed from the topology"),
    ]
    problems = {
        Key("pod", B, "shop", "web-1"): Problem("QuotaExceeded", "exceeded quota: pods=10"),
        Key("orphans", A, "", ""): Problem("DeletionLimitExceeded", "60 deletions are held back"),
    }
    seen = {config(): OLD, node(): NODE, pod("web", ""): ABOVE, pod("web-2"): marked("one")}
    found = as_text(previewed(*steps, seen=seen, problems=problems), colour=False)
    assert found == WHOLE
    shuffled = sorted(steps, key=lambda step: step.ref.name)
    assert as_text(previewed(*shuffled, seen=seen, problems=problems), colour=False) == WHOLE


def test_a_plan_without_changes_has_a_sentence_for_it() -> None:
    """The last line keeps its form."""
    assert as_text(previewed(), colour=True) == (
        "No changes. Every cluster matches the topology.\n\nPlan: 0 to add, 0 to change, 0 to delete (no changes)"
    )


def test_a_plan_without_changes_but_with_problems_mentions_them() -> None:
    """A blocked plan must not look as if everything matched the topology."""
    key = Key("orphans", A, "", "")
    found = as_text(previewed(problems={key: Problem("DeletionLimitExceeded", "60 deletions")}), colour=False)
    assert found.split("\n") == [
        "No changes. Some objects are blocked: see the problems.",
        "",
        "Problems",
        "! orphans on lower-a: DeletionLimitExceeded: 60 deletions",
        "",
        "Plan: 0 to add, 0 to change, 0 to delete (no changes)",
    ]


def test_unreachable_lowers_are_listed_as_not_planned() -> None:
    """The text states neither that they match the topology nor what will change."""
    away = {A: "out of reach: no response within 10 s"}
    assert as_text(previewed(unreached=away), colour=False).split("\n") == [
        "No changes. Every cluster that was reached matches the topology.",
        "",
        "Not planned",
        f"! {A}: out of reach: no response within 10 s",
        "",
        f"Plan: 0 to add, 0 to change, 0 to delete (no changes; not planned: {A})",
    ]


def test_a_plan_for_one_lower_shows_only_its_changes_and_names_the_limit() -> None:
    """Changes of its keys in the upper cluster stay, such as its Node, and other lowers are left out."""
    steps = create(node()), create(pod()), create(config("other", cluster=B))
    problems = {Key("pod", lower, "shop", "web"): Problem("QuotaExceeded", "pods=10") for lower in (A, B)}
    text = as_text(previewed(*steps, problems=problems, unreached={B: "away"}, only=PlanScope((A,))), colour=False)
    assert re.findall(r"^[+!] (\S+ \S+)", text, re.MULTILINE) == ["Node lower-a:", "Pod shop/web:", "pod shop/web"]
    assert "away" not in text
    assert last(text) == (
        "Plan: 2 to add, 0 to change, 0 to delete (upper: 1 to add; lower-a: 1 to add; partial: only lower-a shown)"
    )
    assert as_text(previewed(*steps[2:], only=PlanScope((A,))), colour=False).splitlines()[0] == (
        "No changes for lower-a. The rest of the plan is not shown."
    )


@pytest.mark.parametrize(
    ("only", "shown", "message"),
    [
        (PlanScope(namespaces=("shop",)), ["ConfigMap shop/other", "Pod shop/web"], "namespace shop"),
        (PlanScope(namespaces=("elsewhere",)), [], "namespace elsewhere"),
        (PlanScope(kinds=("Pod", "Node")), ["Node lower-a", "Pod shop/web"], "kind Pod, kind Node"),
        (PlanScope((A,), ("shop",), ("Pod",)), ["Pod shop/web"], "lower-a, namespace shop, kind Pod"),
        (PlanScope((B,), ("shop",), ("Pod",)), [], "lower-b, namespace shop, kind Pod"),
    ],
    ids=lambda value: value.description if isinstance(value, PlanScope) else "",
)
def test_a_plan_can_be_limited_to_namespaces_and_kinds(only: PlanScope, shown: list[str], message: str) -> None:
    """All limits apply together, and the last line names them."""
    found = previewed(create(node()), create(pod()), create(config("other", cluster=B)), only=only)
    text = as_text(found, colour=False)
    assert sorted(re.findall(r"^\+ (\S+ [^:]+)", text, re.MULTILINE)) == shown
    assert last(text).endswith(f"; partial: only {message} shown)")


def test_the_limits_of_a_plan_apply_to_its_problems() -> None:
    """A problem of a whole lower stays, because it affects every namespace."""
    problems = {
        Key("pod", A, "shop", "web"): Problem("Denied", "here"),
        Key("pod", A, "other", "web"): Problem("Denied", "elsewhere"),
        Key("dependency", A, "shop", "Secret/key"): Problem("Denied", "a Secret"),
        Key("orphans", A, "", ""): Problem("DeletionLimitExceeded", "held back"),
    }
    only = PlanScope(namespaces=("shop",), kinds=("Pod",))
    assert {why.message for _, why in previewed(problems=problems, only=only).problems} == {"here", "held back"}


def test_additional_sections_come_before_the_last_line() -> None:
    """The last line keeps its place for scripts."""
    text = as_text(previewed(), colour=False, more=["One\nsection", "Two"])
    assert text.split("\n\n")[1:] == ["One\nsection", "Two", "Plan: 0 to add, 0 to change, 0 to delete (no changes)"]
    assert as_markdown(previewed(), ["Two"]).split("\n")[-5:-2] == ["", "Two", "```"]


def test_the_last_line_has_the_counts_by_cluster_without_zeros() -> None:
    """An object that is replaced counts as one to add and one to delete."""
    steps = [
        create(node()),
        create(config()),
        create(pod()),
        json_patch(config("other"), {"op": "add", "path": "/data", "value": {}}),
    ]
    assert last(as_text(previewed(*steps), colour=False)) == (
        "Plan: 3 to add, 1 to change, 0 to delete (upper: 1 to add; lower-a: 2 to add, 1 to change)"
    )
    replaced = previewed(delete(pod()), create(pod()))
    assert last(as_text(replaced, colour=True)) == (
        "Plan: 1 to add, 0 to change, 1 to delete (lower-a: 1 to add, 1 to delete)"
    )


def test_colors_only_add_escape_sequences() -> None:
    """Without them, a colored plan is equal to the plain one."""
    problems = {Key("pod", A, "shop", "x"): Problem("Denied", "no")}
    steps = [create(pod()), delete(config()), delete(pod("y")), create(pod("y")), change(secret(), {}, OLD)]
    found = previewed(*steps, problems=problems)
    coloured, plain = (as_text(found, colour=colour) for colour in (True, False))
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "\x1b" not in plain
    assert "\x1b[32m+\x1b[0m Pod shop/web: because" in coloured
    assert "\x1b[1;31m!\x1b[0m pod shop/x" in coloured


def test_a_new_object_is_shown_with_its_most_important_fields() -> None:
    """These are images, keys, or the properties of a node, but not the body or the engine's own marks."""
    ours = {"labels": {"tensile-kube.io/owner": "1", "kubernetes.io/metadata.name": "shop", "zone": "b"}}
    body = {
        "metadata": ours,
        "spec": {
            "unschedulable": True,
            "taints": [
                {"key": "k", "value": "v", "effect": "NoSchedule"},
                {"key": "bare", "effect": "NoExecute"},
            ],
        },
        "status": {"allocatable": {"pods": "110", "cpu": "4"}},
    }
    maps = {"data": {"b": "1", "a": "2"}, "binaryData": {"c": "AA=="}}
    assert plan_lines(create(node(), body)) == [
        "+ Node lower-a: because",
        "    capacity: cpu 4, pods 110",
        "    labels: zone=b",
        "    taints: k=v:NoSchedule, bare:NoExecute",
        "    unschedulable: true",
    ]
    assert plan_lines(create(of_kind(NAMESPACE), {"metadata": ours})) == [
        "+ Namespace one: because",
        "    labels: zone=b",
    ]
    assert plan_lines(create(config(), maps)) == ["+ ConfigMap shop/settings: because", "    keys: a, b, c"]
    assert plan_lines(create(config(), {})) == ["+ ConfigMap shop/settings: because"]
    assert plan_lines(create(of_kind(LEASE), {"spec": {}})) == ["+ Lease shop/one: because"]


def test_a_long_list_of_names_is_truncated_with_their_number() -> None:
    """A ConfigMap with a hundred keys needs one line."""
    body = {"data": {f"key-{place:03}": "" for place in range(100)}}
    (_, keys) = plan_lines(create(config(), body))
    assert keys.endswith("key-010, key-011 and 88 more")


@pytest.mark.parametrize(
    ("old", "new", "rendered"),
    [
        ("b", "c", ['data.k: "b" -> "c"']),
        ("b", "", ['data.k: "b" -> ""']),
        (None, "c", ['data.k: set to "c"']),
        ("b", None, ['data.k: removed (was "b")']),
        (None, "1\n2\n3", ["data.k: set to 3 lines"]),
        ("1\n2\n3\n", None, ["data.k: removed (was 3 lines)"]),
        (None, "x" * 200, ['data.k: set to "' + "x" * 99 + "..."]),
        ("\u00e4", "\x1b[2J\u202e\u009b\x7f", ['data.k: "\u00e4" -> "\\u001b[2J\\u202e\\u009b\\u007f"']),
        ("a\nb\nc\nd\n", "a\nB\nc\nd\n", ["data.k: +1 -1 lines", "  @@ -1,3 +1,3 @@", "   a", "  -b", "  +B", "   c"]),
        ("a", "a\n\x1b", ["data.k: +1 -0 lines", "  @@ -1 +1,2 @@", "   a", "  +\\u001b"]),
    ],
)
def test_a_changed_value_is_shown_for_comparison(old: str | None, new: str | None, rendered: list[str]) -> None:
    """Small values are shown completely, and texts as a diff by line.

    Control characters are escaped, so no value can control the terminal.
    """
    before, after = (observed_object({"data": {} if value is None else {"k": value}}) for value in (old, new))
    assert plan_lines(change(config(), before, after), seen={config(): before})[1:] == [
        f"    {line}" for line in rendered
    ]


def test_long_values_are_truncated_around_their_difference() -> None:
    """Two digests of an image must not look equal."""
    before, after = (observed_object({"data": {"k": f"{'x' * 150}{end}{'y' * 150}"}}) for end in "ab")
    (_, line) = plan_lines(change(config(), before, after), seen={config(): before})
    assert line == f"    data.k: ...{'x' * 20}a{'y' * 79}... -> ...{'x' * 20}b{'y' * 79}..."


def test_a_large_change_of_a_text_is_shown_by_its_number_of_lines() -> None:
    """A rewritten file does not fill the screen, and a huge one is not compared."""

    def told(old: list[str], new: list[str]) -> list[str]:
        before, after = (observed_object({"data": {"k": "\n".join(text)}}) for text in (old, new))
        return plan_lines(change(config(), before, after), seen={config(): before})[1:]

    assert told([f"a{n}" for n in range(20)], [f"b{n}" for n in range(25)]) == ["    data.k: +25 -20 lines"]
    assert told(["a"] * 900, ["b"] * 901) == ["    data.k: 900 lines -> 901 lines"]


def test_many_changed_fields_are_truncated_with_their_number() -> None:
    """The first twenty are shown."""
    before, after = (observed_object({"data": {f"k{n:02}": end for n in range(30)}}) for end in "ab")
    found = plan_lines(change(config(), before, after), seen={config(): before})
    assert len(found) == 22
    assert found[-1] == "    and 10 more fields"


def test_up_to_ten_equal_changes_are_shown_separately() -> None:
    """So many names can still be read."""
    assert plan_lines(*numbered(10))[::2] == [f"+ Pod shop/web-{place}: because" for place in range(10)]


def test_more_than_ten_equal_changes_are_combined() -> None:
    """They are shown with their number and the first three names, and a different change is shown separately."""
    odd = create(pod("web-5"), containers("other", "image"))
    steps = [step for step in numbered(13) if step.ref.name != "web-5"]
    assert plan_lines(*steps, odd) == [
        "+ 12 x Pod: because",
        "    shop/web-0, shop/web-1, shop/web-2 and 9 more",
        "    images: a",
        "+ Pod shop/web-5: because",
        "    images: other, image",
    ]
    assert last(as_text(previewed(*steps, odd), colour=False)).startswith("Plan: 13 to add")


def test_changes_with_different_values_are_not_combined() -> None:
    """This also applies if the values differ only in their truncated part."""
    refs = [config(f"c-{place}") for place in range(12)]
    old = observed_object({"data": {"k": ""}})
    alike = [change(ref, old, {"data": {"k": "x" * 300}}) for ref in refs]
    unlike = [change(ref, old, {"data": {"k": "x" * 300 + ref.name}}) for ref in refs]
    assert plan_lines(*alike, seen=dict.fromkeys(refs, old))[0] == "~ 12 x ConfigMap: because"
    assert plan_lines(*unlike, seen=dict.fromkeys(refs, old))[0] == "~ ConfigMap shop/c-0: because"


def test_equal_changes_in_two_clusters_are_shown_in_both() -> None:
    """The section of each cluster is complete."""
    steps = [create(config(f"c-{place}", cluster)) for cluster in (A, B) for place in range(11)]
    assert as_text(previewed(*steps), colour=False).count("+ 11 x ConfigMap: because") == 2


def test_one_problem_of_many_pods_is_shown_once() -> None:
    """More than ten equal problems are combined with their number and the first three names."""
    why = Problem("ConfigMapNotFound", "ConfigMap shop/settings does not exist")
    few = {Key("dependency", A, "shop", "ConfigMap/settings"): why}
    many = {Key("pod", A, "shop", f"web-{place}"): why for place in range(11)}
    text = as_text(previewed(problems={**few, **many}), colour=False)
    assert text.split("\n")[3:6] == [
        "! ConfigMap shop/settings on lower-a: ConfigMapNotFound: ConfigMap shop/settings does not exist",
        "! 11 x pod on lower-a: ConfigMapNotFound: ConfigMap shop/settings does not exist",
        "    shop/web-0, shop/web-1, shop/web-2 and 8 more",
    ]


def test_up_to_ten_equal_problems_are_shown_separately() -> None:
    """So many names can still be read."""
    why = Problem("Denied", "no")
    ten = {Key("pod", A, "shop", f"web-{place}"): why for place in range(10)}
    text = as_text(previewed(problems=ten), colour=False).split("\n")
    assert text[3:13] == [f"! pod shop/web-{place} on lower-a: Denied: no" for place in range(10)]


def test_a_problem_is_shown_on_one_line() -> None:
    """A message of a cluster cannot forge another line of the plan."""
    forged = Problem("Denied", "no\nPlan: 0 to add\x1b[1A")
    text = as_text(previewed(problems={Key("pod", A, "shop", "x"): forged}), colour=False)
    assert "! pod shop/x on lower-a: Denied: no\\nPlan: 0 to add\\u001b[1A" in text.split("\n")


def test_markdown_has_the_text_in_a_code_block_and_the_counts_after_it() -> None:
    """No value can end the code block early."""
    before, after = observed_object({"data": {"k": "a\n"}}), observed_object({"data": {"k": "a\n````\n"}})
    found = as_markdown(previewed(change(config(), before, after), seen={config(): before})).split("\n")
    assert found[0] == "`````diff"
    assert "      +````" in found
    assert found[-3:] == ["`````", "", "Plan: 0 to add, 1 to change, 0 to delete (lower-a: 1 to change)"]
    assert as_markdown(previewed()).split("\n")[::2] == [
        "```diff",
        "```",
        "Plan: 0 to add, 0 to change, 0 to delete (no changes)",
    ]


def test_a_new_claim_or_volume_is_shown_with_its_storage() -> None:
    """A claim has its class, and a volume has its claim and reclaim policy."""
    size = {"storage": "1Gi"}
    claim = {"spec": {"storageClassName": "disk", "resources": {"requests": size}}}
    spec = {
        "capacity": size,
        "claimRef": {"namespace": "shop", "name": "data"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    assert plan_lines(create(of_kind(CLAIM, "data"), claim))[1:] == ["    storage: 1Gi", "    class: disk"]
    assert plan_lines(create(of_kind(VOLUME, "data"), {"spec": spec}))[1:] == [
        "    storage: 1Gi",
        "    claim: shop/data",
        "    policy: Retain",
    ]
    assert (
        plan_lines(create(of_kind(CLAIM, "data"), {}))[1:] == plan_lines(create(of_kind(VOLUME, "data"), {}))[1:] == []
    )
