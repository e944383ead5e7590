"""Tests of the tenants check: other pods in the namespaces of mirrored pods, and what the topology exposes to them."""

from typing import Any

import pytest
from doctorkit import LOWER, OWNER_OF, UPPER_ID, cluster_facts, facts, findings_at, levels, only_finding, topology
from doctorkit import node as node_of

from tensile.diagnostics.doctor.facts import NAMESPACES, NODES, PODS_BY_NAMESPACE, POLICIES, Finding, Level, QueryAnswer
from tensile.diagnostics.doctor.lowers import MOST, check_network_policies, check_tenants, mirrored_namespaces
from tensile.names import OWNER, OWNER_NAME, owner_of
from tensile.objects import UPPER

OURS = OWNER_OF.mark


def looked(
    lower_objects: list[str], pods: list[tuple[str, str]], above: tuple[str, ...] = ("shop",), **fields: Any
) -> list[Finding]:
    """Return the findings on a lower with these namespaces and pods.

    Other fields belong to the topology's lower cluster, `user` to the connection.
    """
    user = fields.pop("user", "engine")
    upper = cluster_facts(UPPER, answers={NAMESPACES: QueryAnswer(["kube-system", *above])})
    lower = cluster_facts(
        user=user,
        answers={NAMESPACES: QueryAnswer(["kube-system", *lower_objects]), PODS_BY_NAMESPACE: QueryAnswer(pods)},
    )
    return list(check_tenants(lower, facts(upper, lower, topology=topology(lower=fields))))


@pytest.mark.parametrize(
    "pods", [[], [("shop", OURS)], [("other", ""), ("other", "theirs")]], ids=["none", "own", "of another namespace"]
)
def test_a_lower_without_pods_of_other_owners_in_shared_namespaces_is_ok(pods: list[tuple[str, str]]) -> None:
    """Pods of other owners in other namespaces are irrelevant; kube-system is excluded."""
    finding = only_finding(looked(["shop", "other"], [*pods, ("kube-system", "")]))
    assert (finding.level, finding.cluster, finding.check) == (Level.OK, LOWER, "tenants")


def test_pods_of_other_owners_in_a_mirrored_namespace_are_a_warning() -> None:
    """The warning counts them per namespace, including those of another topology, and the advice names the fields."""
    finding = only_finding(looked(["shop"], [("shop", ""), ("shop", "another"), ("shop", OURS)]))
    assert finding.level == Level.WARN
    assert finding.what.endswith("go to, and count as one tenant: shop (2)")
    assert "namespaces: {mapping: prefix}" in finding.advice
    assert "excludeNamespaces" in finding.advice


def test_pods_of_the_topologys_former_name_are_not_reported() -> None:
    """After a rename, the owner mark of the Node identifies the topology's own pods."""
    former = owner_of(UPPER_ID, "former")
    node = node_of(LOWER, ours=False)
    node["metadata"] |= {"labels": {OWNER: former.mark}, "annotations": {OWNER_NAME: former.name}}
    upper = cluster_facts(UPPER, answers={NAMESPACES: QueryAnswer(["shop"]), NODES: QueryAnswer([node])})
    pods = QueryAnswer([("shop", former.mark)])
    lower = cluster_facts(answers={NAMESPACES: QueryAnswer(["shop"]), PODS_BY_NAMESPACE: pods})
    assert only_finding(check_tenants(lower, facts(upper, lower))).level == Level.OK
    upper.answers[NODES] = QueryAnswer([])
    assert only_finding(check_tenants(lower, facts(upper, lower))).level == Level.WARN


def test_pods_of_other_owners_in_a_prefixed_namespace_are_a_warning() -> None:
    """Only the engine should create pods there; a namespace of the unprefixed name belongs to another user."""
    prefixed = {"namespaces": {"mapping": "prefix"}}
    finding = only_finding(looked(["demo-shop", "shop"], [("demo-shop", ""), ("shop", "")], **prefixed))
    assert finding.what.endswith("made for pods from the upper cluster: demo-shop (1)")
    assert levels(looked(["shop"], [("shop", "")], **prefixed)) == [Level.OK]


@pytest.mark.parametrize(
    ("fields", "message", "advice"),
    [
        (
            {"serviceAccounts": {"identity": "upper"}},
            "tokens of the upper cluster are where others can read them (serviceAccounts.identity: upper): shop (1)",
            "give lower-a serviceAccounts: {identity: lower}",
        ),
        (
            {"controllers": ["RBAC", "ServiceAccount"]},
            "accounts have permissions where others can run pods as them (controllers: RBAC): shop (1)",
            "leave RBAC out of controllers of lower-a",
        ),
    ],
)
def test_fields_that_expose_rights_in_a_shared_namespace_are_a_warning(
    fields: dict[str, Any], message: str, advice: str
) -> None:
    """The warning names the field; without pods of other owners there is no warning."""
    _, finding = looked(["shop"], [("shop", "")], **fields)
    assert (finding.level, finding.what) == (Level.WARN, message)
    assert finding.advice.startswith(advice)
    assert levels(looked(["shop"], [], **fields)) == [Level.OK]


def test_a_namespace_that_maps_to_the_engines_namespace_is_a_warning() -> None:
    """Pods of that namespace are not mirrored, so the warning does not wait until pods exist."""
    account = "system:serviceaccount:tensile:engine"
    finding = findings_at(looked(["tensile"], [], ("tensile",), user=account), Level.WARN)[0]
    assert finding.what == "namespace tensile of the upper cluster maps to tensile, which has the engine's own account"
    prefixed = {"namespaces": {"mapping": "prefix"}}
    assert levels(looked(["tensile"], [], ("tensile",), user=account, **prefixed)) == [Level.OK]
    assert levels(looked(["tensile"], [], ("shop",), user=account)) == [Level.OK]


def test_the_number_of_named_and_of_checked_namespaces_is_limited() -> None:
    """The finding counts the namespaces that it does not name, and reports how many were checked."""
    names = [f"n{number:02}" for number in range(MOST + 5)]
    finding = only_finding(looked(names, [(name, "") for name in names[:7]], tuple(names)))
    assert finding.what.endswith("n00 (1), n01 (1), n02 (1), n03 (1), n04 (1) and 2 more")
    assert f"in {MOST} of {MOST + 5} namespaces" in only_finding(looked(names, [], tuple(names))).what


@pytest.mark.parametrize("missing", [(UPPER, NAMESPACES), (LOWER, NAMESPACES), (LOWER, PODS_BY_NAMESPACE)])
@pytest.mark.parametrize("answer", [None, QueryAnswer(error="forbidden", status=403)])
def test_unknown_namespaces_or_pods_skip_the_tenants_check(
    missing: tuple[str, str], answer: QueryAnswer | None
) -> None:
    """The finding is neither OK nor a warning, and has the error if there is one."""
    sides = {UPPER: cluster_facts(UPPER), LOWER: cluster_facts()}
    cluster, question = missing
    if answer is None:
        del sides[cluster].answers[question]
    else:
        sides[cluster].answers[question] = answer
    finding = only_finding(check_tenants(sides[LOWER], facts(sides[UPPER], sides[LOWER])))
    assert (finding.level, "forbidden" in finding.what) == (Level.SKIP, answer is not None)


def test_the_upper_and_an_unreachable_lower_have_no_tenants_finding() -> None:
    """Only a lower cluster that responds is checked."""
    upper, away = cluster_facts(UPPER), cluster_facts(contact=None)
    assert list(check_tenants(upper, facts(upper))) == []
    assert list(check_tenants(away, facts(upper, away))) == []


def test_places_maps_upper_namespaces_to_existing_lower_namespaces() -> None:
    """The result depends on namespaces.mapping, and excludes kube-system."""
    same, prefixed = (topology(lower={"namespaces": {"mapping": mapping}}) for mapping in ("same", "prefix"))
    upper_objects, lower_objects = ["shop", "kube-system", "new"], ["shop", "demo-shop", "kube-system", "other"]
    assert mirrored_namespaces(same.lowers[0], same, upper_objects, lower_objects) == {"shop": "shop"}
    assert mirrored_namespaces(prefixed.lowers[0], prefixed, upper_objects, lower_objects) == {"shop": "demo-shop"}


def policies(upper_objects: list[str], lower_objects: list[str]) -> list[Finding]:
    """Return the findings on a lower with these namespaces, and NetworkPolicies in those of the upper cluster."""
    answers = {NAMESPACES: QueryAnswer(["kube-system", "shop", "bank"]), POLICIES: QueryAnswer(upper_objects)}
    upper, lower = (
        cluster_facts(UPPER, answers=answers),
        cluster_facts(answers={NAMESPACES: QueryAnswer(lower_objects)}),
    )
    return [*check_network_policies(upper, facts(upper, lower)), *check_network_policies(lower, facts(upper, lower))]


def test_network_policies_of_mirrored_namespaces_are_a_warning() -> None:
    """The policies do not apply to pods in the lower cluster; those of other namespaces are not reported."""
    finding = only_finding(policies(["shop", "shop", "bank", "kube-system"], ["shop", "kube-system"]))
    assert (finding.cluster, finding.check, finding.level) == (LOWER, "network", Level.WARN)
    assert finding.what.endswith("do not apply to its pods here: shop (2)")
    assert finding.advice == f"create equivalent policies in {LOWER}, in the namespaces where these pods run"
    assert policies([], ["shop"]) == policies(["bank"], ["shop"]) == []
