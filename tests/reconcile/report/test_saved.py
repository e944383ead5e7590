"""Tests of the file of a saved plan, and of what counts as changed when the plan is applied."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from previewkit import A, change, config, create, delete, json_patch, node, observed_object, pod, previewed, secret

from tensile.errors import TensileError
from tensile.objects import Manifest, Ref
from tensile.reconcile.dryrun.cluster import MADE_UP
from tensile.reconcile.plan import Step
from tensile.reconcile.report import PlanScope, SavedPlan, SavedTopology, as_file, moved, parsed, saved

TOPOLOGY = SavedTopology("demo", "/etc/topology.yaml", "0" * 64)
CLUSTERS = {"upper": "u-1", A: "a-1"}
OLD, NEW = {"data": {"level": "info"}}, {"data": {"level": "debug"}}
CONTENT = "cGFzc3dvcmQ="


def kept(
    *steps: Step, seen: dict[Ref, Manifest] | None = None, only: PlanScope | None = None, salt: str = "salt"
) -> SavedPlan:
    """Return the saved plan of some steps."""
    found = previewed(*steps, seen=seen, only=only or PlanScope())
    return saved(found, TOPOLOGY, CLUSTERS, salt)


def level(seen: Manifest = OLD, new: Manifest = NEW, uid: str = "u", **meta: Any) -> SavedPlan:
    """Return a saved plan that changes a ConfigMap from one content to another."""
    there = observed_object({**seen, "metadata": meta} if meta else seen, uid)
    return kept(change(config(), there, new), seen={config(): there})


def test_a_saved_plan_is_parsed_as_it_was_written() -> None:
    """The file has every step and the limits of the plan."""
    plan = kept(create(config()), delete(pod()), only=PlanScope((A,), ("shop",), ("ConfigMap", "Pod")))
    assert parsed(as_file(plan), "plan") == plan
    assert plan.scope == PlanScope((A,), ("shop",), ("ConfigMap", "Pod"))
    assert [(step.action, step.kind) for step in plan.steps] == [("create", "ConfigMap"), ("delete", "Pod")]


def test_a_saved_step_has_the_uid_and_resource_version_of_its_object() -> None:
    """Both are empty for an object that does not exist."""
    (created,) = kept(create(config())).steps
    (updated,) = level().steps
    assert (created.uid, created.resourceVersion, created.before) == ("", "", "")
    assert (updated.uid, updated.resourceVersion) == ("u", "7")
    assert updated.before != updated.after != ""


def test_a_saved_plan_has_no_values_of_secrets_but_detects_a_changed_one() -> None:
    """The file has neither new nor present values.

    Hashes have a salt, so that equal values of two files cannot be recognized.
    """
    there = observed_object({"data": {"key": "b2xk"}})

    def plan(value: str, salt: str = "salt") -> SavedPlan:
        """Return a saved plan that sets the value."""
        return kept(change(secret(), there, {"data": {"key": value}}), seen={secret(): there}, salt=salt)

    text = as_file(plan(CONTENT)).decode()
    assert CONTENT not in text
    assert "password" not in text
    assert "b2xk" not in text
    assert moved(plan(CONTENT), plan(CONTENT)) == []
    assert moved(plan(CONTENT), plan("b3RoZXI=")) == ["lower-a: Secret shop/token: its new content has changed"]
    assert plan(CONTENT).steps[0].after != plan(CONTENT, "other").steps[0].after


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (kept, "lower-a: ConfigMap shop/settings: from update to nothing"),
        (lambda: kept(create(config())), "lower-a: ConfigMap shop/settings: from update to create"),
        (lambda: level(uid="v"), "lower-a: ConfigMap shop/settings: from UID u to UID v"),
        (
            lambda: level({"data": {"level": "info", "more": "1"}}, {"data": {"level": "debug", "more": "1"}}),
            "lower-a: ConfigMap shop/settings: changed, from resourceVersion 7 to 7",
        ),
        (
            lambda: replace(level(), steps=[replace(level().steps[0], before="0", resourceVersion="")]),
            "lower-a: ConfigMap shop/settings: changed, from resourceVersion 7 to unknown",
        ),
        (
            lambda: level(OLD, {"data": {"level": "warn"}}),
            "lower-a: ConfigMap shop/settings: its new content has changed at /data/level",
        ),
        (
            lambda: replace(level(), clusters={"upper": "u-1", A: "a-2"}),
            "cluster lower-a: from kube-system UID a-1 to kube-system UID a-2",
        ),
    ],
    ids=["gone", "action", "uid", "state", "no longer listed", "content", "cluster"],
)
def test_a_difference_is_reported_with_both_states(now: Callable[[], SavedPlan], message: str) -> None:
    """Each object has one line."""
    assert moved(level(), now()) == [message]


def test_a_new_step_is_reported_as_a_difference() -> None:
    """The approved plan did not contain it."""
    assert moved(kept(), kept(create(pod()))) == ["lower-a: Pod shop/web: from nothing to create"]


def test_only_the_first_twenty_differences_are_listed() -> None:
    """The others are counted."""
    lines = moved(kept(), kept(*(create(config(f"c-{number:02}")) for number in range(25))))
    assert (len(lines), lines[-1]) == (21, "and 5 more")


def test_values_that_change_by_themselves_are_no_difference() -> None:
    """These are the status of the present object, amounts of a Node, times, and UIDs of a dry run."""
    quiet, busy = ({**OLD, "status": {"seen": number}} for number in (1, 2))
    assert moved(level(quiet), level(busy)) == []
    room = [
        json_patch(node(), {"op": "replace", "path": "/status/allocatable/cpu", "value": cpu}) for cpu in ("1", "2")
    ]
    assert moved(kept(room[0]), kept(room[1])) == []
    made = [
        create(
            pod(),
            {
                "metadata": {
                    "ownerReferences": [{"uid": f"{MADE_UP}8333-44444444444{number}"}],
                    "annotations": {"tensile-kube.io/token-term": f"2026-01-0{number}T00:00:00Z"},
                }
            },
        )
        for number in (1, 2)
    ]
    assert moved(kept(made[0]), kept(made[1])) == []


def test_a_version_5_uuid_in_an_object_is_not_a_uid_of_a_dry_run() -> None:
    """Programs derive such UUIDs from names, so another one is other content."""
    ids = ("2ed6657d-e927-568b-95e1-2665a8aea6a2", "886313e1-3b8a-5372-9b90-0c9aee199e5d")
    one, other = (create(config(), {"data": {"id": made}}) for made in ids)
    assert moved(kept(one), kept(other)) != []


def taints(*present: Manifest) -> SavedPlan:
    """Return a saved plan that adds a taint to those of a Node."""
    there = observed_object({"spec": {"taints": list(present)}} if present else {"spec": {}})
    op = {"op": "replace" if present else "add", "path": "/spec/taints", "value": [*present, OURS]}
    return kept(json_patch(node(), op), seen={node(): there})


OURS = {"key": "example.com/gpu", "effect": "NoSchedule"}
AWAY = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


def test_taints_of_kubernetes_for_an_unreachable_node_are_no_difference() -> None:
    """Kubernetes adds them forty seconds after an engine ends, but a taint that a user sets counts."""
    assert moved(taints(), taints(AWAY)) == []
    assert moved(taints(AWAY), taints({**AWAY, "timeAdded": "2026-01-02T00:00:00Z"})) == []
    assert moved(taints(), taints({"key": "example.com/theirs", "effect": "NoSchedule"})) != []


def test_times_and_uuids_of_users_count_as_differences() -> None:
    """Only values that the engine writes are excluded from the comparison."""
    times = [create(config(), {"data": {"built": f"2026-01-0{number}T00:00:00Z"}}) for number in (1, 2)]
    assert moved(kept(times[0]), kept(times[1])) != []
    uids = [create(config(), {"data": {"id": f"0000000{number}-1111-4222-8333-444444444444"}}) for number in (1, 2)]
    assert moved(kept(uids[0]), kept(uids[1])) != []


@pytest.mark.parametrize(
    "data", [b"", b"apiVersion: v1", b"{}", b"[" * 100_000, b'{"formatVersion": "1.0"}', b"\xff", b"null"]
)
def test_a_file_that_is_no_saved_plan_is_refused(data: bytes) -> None:
    """The error names the command that saves one."""
    with pytest.raises(TensileError, match=r"^x\.plan: not a saved plan: save one with `tensile plan --out`"):
        parsed(data, "x.plan")


def test_a_saved_plan_of_another_format_version_is_refused() -> None:
    """A later minor version is accepted."""
    document = orjson.loads(as_file(kept()))
    assert parsed(orjson.dumps({**document, "formatVersion": "1.9", "more": 1}), "x.plan").steps == []
    with pytest.raises(TensileError, match=r"format version '2\.0', expected 1\.0"):
        parsed(orjson.dumps({**document, "formatVersion": "2.0"}), "x.plan")


def test_names_in_a_forged_file_cannot_control_the_terminal() -> None:
    """Control characters are escaped."""
    document = orjson.loads(as_file(level()))
    document["steps"][0]["name"] = "\x1b[2J"
    assert all(line.isprintable() for line in moved(parsed(orjson.dumps(document), "x.plan"), kept()))
