"""The trial of each right: what it takes away, what it reads in audit logs, and when a right counts as missed."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.kit.granting import OWN, Thing, collection, path_of, singles, thing, things, without
from bench.kit.uses import Uses, asked_of
from bench.mutation.rights import TESTS, Ran, failure, is_shown, joined, likely, told, wanted, wrong
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
PODS = Thing("lower", "pods", "list")


def ran(code: int = 0, seconds: float = 1.0, **sorts: frozenset[Thing]) -> Ran:
    """Make the end of a test."""
    return Ran(code, "", seconds, **{"done": frozenset(), "refused": frozenset(), "denied": frozenset(), **sorts})


@pytest.mark.parametrize("one", [*wanted(), Thing("lower", "*.*", "list")])
def test_a_right_is_read_as_it_is_written(one: Thing) -> None:
    """So that one can be given by hand."""
    assert thing(str(one)) == one


def test_every_right_of_the_roles_is_tried_once() -> None:
    """On both sides, in each namespace."""
    rights = wanted()
    assert len(rights) == len(set(rights)) > 100
    assert Thing(UPPER, LEASES, "patch", "kube-system") in rights
    assert Thing(UPPER, "configmaps", "patch", OWN) in rights
    assert Thing(UPPER, LEASES, "patch", "kube-node-lease") in rights
    assert Thing("lower", "*.*", "list") in rights


def test_one_thing_is_taken_away_and_nothing_else() -> None:
    """Above, where nothing covers anything else."""
    missing = Thing(UPPER, "secrets", "get")
    before, after = (set(things(UPPER, roles, "here")) for roles in ([ROLE], without(UPPER, [ROLE], missing, "here")))
    assert before - after == {missing}
    assert after < before


def test_the_list_of_one_kind_below_goes_with_that_of_all_kinds() -> None:
    """Which would cover it; the other way round the kinds of its own stay."""
    before = set(things("lower-a", [ROLE], "here"))
    assert before - set(things("lower-a", without("lower-a", [ROLE], PODS, "here"), "here")) == {
        PODS,
        Thing("lower", "*.*", "list"),
    }
    every = Thing("lower", "*.*", "list")
    assert before - set(things("lower-a", without("lower-a", [ROLE], every, "here"), "here")) == {every}


def test_bindings_and_names_stay_as_they_are() -> None:
    """What is left of a role is for the same objects as before."""
    left = without(UPPER, [OWN_ROLE, BINDING], PODS, "here")
    assert left[1] == BINDING
    assert left[0]["rules"] == OWN_ROLE["rules"]  # type: ignore[index]
    assert list(things(UPPER, left, "here")) == [Thing(UPPER, LEASES, "get", OWN)]
    assert [one["resourceNames"] for rule in OWN_ROLE["rules"] for one in singles(rule)] == [["x"]]  # type: ignore[index]


def test_where_roles_are() -> None:
    """In the cluster, or in a namespace of it."""
    group = "/apis/rbac.authorization.k8s.io/v1"
    assert path_of(ROLE) == f"{group}/clusterroles/r"
    assert collection(BINDING) == f"{group}/clusterrolebindings"
    assert path_of(OWN_ROLE) == f"{group}/namespaces/here/roles/r"


def record(code: int = 200, user: str = "engine", decision: str = "allow", **ref: str) -> dict[str, Any]:
    """Make a record of an audit log."""
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
        ("lower-b", {"resource": "pods", "subresource": "exec"}, Thing("lower", "pods/exec", "get")),
        (UPPER, {"resource": "configmaps", "namespace": "here"}, Thing(UPPER, "configmaps", "get")),
        (
            UPPER,
            {"resource": "configmaps", "namespace": "here", "verb": "patch"},
            Thing(UPPER, "configmaps", "patch", OWN),
        ),
        (
            "lower-a",
            {"resource": "configmaps", "namespace": "here", "verb": "patch"},
            Thing("lower", "configmaps", "patch"),
        ),
        (
            UPPER,
            {"resource": "leases", "apiGroup": "coordination.k8s.io", "namespace": "kube-node-lease"},
            Thing(UPPER, LEASES, "get", "kube-node-lease"),
        ),
        (UPPER, {"resource": "secrets", "namespace": "here", "verb": "create"}, Thing(UPPER, "secrets", "create", OWN)),
        (UPPER, {"resource": "secrets", "namespace": "there", "verb": "create"}, Thing(UPPER, "secrets", "create")),
        (
            UPPER,
            {"resource": "secrets", "namespace": "here", "name": "tensile-webhook-demo"},
            Thing(UPPER, "secrets", "get", OWN),
        ),
        (UPPER, {"resource": "secrets", "verb": "list"}, Thing(UPPER, "secrets", "list")),
    ],
)
def test_which_right_a_request_needs(cluster: str, ref: dict[str, str], wanted_thing: Thing) -> None:
    """As the roles have it: in a namespace only where the role is in one."""
    assert asked_of(cluster, record(**ref), "here") == wanted_thing


def test_what_an_engine_did_is_told_apart_from_what_it_was_refused(tmp_path: Path) -> None:
    """Others' requests do not count, nor what was before; a quota's refusal is no want of a right."""
    log, uses = tmp_path / "audit.log", tmp_path / "uses"
    append(log, record(resource="nodes"))
    counted = Uses({"lower-a": log})
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
    """Write records to an audit log."""
    with log.open("ab") as file:
        file.writelines(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in records)


def test_the_tests_that_use_a_right_come_first_and_the_quickest_of_them() -> None:
    """Those that do something else with the same resource are asked where there are no such; others never."""
    get, other = Thing("lower", "pods/exec", "get"), Thing("lower", "pods/exec", "create")
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
        (1, Thing("lower", "pods", "list"), True),
        (1, Thing("lower", "pods", "watch"), True),
        (1, Thing("lower", "secrets", "list"), False),
        (1, Thing("upper", "pods", "list"), False),
        (0, Thing("lower", "pods", "list"), False),
        (2, Thing("lower", "pods", "list"), False),
    ],
)
def test_a_right_is_missed_where_a_test_fails_and_it_was_refused(code: int, refused: Thing, *, shown: bool) -> None:
    """A failure alone proves nothing, nor does a refusal that harms nothing."""
    assert is_shown(PODS, ran(code, refused=frozenset({refused}))) == shown


def test_a_list_of_a_kind_without_a_right_of_its_own_shows_that_all_kinds_are_missed() -> None:
    """They are listed one after the other; the others have a right of their own."""
    every, jobs = Thing("lower", "*.*", "list"), frozenset({Thing("lower", "jobs.batch", "list")})
    assert is_shown(every, ran(1, refused=jobs))
    assert not is_shown(every, ran(1, refused=frozenset({PODS})))
    assert likely(every, {"t": ran(done=jobs), "pods": ran(done=frozenset({PODS}))}) == ["t"]


def test_what_is_wrong_with_a_test_that_may_do_all() -> None:
    """It failed, or something was denied; a registration under another name is none of the role's."""
    hook = Thing(UPPER, "mutatingwebhookconfigurations.admissionregistration.k8s.io", "get")
    assert wrong(ran()) == wrong(ran(denied=frozenset({hook}))) == []
    assert wrong(ran(denied=frozenset({PODS}))) == ["denied: lower: list pods"]
    assert len(wrong(ran(1))) == 1


def test_a_test_that_fails_anyway_shows_nothing() -> None:
    """It is not asked when a right is away."""
    assert likely(PODS, {"bad": ran(1, done=frozenset({PODS})), "good": ran(done=frozenset({PODS}))}) == ["good"]


def test_some_rights_are_laid_over_all_of_them() -> None:
    """What is asked for again counts anew; what there is no more is forgotten, what is left is said."""
    right, other = map(str, wanted()[:2])
    held, broke = {"breaks": "", "held": ["t"]}, {"breaks": "FAILED", "s": 1, "held": []}
    before = told(
        {TESTS[0]: {"s": 1, "wrong": ["denied: x"]}, "gone": {"s": 1, "wrong": ["y"]}}, {right: held, "z": held}
    )
    assert len(before["broken"]) == 4
    found = joined(before, told({TESTS[0]: {"s": 2, "wrong": []}}, {right: broke, other: held}))
    assert (found["rights"], found["rows"][right]) == (2, broke)
    assert found["broken"][0] == f"{other}: no test breaks without it, of ['t']"
    assert found["broken"][1:] == [f"{one}: not tried yet" for one in wanted()[2:]]


def test_the_first_failure_is_what_pytest_said() -> None:
    """Of several lines, that of a test or of what it stands on."""
    text = "..F\n=== short test summary info ===\nERROR t.py::a - TimeoutError\nFAILED t.py::b - x\n1 failed"
    assert failure(text) == "ERROR t.py::a - TimeoutError"
    assert failure("1 passed") == ""
