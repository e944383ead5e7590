"""What counts as a change that somebody else made, and that it is told once."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from loopkit import ONE, LoopUnderTest, copy, present
from virtualtime import in_virtual_time
from worldkit import A, B, config_map, drop, marked, put, stored, twin, upper_pod

from tensile.errors import Unreachable
from tensile.kube.cluster import Patch
from tensile.names import FIELD_MANAGER
from tensile.objects import CONFIG_MAP, EVENT, POD, UPPER, Manifest, Ref
from tensile.reconcile.desired import Absent, Decision, Present
from tensile.reconcile.drift import AGAIN, DriftDetector, taken_over
from tensile.reconcile.plan import Step

REF = Ref(A, CONFIG_MAP, "default", "one")


def wanted(data: dict[str, str]) -> Decision:
    """Want a copy with this data."""
    found = present(data=data)
    return Decision((Present(REF, found.manifest, "because", found.sections, replaceable=True),))


def book(manager: str, time: str, **fields: Any) -> Manifest:
    """Make an entry of managedFields: data keys that a manager owns."""
    keys = {f"f:{key}": {} for key in fields}
    return {"manager": manager, "operation": "Update", "time": f"2026-03-01T{time}:00Z", "fieldsV1": {"f:data": keys}}


def edited(one: Manifest) -> None:
    """Change the data as another client does."""
    one["data"] = {"key": "edited"}


def emptied(one: Manifest) -> None:
    """Remove the data: its remover owns nothing, so that managedFields does not name it."""
    one["data"] = {}


def edit(bench: LoopUnderTest, change: Callable[[Manifest], None]) -> None:
    """Let another client change the copy after our write; the watch tells of it."""
    copies = bench.world.lowers[A].config_maps
    entry = copies.get("default", "one")
    assert entry is not None
    manifest = deepcopy(entry.manifest())
    change(manifest)
    copies.put(stored(manifest, entry.version + 1))


def events(bench: LoopUnderTest) -> list[str]:
    """Return the messages of the Events about drift."""
    bodies = [asked.carried for asked in bench.clusters[UPPER].asked if asked.ref.kind == EVENT]
    return [body["message"] for body in bodies if body["reason"] == "DriftReverted"]


async def made(bench: LoopUnderTest) -> None:
    """Have the copy made, and answered as the cluster stores it."""
    await bench.run(wanted({"key": "value"}))
    assert bench.noted.verbs() == ["create one"]
    assert bench.loop.drift == {}


@pytest.mark.parametrize(("change", "field"), [(edited, "data.key"), (emptied, "data.key")])
@in_virtual_time
async def test_what_others_change_in_a_copy_is_counted_and_told_above(change: Any, field: str) -> None:
    """Before it is put back, once; the Event is about the original."""
    bench = LoopUnderTest()
    await made(bench)
    edit(bench, change)
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert bench.loop.drift == {(A, "ConfigMap"): 1}
    words = f"another client changed ConfigMap default/one in lower cluster {A}: {field}"
    assert events(bench) == [words]
    (told,) = [asked for asked in bench.clusters[UPPER].asked if asked.ref.kind == EVENT]
    about = told.carried["involvedObject"]
    assert (about["kind"], about["namespace"], about["name"], about["uid"]) == ("ConfigMap", "default", "one", "above")
    assert [step.verb for step in bench.noted.steps] == ["create", "create", "patch"]
    await bench.close()


@in_virtual_time
async def test_a_copy_that_others_delete_is_counted() -> None:
    """One that we deleted ourselves is not."""
    bench = LoopUnderTest()
    await made(bench)
    copies = bench.world.lowers[A].config_maps
    drop(copies, "one")
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert bench.loop.drift == {(A, "ConfigMap"): 1}
    assert events(bench) == [f"another client changed ConfigMap default/one in lower cluster {A}: deleted"]
    entry = copies.get("default", "one")
    assert entry is not None
    await bench.run(Decision((Absent(REF, entry.uid, "nothing needs it"),)))
    await bench.run(wanted({"key": "value"}))
    assert copies.get("default", "one") is not None
    assert bench.loop.drift == {(A, "ConfigMap"): 1}
    await bench.close()


@in_virtual_time
async def test_an_edit_of_the_original_is_no_drift() -> None:
    """The copy differs from it, and nobody else wrote it."""
    bench = LoopUnderTest()
    await made(bench)
    await bench.run(wanted({"key": "new", "more": "value"}))
    assert bench.noted.verbs()[-1] == "patch one"
    assert (bench.loop.drift, events(bench)) == ({}, [])
    await bench.close()


@in_virtual_time
async def test_what_admission_makes_of_our_own_write_is_no_drift() -> None:
    """A webhook that changes what we send, each time, is nobody who changed it since."""
    bench = LoopUnderTest()
    mutated = copy(data={"key": "mutated"})
    mutated["metadata"] |= {"namespace": "default", "uid": "made-one"}
    answers = [{**mutated, "metadata": {**mutated["metadata"], "resourceVersion": str(n)}} for n in range(101, 105)]
    bench.lower.answer("create", answers[0])
    bench.lower.answer("patch", *answers[1:])
    await bench.run(wanted({"key": "value"}))
    for _ in answers[1:]:
        bench.loop.add(ONE)
        await bench.loop.wait_idle()
    assert [step.verb for step in bench.noted.steps] == ["create", "patch", "patch", "patch"]
    edit(bench, lambda one: one["metadata"]["labels"].update({"theirs": "yes"}))
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert (bench.loop.drift, events(bench)) == ({}, [])
    await bench.close()


@in_virtual_time
async def test_a_refused_event_keeps_nothing_back() -> None:
    """The copy is put back all the same."""
    bench = LoopUnderTest()
    await made(bench)
    edit(bench, edited)
    bench.clusters[UPPER].answer("create", Unreachable("no answer"))
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert bench.noted.verbs()[-1] == "patch one"
    await bench.close()


def patch(**more: Any) -> Step:
    """Make a step that sets a key of the copy."""
    operations: tuple[dict[str, Any], ...] = ({"op": "replace", "path": "/data/key", "value": "value"},)
    given: dict[str, Any] = {"patch": Patch("json-patch", list(operations)), "operations": operations}
    return Step("patch", REF, "because", **{**given, **more})


OURS = book(FIELD_MANAGER, "12:00", other={})


@pytest.mark.parametrize(
    ("books", "found"),
    [
        pytest.param([book(FIELD_MANAGER, "12:00", key={})], [], id="ours"),
        pytest.param([OURS, book("kubectl-edit", "12:01", key={})], ["data.key"], id="another's"),
        pytest.param([OURS, book("kubectl-edit", "12:00", key={})], ["data.key"], id="within-a-second"),
        pytest.param([OURS, book("virtual-kubelet", "11:00", key={})], [], id="before-we-adopted-it"),
        pytest.param([OURS, book("kubectl-edit", "12:01", another={})], [], id="another-field"),
        pytest.param([OURS, {**book("x", "12:01", key={}), "subresource": "status"}], [], id="a-status"),
    ],
)
def test_without_memory_managed_fields_tell(books: list[Manifest], found: list[str]) -> None:
    """As after a restart: another client owns the field and wrote it after us."""
    seen = copy()
    seen["metadata"]["managedFields"] = books
    assert list(taken_over(patch(), seen)) == found


def test_containers_are_known_by_name() -> None:
    """In the patch of a pod and in managedFields."""
    value = [{"name": "main", "image": "app:1"}, {"name": "side", "image": "side:1"}]
    step = Step(
        "patch",
        Ref(A, POD, "default", "web"),
        "images differ",
        patch=Patch("strategic-merge-patch", {"spec": {"containers": value}}),
        operations=({"op": "replace", "path": "/spec/containers", "value": value},),
    )
    fields = {"f:spec": {"f:containers": {'k:{"name":"main"}': {"f:image": {}}}}}
    seen = twin(upper_pod())
    seen["metadata"]["managedFields"] = [
        {"manager": "kubectl-edit", "time": "2026-03-01T12:00:00Z", "fieldsV1": fields}
    ]
    assert list(taken_over(step, seen)) == ["spec.containers.main.image"]


def test_a_state_counts_once_in_a_while() -> None:
    """A controller may make the same change all the time; another one, and one that comes back much later, counts."""
    cache = LoopUnderTest().world.lowers[A].config_maps
    seen = marked(config_map("one"), "above")
    seen["metadata"]["managedFields"].append(book("kubectl-edit", "12:01", key={}))
    entry = put(cache, seen)
    detector, owner = DriftDetector(), LoopUnderTest().world.owner
    assert detector.find(patch(), entry, owner, 0.0) == "data.key"
    assert detector.find(patch(), entry, owner, AGAIN - 1) == ""
    other: tuple[dict[str, Any], ...] = ({"op": "replace", "path": "/data/key", "value": "other"},)
    assert detector.find(patch(operations=other), entry, owner, AGAIN - 1) == "data.key"
    assert detector.find(patch(operations=other), entry, owner, 2 * AGAIN) == "data.key"
    detector.forget(B)
    assert detector.find(patch(operations=other), entry, owner, 2 * AGAIN) == ""
    detector.forget(A)
    assert detector.find(patch(operations=other), entry, owner, 2 * AGAIN) == "data.key"
