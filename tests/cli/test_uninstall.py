"""Tests of the output and the refusals of `tensile uninstall` for a plan, and of its command line."""

from pathlib import Path

import orjson
import pytest
from clikit import Files, run_failing
from openkit import MemoryClusters
from worldkit import (
    add_virtual_node,
    config_map,
    make_lower_pod,
    make_namespace,
    make_object,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.cli.uninstall import UninstallPlan, _check_shown, _closing, _delete, check, plan_json, plan_text
from tensile.diagnostics.inventory import Inventory, Item
from tensile.engine.history import file_place, history_ref
from tensile.engine.leader_election import lease_ref
from tensile.engine.status.configmap import status_owner, status_ref
from tensile.engine.uninstall import leave_topology
from tensile.errors import TensileError
from tensile.objects import CLAIM, NAMESPACE, NODE, POD, SECRET, UPPER, Ref
from tensile.policy.webhook.admission_policy import binding_ref, policy_ref
from tensile.policy.webhook.registration import ref_of
from tensile.reconcile.apply import NOT_EMPTY
from tensile.reconcile.report import Change, Preview, Recorder
from tensile.reconcile.world import Key, Problem

A = "lower-a"
SPACE, VIRTUAL = Ref(A, NAMESPACE, "", "shop"), Ref(UPPER, NODE, "", A)
LEFT = Item(A, CLAIM.name, "shop", "data", "", "2026-03-01T12:00:00Z")
NOTHING: Inventory = Inventory((), ())


def preview(*refs: Ref, problem: str = "", away: str = "") -> Preview:
    """Return a preview that deletes these objects."""
    changes = [Change(ref, "delete", "it is not needed", ({"op": "remove", "path": ""},)) for ref in refs]
    clusters = {name: tuple(one for one in changes if one.ref.cluster == name) for name in (UPPER, A)}
    problems = ((Key("uninstall", A, "", ""), Problem(problem, "it is so")),) if problem else ()
    return Preview("demo", clusters, problems, {"lower-b": away} if away else {})


def planned(*refs: Ref, obstacles: tuple[str, ...] = (), stays: Inventory = NOTHING, away: str = "") -> UninstallPlan:
    """Return a plan."""
    return UninstallPlan(preview(*refs, away=away), obstacles, stays)


def test_a_plan_has_deletions_remaining_objects_and_obstacles() -> None:
    """The last line is the summary of every plan."""
    found = planned(VIRTUAL, SPACE, obstacles=("an engine runs: stop it",), stays=Inventory((LEFT,), ("x: y",)))
    assert plan_text(found, colour=False) == (
        "Upper cluster: 1 to delete\n"
        "- Node lower-a: it is not needed\n"
        "\n"
        "Lower cluster lower-a: 1 to delete\n"
        "- Namespace shop: it is not needed\n"
        "\n"
        "Stays\n"
        "lower-a: PersistentVolumeClaim shop/data: it may hold data: delete the claim in the upper cluster while the "
        "engine runs, or keep it\n"
        "not listed: x: y\n"
        "\n"
        "Before it can be uninstalled\n"
        "an engine runs: stop it\n"
        "\n"
        "Plan: 0 to add, 0 to change, 2 to delete (upper: 1 to delete; lower-a: 1 to delete)"
    )


def test_objects_of_bound_pods_are_not_suggested_for_deletion() -> None:
    """Otherwise the objects that these pods use would look like leftovers."""
    pod = Item(A, POD.name, "shop", "web", "", "2026-03-01T12:00:00Z")
    for in_use, message in (
        (frozenset({A}), "pods are bound to this cluster's"),
        (frozenset({"lower-b"}), "the mark alone"),
    ):
        found = planned(stays=Inventory((pod,), ()))._replace(in_use=in_use)
        assert f"lower-a: Pod shop/web: {message}" in plan_text(found, colour=False)


def test_a_plan_without_deletions_reports_that() -> None:
    """It does not claim that the clusters match the topology."""
    assert plan_text(planned(), colour=False) == (
        "Nothing of topology demo can be deleted.\n\nPlan: 0 to add, 0 to change, 0 to delete (no changes)"
    )


def test_json_output_has_remaining_objects_and_obstacles() -> None:
    """It also has the changes, as that of every plan."""
    document = orjson.loads(plan_json(planned(SPACE, obstacles=("stop it",), stays=Inventory((LEFT,), ()))))
    assert (document["obstacles"], document["stays"]) == (["stop it"], [LEFT._asdict()])
    assert [(one["action"], one["name"]) for one in document["changes"]] == [("delete", "shop")]


def test_only_a_complete_plan_without_obstacles_is_carried_out() -> None:
    """Obstacles, unreachable clusters and objects that could not be listed are errors."""
    check(planned(SPACE))
    with pytest.raises(TensileError, match=r"^not uninstalled:\nstop it$"):
        check(planned(SPACE, obstacles=("stop it",)))
    with pytest.raises(TensileError, match=r"every cluster has to be read:\nlower-b: no answer\nmake it reachable"):
        check(planned(SPACE, away="no answer"))
    with pytest.raises(TensileError, match="not listed: lower-a: pods: forbidden"):
        check(planned(SPACE, stays=Inventory((), ("lower-a: pods: forbidden",))))


def test_only_deletions_that_were_shown_are_made() -> None:
    """Fewer are accepted, because another client may have deleted objects since."""
    _check_shown(planned(SPACE, VIRTUAL), planned(SPACE))
    with pytest.raises(TensileError, match=r"have changed since the plan: run it again:\nupper: Node lower-a$"):
        _check_shown(planned(SPACE), planned(SPACE, VIRTUAL))


def test_the_last_line_counts_the_deletions() -> None:
    """A namespace that is kept because of other objects is no error."""
    line = "Uninstalled: 0 to add, 0 to change, 1 to delete (lower-a: 1 to delete)"
    assert _closing(planned(SPACE).refs, preview(SPACE), []) == line
    assert _closing(planned(SPACE).refs, preview(SPACE, problem=NOT_EMPTY), []) == line


def test_objects_that_could_not_be_deleted_are_an_error() -> None:
    """The error has the deletions that were made, and the remedy."""
    with pytest.raises(TensileError) as raised:
        _closing(planned(SPACE, VIRTUAL).refs, preview(SPACE), ["upper: delete Lease: denied: no right"])
    assert "upper: delete Lease: denied: no right\n" in str(raised.value)
    assert "not deleted yet: upper: Node lower-a: run `tensile uninstall` again" in str(raised.value)
    assert str(raised.value).endswith("Uninstalled in part: 0 to add, 0 to change, 1 to delete (lower-a: 1 to delete)")
    with pytest.raises(TensileError, match="DeletionLimitExceeded: it is so"):
        _closing(planned(SPACE).refs, preview(SPACE, problem="DeletionLimitExceeded"), [])


async def test_objects_are_deleted_in_the_order_of_their_dependencies() -> None:
    """Each lower namespace goes after its objects, and what the engines registered goes after all other objects."""
    world = make_world(f"name: {A}")
    put(world.upper.namespaces, make_namespace())
    add_virtual_node(world)
    lower = world.lowers[A]
    put(lower.namespaces, with_owner_marks(make_namespace(), "upper-default", uid="below-default"))
    put(lower.accounts, make_service_account())
    put(lower.pods, make_lower_pod(make_upper_pod("orphan")))
    put(lower.config_maps, with_owner_marks(config_map("settings", uid="below-settings"), "settings"))
    put(world.upper.config_maps, config_map("settings", uid="settings"))
    leave_topology(world)
    clusters, deleted = MemoryClusters(world), list[str]()
    place = file_place("demo")
    status = status_owner(world.owner.upper, place)
    for ref, owner in (
        (history_ref(place), status),
        (status_ref(place), status),
        (lease_ref("demo"), world.owner),
        (policy_ref("demo"), world.owner),
        (binding_ref("demo"), world.owner),
        (Ref(UPPER, SECRET, "tensile", "tensile-webhook-demo"), world.owner),
        (ref_of(world.topology), world.owner),
    ):
        registered = make_object(ref.kind.name, ref.name, ref.namespace, ref.kind.api)
        clusters.connections[UPPER].place(ref.kind, with_owner_marks(registered, world.owner.upper, owner))
    for cluster in clusters.connections.values():
        cluster.on_write = lambda verb, ref, _body: deleted.append(f"{verb} {ref}")
    problems, failed = await _delete(clusters, "tensile", Recorder())  # type: ignore[arg-type]
    assert (problems, failed) == ({}, [])
    objects, registrations = deleted[:4], deleted[4:]
    assert sorted(objects) == [
        "delete lower-a: ConfigMap default/settings",
        "delete lower-a: Namespace default",
        "delete lower-a: Pod default/orphan",
        "delete upper: Node lower-a",
    ]
    assert objects.index("delete lower-a: Namespace default") > max(
        objects.index("delete lower-a: ConfigMap default/settings"), objects.index("delete lower-a: Pod default/orphan")
    )
    assert registrations == [
        "delete upper: MutatingWebhookConfiguration tensile-demo",
        "delete upper: Secret tensile/tensile-webhook-demo",
        "delete upper: MutatingAdmissionPolicyBinding tensile-demo",
        "delete upper: MutatingAdmissionPolicy tensile-demo",
        "delete upper: Lease kube-system/tensile-demo",
        "delete upper: ConfigMap kube-system/tensile-demo-status",
        "delete upper: ConfigMap kube-system/tensile-demo-history",
    ]


def test_uninstall_needs_a_terminal_or_yes(tmp_path: Path) -> None:
    """Without a terminal no question is possible, so no cluster is read; --plan reads the clusters."""
    assert run_failing("uninstall", "-f", Files(tmp_path).save()) == (
        "uninstall: there is no terminal to ask on: read `tensile uninstall --plan`, then give --yes\n"
    )
    assert "127.0.0.1" in run_failing("uninstall", "--plan", "-f", Files(tmp_path).save())
