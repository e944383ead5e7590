"""Tests of the comparison of two runs' final states, which lists their differences."""

from typing import Any

from faultkit import MARK, A, above, below

from bench.kit.final_states import differences, state_of, strays, touched
from tensile.names import ENGINE

Objects = dict[str, dict[str, list[dict[str, Any]]]]


def run(number: int, **words: Any) -> Objects:
    """Return the objects of a run: an upper and a lower pod, with the values that differ between any two runs."""
    upper, lower = above(f"u{number}", **words), below(f"l{number}", f"u{number}", address=f"10.0.0.{number}")
    for pod in (upper, lower):
        pod["metadata"] |= {"name": "web", "namespace": f"shop-{number}", "resourceVersion": str(number)}
        pod["spec"] = {"nodeName": f"n{number}" if pod is lower else A}
    return {"upper": {"pods": [upper]}, A: {"pods": [lower]}}


def state(objects: Objects, number: int) -> dict[str, Any]:
    """Return the state of such a run."""
    return state_of(objects, {f"shop-{number}": "SHOP"})


def test_two_successful_runs_have_equal_states() -> None:
    """UIDs, versions, addresses, namespaces and the lower node do not count; other names do."""
    first, second = state(run(1), 1), state(run(2), 2)
    assert differences(first, second) == []
    assert list(first) == ["upper pods SHOP/web", "lower-a pods SHOP/web"]


def test_the_engine_that_renewed_a_lease_does_not_count() -> None:
    """Its name differs in each run; a Lease without one differs from a Lease with one."""
    leases = [
        {"upper": {"leases": [{"metadata": {"name": A, "uid": f"lease-{number}", "annotations": notes}}]}}
        for number, notes in enumerate(({ENGINE: "host_1_a"}, {ENGINE: "host_2_b"}, {}))
    ]
    first, second, third = (state(one, 1) for one in leases)
    assert differences(first, second) == []
    assert len(differences(first, third)) == 1


def test_missing_and_extra_objects_are_differences() -> None:
    """This holds for both runs."""
    whole, half = run(1), run(2)
    half[A]["pods"] = []
    assert differences(state(whole, 1), state(half, 2)) == ["lower-a pods SHOP/web is not there"]
    assert differences(state(half, 2), state(whole, 1)) == ["lower-a pods SHOP/web is there"]


def test_a_terminating_object_is_a_different_state() -> None:
    """The time of its deletion does not matter."""
    one, two = state(run(1, ending=True), 1), state(run(2, ending=True), 2)
    assert differences(one, two) == []
    said = differences(one, state(run(3), 3))
    assert said == ["upper pods SHOP/web: /metadata/deletionTimestamp is None and not True"]


def test_a_different_value_is_listed_with_its_path() -> None:
    """Both values are listed."""
    said = differences(state(run(1), 1), state(run(2, phase="Pending"), 2))
    assert said == ["upper pods SHOP/web: /status/phase is 'Pending' and not 'Running'"]


def test_a_reference_to_another_upper_object_is_a_difference() -> None:
    """A lower pod of a former upper pod of the same name looks right, but is not."""
    stale = run(2)
    stale[A]["pods"][0]["metadata"]["annotations"] = {"tensile-kube.io/upper-uid": "another"}
    (said,) = differences(state(run(1), 1), state(stale, 2))
    assert said.startswith(
        "lower-a pods SHOP/web: /metadata/annotations/tensile-kube.io/upper-uid is 'another' and not"
    )


def test_conditions_are_compared_without_order_and_times() -> None:
    """Only their types and values count."""
    one, two = run(1), run(2)
    for objects, turned in ((one, 1), (two, -1)):
        found = [
            {"type": "Ready", "status": "True", "lastTransitionTime": str(turned)},
            {"type": "Gate", "status": "True"},
        ]
        objects["upper"]["pods"][0]["status"]["conditions"] = found[::turned]
    assert differences(state(one, 1), state(two, 2)) == []


def test_generated_names_of_token_volumes_are_equal() -> None:
    """Admission generates them at random."""
    one, two = run(1), run(2)
    for objects, drawn in ((one, "abcde"), (two, "x2z4q")):
        objects["upper"]["pods"][0]["spec"]["volumes"] = [{"name": f"kube-api-access-{drawn}"}]
    assert differences(state(one, 1), state(two, 2)) == []


def test_marked_objects_without_an_upper_object_are_strays() -> None:
    """Objects of all kinds are checked, but not those of another owner."""
    found = run(1)
    assert strays(found, "upper", MARK) == []
    found["upper"]["pods"] = []
    assert strays(found, "upper", MARK) == ["lower-a pods shop-1/web is for an upper object that is not there"]
    assert strays(found, "upper", "another") == []


def test_a_changed_replaced_or_deleted_canary_is_listed() -> None:
    """A canary is an object of another owner, which the engine must not touch."""
    canary = {"metadata": {"name": "canary", "uid": "1", "resourceVersion": "5"}}
    changed = {"metadata": canary["metadata"] | {"resourceVersion": "6"}}
    replaced = {"metadata": canary["metadata"] | {"uid": "2"}}
    assert touched([canary], [canary, changed], A) == []
    for after in ([changed], [replaced], []):
        assert touched([canary], after, A) == ["lower-a: canary is not ours and was touched"]
