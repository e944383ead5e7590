"""Tests of the trial of each right: how it is removed, how audit logs are read, and when it counts as needed."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.kit.audited_rights import RequestsByRight, required_right
from bench.kit.rbac import OWN, Right, collection, parse_right, path_of, rights_in, split_rule, without
from bench.mutation.rights import TESTS, Ran, failure, is_shown, joined, likely, summary, wanted, wrong
from tensile.sandbox.state import UPPER

LEASES = "leases.coordination.k8s.io"
ROLE = {
    "kind": "ClusterRole",
    "metadata": {"name": "r"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get", "list"]},
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]},
    ],
}
BINDING = {"kind": "ClusterRoleBinding", "metadata": {"name": "r"}, "subjects": []}
OWN_ROLE = {
    "kind": "Role",
    "metadata": {"name": "r", "namespace": "here"},
    "rules": [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["x"], "verbs": ["get"]}
    ],
}
PODS = Right("lower", "pods", "list")


def ran(code: int = 0, seconds: float = 1.0, **sorts: frozenset[Right]) -> Ran:
    """Return the result of a test."""
    return Ran(code, "", seconds, **{"done": frozenset(), "refused": frozenset(), "denied": frozenset(), **sorts})


@pytest.mark.parametrize("one", [*wanted(), Right("lower", "*.*", "list")])
def test_a_right_is_parsed_from_its_text(one: Right) -> None:
    """Therefore a right can be given on the command line."""
    assert parse_right(str(one)) == one


def test_every_right_of_the_roles_is_tried_once() -> None:
    """Rights in the upper and in the lower clusters are included, and in each namespace."""
    rights = wanted()
    assert len(rights) == len(set(rights)) > 100
    assert Right(UPPER, LEASES, "patch", "kube-system") in rights
    assert Right(UPPER, "configmaps", "patch", OWN) in rights
    assert Right(UPPER, LEASES, "patch", "kube-node-lease") in rights
    assert Right("lower", "*.*", "list") in rights


def test_exactly_one_right_is_removed() -> None:
    """This holds in the upper cluster, where no right covers another one."""
    missing = Right(UPPER, "secrets", "get")
    before, after = (
        set(rights_in(UPPER, roles, "here")) for roles in ([ROLE], without(UPPER, [ROLE], missing, "here"))
    )
    assert before - after == {missing}
    assert after < before


def test_the_right_to_list_one_lower_kind_is_removed_with_that_to_list_all_kinds() -> None:
    """The latter would cover it.

    If the right to list all kinds is removed, those of single kinds stay.
    """
    before = set(rights_in("lower-a", [ROLE], "here"))
    assert before - set(rights_in("lower-a", without("lower-a", [ROLE], PODS, "here"), "here")) == {
        PODS,
        Right("lower", "*.*", "list"),
    }
    every = Right("lower", "*.*", "list")
    assert before - set(rights_in("lower-a", without("lower-a", [ROLE], every, "here"), "here")) == {every}


def test_bindings_and_resource_names_are_kept() -> None:
    """The rest of a role applies to the same objects as before."""
    left = without(UPPER, [OWN_ROLE, BINDING], PODS, "here")
    assert left[1] == BINDING
    assert left[0]["rules"] == OWN_ROLE["rules"]  # type: ignore[index]
    assert list(rights_in(UPPER, left, "here")) == [Right(UPPER, LEASES, "get", OWN)]
    assert [one["resourceNames"] for rule in OWN_ROLE["rules"] for one in split_rule(rule)] == [["x"]]  # type: ignore[index]


def test_the_path_of_a_role_depends_on_its_scope() -> None:
    """It is in the cluster or in a namespace."""
    group = "/apis/rbac.authorization.k8s.io/v1"
    assert path_of(ROLE) == f"{group}/clusterroles/r"
    assert collection(BINDING) == f"{group}/clusterrolebindings"
    assert path_of(OWN_ROLE) == f"{group}/namespaces/here/roles/r"


def record(code: int = 200, user: str = "engine", decision: str = "allow", **ref: str) -> dict[str, Any]:
    """Return a record of an audit log."""
    return {
        "verb": ref.pop("verb", "get"),
        "user": {"username": user},
        "objectRef": ref,
        "responseStatus": {"code": code},
        "annotations": {"authorization.k8s.io/decision": decision},
    }


@pytest.mark.parametrize(
    ("cluster", "ref", "wanted_thing"),
    [
        ("lower-b", {"resource": "pods", "subresource": "exec"}, Right("lower", "pods/exec", "get")),
        (UPPER, {"resource": "configmaps", "namespace": "here"}, Right(UPPER, "configmaps", "get")),
        (
            UPPER,
            {"resource": "configmaps", "namespace": "here", "verb": "patch"},
            Right(UPPER, "configmaps", "patch", OWN),
        ),
        (
            "lower-a",
            {"resource": "configmaps", "namespace": "here", "verb": "patch"},
            Right("lower", "configmaps", "patch"),
        ),
        (
            UPPER,
            {"resource": "leases", "apiGroup": "coordination.k8s.io", "namespace": "kube-node-lease"},
            Right(UPPER, LEASES, "get", "kube-node-lease"),
        ),
        (UPPER, {"resource": "secrets", "namespace": "here", "verb": "create"}, Right(UPPER, "secrets", "create", OWN)),
        (UPPER, {"resource": "secrets", "namespace": "there", "verb": "create"}, Right(UPPER, "secrets", "create")),
        (
            UPPER,
            {"resource": "secrets", "namespace": "here", "name": "tensile-webhook-demo"},
            Right(UPPER, "secrets", "get", OWN),
        ),
        (UPPER, {"resource": "secrets", "verb": "list"}, Right(UPPER, "secrets", "list")),
    ],
)
def test_the_right_that_a_request_needs_is_derived_as_in_the_roles(
    cluster: str, ref: dict[str, str], wanted_thing: Right
) -> None:
    """It has a namespace only if the role is in one."""
    assert required_right(cluster, record(**ref), "here") == wanted_thing


def test_requests_that_were_done_refused_and_denied_are_separated(tmp_path: Path) -> None:
    """Earlier requests and those of other users do not count.

    A refusal by a quota is not a missing right.
    """
    log, uses = tmp_path / "audit.log", tmp_path / "uses"
    append(log, record(resource="nodes"))
    counted = RequestsByRight({"lower-a": log})
    append(
        log,
        record(resource="pods"),
        record(resource="secrets", user="another"),
        record(403, resource="pods", verb="create"),
        record(403, resource="events", decision="forbid"),
        {"verb": "get", "user": {"username": "engine"}, "responseStatus": {"code": 200}, "requestURI": "/version"},
    )
    counted.keep(uses, "engine", "here")
    assert orjson.loads(uses.read_bytes()) == {
        "done": ["lower: get pods"],
        "refused": ["lower: create pods", "lower: get events"],
        "denied": ["lower: get events"],
    }


def append(log: Path, *records: dict[str, Any]) -> None:
    """Append records to an audit log."""
    with log.open("ab") as file:
        file.writelines(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in records)


def test_tests_that_use_a_right_are_selected_quickest_first() -> None:
    """If none uses it, tests that use the same resource otherwise are selected; other tests never are."""
    get, other = Right("lower", "pods/exec", "get"), Right("lower", "pods/exec", "create")
    whole = {
        "slow": ran(seconds=9, done=frozenset({get})),
        "near": ran(seconds=1, done=frozenset({other})),
        "quick": ran(seconds=2, done=frozenset({get, PODS})),
        "far": ran(seconds=0, done=frozenset({PODS})),
    }
    assert likely(get, whole) == ["quick", "slow"]
    assert likely(get._replace(verb="watch"), whole) == ["near", "quick", "slow"]


@pytest.mark.parametrize(
    ("code", "refused", "shown"),
    [
        (1, Right("lower", "pods", "list"), True),
        (1, Right("lower", "pods", "watch"), True),
        (1, Right("lower", "secrets", "list"), False),
        (1, Right("upper", "pods", "list"), False),
        (0, Right("lower", "pods", "list"), False),
        (2, Right("lower", "pods", "list"), False),
    ],
)
def test_a_right_is_needed_if_a_test_fails_and_its_request_was_refused(
    code: int, refused: Right, *, shown: bool
) -> None:
    """A failure alone proves nothing, nor does a refusal without a failure."""
    assert is_shown(PODS, ran(code, refused=frozenset({refused}))) == shown


def test_a_refused_list_of_a_kind_without_its_own_right_shows_that_listing_all_is_needed() -> None:
    """Other kinds have a right of their own, so their refusal proves nothing."""
    every, jobs = Right("lower", "*.*", "list"), frozenset({Right("lower", "jobs.batch", "list")})
    assert is_shown(every, ran(1, refused=jobs))
    assert not is_shown(every, ran(1, refused=frozenset({PODS})))
    assert likely(every, {"t": ran(done=jobs), "pods": ran(done=frozenset({PODS}))}) == ["t"]


def test_a_test_with_all_rights_must_not_fail_or_be_denied() -> None:
    """A denied read of another webhook configuration is allowed, because the role does not cover it."""
    hook = Right(UPPER, "mutatingwebhookconfigurations.admissionregistration.k8s.io", "get")
    assert wrong(ran()) == wrong(ran(denied=frozenset({hook}))) == []
    assert wrong(ran(denied=frozenset({PODS}))) == ["denied: lower: list pods"]
    assert len(wrong(ran(1))) == 1


def test_a_test_that_fails_with_all_rights_is_not_selected() -> None:
    """It cannot prove that a right is needed."""
    assert likely(PODS, {"bad": ran(1, done=frozenset({PODS})), "good": ran(done=frozenset({PODS}))}) == ["good"]


def test_new_results_of_some_rights_are_merged_into_earlier_ones() -> None:
    """A repeated trial replaces the old row, rights that no longer exist are removed, and missing trials are listed."""
    right, other = map(str, wanted()[:2])
    held, broke = {"breaks": "", "held": ["t"]}, {"breaks": "FAILED", "s": 1, "held": []}
    before = summary(
        {TESTS[0]: {"s": 1, "wrong": ["denied: x"]}, "gone": {"s": 1, "wrong": ["y"]}}, {right: held, "z": held}
    )
    assert len(before["broken"]) == 4
    found = joined(before, summary({TESTS[0]: {"s": 2, "wrong": []}}, {right: broke, other: held}))
    assert (found["rights"], found["rows"][right]) == (2, broke)
    assert found["broken"][0] == f"{other}: no test breaks without it, of ['t']"
    assert found["broken"][1:] == [f"{one}: not tried yet" for one in wanted()[2:]]


def test_the_first_error_or_failure_of_pytests_summary_is_returned() -> None:
    """If there are several lines, the first one counts."""
    text = "..F\n=== short test summary info ===\nERROR t.py::a - TimeoutError\nFAILED t.py::b - x\n1 failed"
    assert failure(text) == "ERROR t.py::a - TimeoutError"
    assert failure("1 passed") == ""
