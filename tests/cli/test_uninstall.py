"""What `tensile uninstall` prints and refuses, from a plan; and its command line."""

from pathlib import Path

import orjson
import pytest
from clikit import Files, refused

from tensile.cli.uninstall import UninstallPlan, _check_shown, _closing, check, plan_json, plan_text
from tensile.diagnostics.inventory import Inventory, Item
from tensile.errors import TensileError
from tensile.objects import CLAIM, NAMESPACE, NODE, POD, UPPER, Ref
from tensile.reconcile.apply import NOT_EMPTY
from tensile.reconcile.report import Change, Preview
from tensile.reconcile.world import Key, Problem

A = "lower-a"
SPACE, VIRTUAL = Ref(A, NAMESPACE, "", "shop"), Ref(UPPER, NODE, "", A)
LEFT = Item(A, CLAIM.name, "shop", "data", "", "2026-03-01T12:00:00Z")
NOTHING: Inventory = Inventory((), ())


def preview(*refs: Ref, problem: str = "", away: str = "") -> Preview:
    """Make a preview that deletes these objects."""
    changes = [Change(ref, "delete", "it is not needed", ({"op": "remove", "path": ""},)) for ref in refs]
    clusters = {name: tuple(one for one in changes if one.ref.cluster == name) for name in (UPPER, A)}
    problems = ((Key("uninstall", A, "", ""), Problem(problem, "it is so")),) if problem else ()
    return Preview("demo", clusters, problems, {"lower-b": away} if away else {})


def planned(*refs: Ref, obstacles: tuple[str, ...] = (), stays: Inventory = NOTHING, away: str = "") -> UninstallPlan:
    """Make a plan."""
    return UninstallPlan(preview(*refs, away=away), obstacles, stays)


def test_a_plan_has_deletions_what_stays_and_what_is_in_the_way() -> None:
    """The last line is that of every plan."""
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


def test_nothing_is_to_be_deleted_by_hand_below_pods_that_are_bound() -> None:
    """What they use would otherwise look like what is left over."""
    pod = Item(A, POD.name, "shop", "web", "", "2026-03-01T12:00:00Z")
    for in_use, words in (
        (frozenset({A}), "pods are bound to this cluster's"),
        (frozenset({"lower-b"}), "the mark alone"),
    ):
        found = planned(stays=Inventory((pod,), ()))._replace(in_use=in_use)
        assert f"lower-a: Pod shop/web: {words}" in plan_text(found, colour=False)


def test_a_plan_without_deletions_says_so() -> None:
    """It does not speak of a topology that is matched."""
    assert plan_text(planned(), colour=False) == (
        "Nothing of topology demo can be deleted.\n\nPlan: 0 to add, 0 to change, 0 to delete (no changes)"
    )


def test_programs_get_what_stays_and_what_is_in_the_way() -> None:
    """Beside what every plan has."""
    document = orjson.loads(plan_json(planned(SPACE, obstacles=("stop it",), stays=Inventory((LEFT,), ()))))
    assert (document["obstacles"], document["stays"]) == (["stop it"], [LEFT._asdict()])
    assert [(one["action"], one["name"]) for one in document["changes"]] == [("delete", "shop")]


def test_a_plan_without_obstacles_is_carried_out() -> None:
    """And one with obstacles is not, nor one that does not know every cluster."""
    check(planned(SPACE))
    with pytest.raises(TensileError, match=r"^not uninstalled:\nstop it$"):
        check(planned(SPACE, obstacles=("stop it",)))
    with pytest.raises(TensileError, match=r"every cluster has to be read:\nlower-b: no answer\nmake it reachable"):
        check(planned(SPACE, away="no answer"))
    with pytest.raises(TensileError, match="not listed: lower-a: pods: forbidden"):
        check(planned(SPACE, stays=Inventory((), ("lower-a: pods: forbidden",))))


def test_only_what_was_shown_is_deleted() -> None:
    """Less is fine: somebody else may have deleted it meanwhile."""
    _check_shown(planned(SPACE, VIRTUAL), planned(SPACE))
    with pytest.raises(TensileError, match=r"have changed since the plan: run it again:\nupper: Node lower-a$"):
        _check_shown(planned(SPACE), planned(SPACE, VIRTUAL))


def test_the_last_line_counts_what_was_deleted() -> None:
    """A namespace with objects of others was planned to stay."""
    line = "Uninstalled: 0 to add, 0 to change, 1 to delete (lower-a: 1 to delete)"
    assert _closing(planned(SPACE).refs, preview(SPACE), []) == line
    assert _closing(planned(SPACE).refs, preview(SPACE, problem=NOT_EMPTY), []) == line


def test_what_could_not_be_deleted_is_an_error() -> None:
    """With what was deleted, and what is to be done."""
    with pytest.raises(TensileError) as told:
        _closing(planned(SPACE, VIRTUAL).refs, preview(SPACE), ["upper: delete Lease: denied: no right"])
    assert "upper: delete Lease: denied: no right\n" in str(told.value)
    assert "not deleted yet: upper: Node lower-a: run `tensile uninstall` again" in str(told.value)
    assert str(told.value).endswith("Uninstalled in part: 0 to add, 0 to change, 1 to delete (lower-a: 1 to delete)")
    with pytest.raises(TensileError, match="DeletionLimitExceeded: it is so"):
        _closing(planned(SPACE).refs, preview(SPACE, problem="DeletionLimitExceeded"), [])


def test_it_asks_or_is_told_not_to(tmp_path: Path) -> None:
    """Without a terminal nobody can be asked, so no cluster is read."""
    assert refused("uninstall", "-f", Files(tmp_path).save()) == (
        "uninstall: there is no terminal to ask on: read `tensile uninstall --plan`, then give --yes\n"
    )
    assert "127.0.0.1" in refused("uninstall", "--plan", "-f", Files(tmp_path).save())
