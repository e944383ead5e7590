"""Tests of `tensile approve` and `tensile rollback` without clusters: what they choose, show, refuse and replace."""

import stat
from hashlib import sha256
from pathlib import Path

import orjson
import pytest
from clikit import Files, run_failing
from statuskit import OWNER, PLACE
from worldkit import with_managed_fields

from tensile.cli.rollback import (
    RollbackPlan,
    TopologyLocation,
    _description,
    _Present,
    chosen,
    pending_digest,
    put_back,
    roll_back,
    table,
)
from tensile.engine.history import AcceptedText, TopologyRecords
from tensile.engine.lower import ClusterAccess
from tensile.engine.status.configmap import marked_manifest, status_ref
from tensile.errors import TensileError
from tensile.topology import Upper


def text(port: int, more: str = "") -> str:
    """Return a topology."""
    head = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n"
    return f"{head}services: {{upperAlias: up-{port}}}\n{more}"


def entry(content: str, number: int = 0) -> AcceptedText:
    """Return an entry of the history."""
    return AcceptedText(digest(content), f"2026-03-01T12:0{number}:00Z", content)


def digest(content: str) -> str:
    """Return the SHA-256 of a text."""
    return sha256(content.encode()).hexdigest()


def records(*contents: str, active: str = "", waiting: str = "") -> TopologyRecords:
    """Return a history, and a status with the text in force and the edit that waits for approval."""
    record = {"sha256": digest(active), "time": "2026-12-01T12:00:00Z"}
    data = {"accepted": orjson.dumps(record).decode()} if active else {}
    if waiting:
        record = {"sha256": digest(waiting), "time": "2026-03-01T12:00:00Z", "changes": ["x: 1 -> 2"]}
        data["pendingApproval"] = orjson.dumps(record).decode()
    status = with_managed_fields(marked_manifest(data, status_ref(PLACE), OWNER, "map-1")) if data else None
    return TopologyRecords(OWNER, status, tuple(entry(one, number) for number, one in enumerate(contents)))


def where(path: Path | None = None) -> TopologyLocation:
    """Return the location of a topology."""
    options = f"-f {path}" if path else "--configmap ops/topo"
    return TopologyLocation(str(path or "configmap/ops/topo"), options, PLACE, ClusterAccess(Path()), Upper(), path)


FIRST, SECOND, THIRD = text(1), text(2), text(3)


def default(found: TopologyRecords, present: str) -> str:
    """Return the text that a rollback without a hash restores."""
    return chosen(found, None, where(), present.encode()).content


def test_by_default_the_text_before_the_one_in_force_is_restored() -> None:
    """This holds even if it was in force before; the status decides if the history is not up to date."""
    assert default(records(FIRST, SECOND, THIRD), THIRD) == SECOND
    assert default(records(FIRST, SECOND, FIRST), FIRST) == SECOND
    assert default(records(FIRST, SECOND, active=FIRST), FIRST) == SECOND


def test_by_default_an_edit_that_waits_for_approval_is_undone() -> None:
    """The text in force is restored; the edit has changed nothing yet, so no earlier text is needed."""
    assert default(records(FIRST, SECOND, active=SECOND, waiting=THIRD), THIRD) == SECOND
    lagging = records(FIRST, SECOND, active=THIRD, waiting=text(4))
    assert default(lagging, text(4)) == SECOND


def test_by_default_a_refused_edit_is_undone() -> None:
    """The engine continues with the text in force, and the file gets that text again."""
    found = records(FIRST, SECOND, active=SECOND)
    assert default(found, "broken: [") == SECOND
    assert lines(found, SECOND, "broken: [")[1] == "  the engine goes on with this text, which is in force"


def test_a_text_is_chosen_by_a_prefix_of_its_hash() -> None:
    """The text in force can be chosen too."""
    assert chosen(records(FIRST, SECOND), digest(FIRST)[:12], where(), b"").content == FIRST
    assert chosen(records(FIRST, SECOND), digest(SECOND), where(), b"").content == SECOND


def test_a_text_that_is_not_in_the_history_is_refused() -> None:
    """The error has the command that lists the history; a text that was too large was not kept."""
    with pytest.raises(
        TensileError, match=r"there is no other one in the history: see `tensile rollback --list --conf"
    ):
        chosen(records(FIRST), None, where(), FIRST.encode())
    with pytest.raises(TensileError, match=r"000000000000 is not in the history"):
        chosen(records(FIRST, SECOND), "0" * 12, where(), b"")
    large = TopologyRecords(OWNER, None, (AcceptedText("f" * 64, "t", ""), entry(FIRST)))
    with pytest.raises(TensileError, match="was too large to be kept"):
        chosen(large, "f" * 12, where(), b"")


def test_the_list_starts_with_the_latest_text() -> None:
    """Each row has the changes of that text, and texts that this version cannot use are marked."""
    found = records(FIRST, SECOND, f"{SECOND}# a comment\n", "lowers: x\n", THIRD)
    rows = [line.split(maxsplit=2) for line in table(found, where().parse).splitlines()]
    assert [row[0] for row in rows[1:]] == [one.sha256[:12] for one in reversed(found.history)]
    assert [row[2] for row in rows[1:]] == [
        "in force     -",
        "not usable   -",
        "-            text only",
        "-            services.upperAlias: up-1 -> up-2",
        "-            -",
    ]


def lines(found: TopologyRecords, target: str, present: str = "") -> list[str]:
    """Return the lines that a rollback shows."""
    return list(_description(entry(target), found, _Present(present.encode(), {}), where()))


def test_a_rollback_shows_the_changes_that_the_engine_will_log() -> None:
    """They lead from the topology in force to the restored one, and include changes that need a restart."""
    more = "telemetry: {port: 9999}\n"
    shown = lines(records(FIRST, text(2, more)), FIRST)
    assert shown[0] == f"Roll back configmap/ops/topo to {digest(FIRST)[:12]}, accepted at 2026-03-01T12:00:00Z:"
    assert shown[1] == "  services.upperAlias: up-2 -> up-1"
    assert shown[2].startswith("  telemetry.port: 9999 -> 9095: this change requires a restart")


def test_a_rollback_that_may_wait_for_approval_is_announced() -> None:
    """The limit in force counts, not that of the restored text; a waiting edit is given up."""
    limited = text(2, "guard: {approveOver: 7}\n")
    shown = lines(records(FIRST, limited, waiting=THIRD, active=limited), FIRST)
    assert "If this affects more running pods than guard.approveOver (7), it waits for `tensile approve`." in shown
    assert shown[-1] == f"This gives up the edit that waits for an approval, {digest(THIRD)[:12]}."
    assert not any("guard" in line for line in lines(records(limited, FIRST), FIRST))


def test_without_a_known_text_in_force_the_present_text_is_compared() -> None:
    """If that text is invalid, the changes are unknown."""
    unknown = records(FIRST, active="gone")
    assert lines(unknown, FIRST, SECOND)[1] == "  services.upperAlias: up-2 -> up-1"
    assert lines(unknown, FIRST, "broken: [")[1].startswith("  the topology in force is not known")


def test_an_invalid_text_is_not_restored() -> None:
    """An older version may have accepted it."""
    with pytest.raises(TensileError, match="lowers"):
        lines(records(FIRST), "lowers: x\n")


def plan(target: str, present: str) -> RollbackPlan:
    """Return a plan to restore a text."""
    return RollbackPlan(entry(target), (), _Present(present.encode(), {}))


def test_a_file_is_replaced_only_if_the_user_agrees(tmp_path: Path) -> None:
    """It is unchanged if the answer is no, or if it has the text already."""
    path = tmp_path / "topology.yaml"
    path.write_text(SECOND)
    with pytest.raises(TensileError, match="Nothing was changed"):
        roll_back(where(path), plan(FIRST, SECOND), lambda: False)
    assert path.read_text() == SECOND
    assert "nothing was changed" in roll_back(where(path), plan(SECOND, SECOND), lambda: False)
    assert f"rolled back to {digest(FIRST)[:12]}" in roll_back(where(path), plan(FIRST, SECOND), lambda: True)
    assert path.read_text() == FIRST


def test_a_replaced_file_keeps_its_mode_and_its_symbolic_link(tmp_path: Path) -> None:
    """No other file is left in the directory."""
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_bytes(b"a\r\n")
    real.chmod(0o640)
    link.symlink_to(real)
    put_back(link, b"a\r\n", b"b\r\n")
    assert (link.is_symlink(), real.read_bytes()) == (True, b"b\r\n")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]


def test_a_file_that_was_changed_since_it_was_read_is_not_replaced(tmp_path: Path) -> None:
    """Another program may be editing it; a file that was deleted cannot be replaced either."""
    path = tmp_path / "topology.yaml"
    path.write_bytes(b"theirs")
    with pytest.raises(TensileError, match="was changed meanwhile"):
        put_back(path, b"seen", b"new")
    assert path.read_bytes() == b"theirs"
    path.unlink()
    with pytest.raises(TensileError, match="cannot be written: No such file"):
        put_back(path, b"seen", b"new")


def test_only_the_waiting_edit_can_be_approved() -> None:
    """Another hash is refused, and the error has the waiting edit."""
    assert pending_digest(records(active=FIRST, waiting=SECOND), digest(SECOND)[:12], where()) == digest(SECOND)
    with pytest.raises(TensileError) as raised:
        pending_digest(records(active=FIRST, waiting=SECOND), digest(FIRST), where())
    assert str(raised.value).splitlines()[1:] == [f"  {digest(SECOND)}", "  x: 1 -> 2"]
    with pytest.raises(TensileError, match=rf"no edit waits for an approval; in force: {digest(FIRST)[:12]}"):
        pending_digest(records(active=FIRST), digest(SECOND), where())
    with pytest.raises(TensileError, match=r"no edit waits for an approval$"):
        pending_digest(records(), digest(SECOND), where())


def test_an_invalid_hash_is_refused_before_any_cluster_is_contacted(files: Files) -> None:
    """Incompatible options are refused as early."""
    path = files.save()
    assert run_failing("approve", "abc", "-f", path).startswith("'abc' is not a SHA-256: give at least its first 12")
    assert run_failing("rollback", "--to", "xyz", "-f", path).startswith("'xyz' is not a SHA-256")
    assert (
        run_failing("rollback", "--list", "--yes", "-f", path) == "--list shows topologies only: omit --to and --yes\n"
    )
    assert run_failing("rollback", "--configmap", "topo").startswith("--configmap 'topo': write NAMESPACE/NAME")


def test_a_file_without_a_topology_name_is_refused(files: Files) -> None:
    """The name locates the history; a file with another error can still be used to reach the clusters."""
    bad = files.directory / "bad.yaml"
    bad.write_text("lowers: [\n")
    assert "bad.yaml:" in run_failing("rollback", "-f", bad)
    path = files.save(lambda topology: topology.update(lowerz=[]))
    assert "upper: " in run_failing("rollback", "--list", "-f", path)
