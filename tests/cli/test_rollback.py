"""`tensile approve` and `tensile rollback` without clusters: what they choose, show, refuse and replace."""

import stat
from hashlib import sha256
from pathlib import Path

import orjson
import pytest
from clikit import Files, refused
from statuskit import OWNER, PLACE
from worldkit import written

from tensile.cli.rollback import (
    RollbackPlan,
    TopologyLocation,
    _Present,
    _shown,
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
    """Write a topology."""
    head = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n"
    return f"{head}services: {{upperAlias: up-{port}}}\n{more}"


def entry(content: str, number: int = 0) -> AcceptedText:
    """Make an entry of the history."""
    return AcceptedText(digest(content), f"2026-03-01T12:0{number}:00Z", content)


def digest(content: str) -> str:
    """Return the SHA-256 of a text."""
    return sha256(content.encode()).hexdigest()


def records(*contents: str, active: str = "", waiting: str = "") -> TopologyRecords:
    """Return a history, and a status that says what is in force and what waits."""
    told = {"sha256": digest(active), "time": "2026-12-01T12:00:00Z"}
    data = {"accepted": orjson.dumps(told).decode()} if active else {}
    if waiting:
        told = {"sha256": digest(waiting), "time": "2026-03-01T12:00:00Z", "changes": ["x: 1 -> 2"]}
        data["pendingApproval"] = orjson.dumps(told).decode()
    status = written(marked_manifest(data, status_ref(PLACE), OWNER, "map-1")) if data else None
    return TopologyRecords(OWNER, status, tuple(entry(one, number) for number, one in enumerate(contents)))


def where(path: Path | None = None) -> TopologyLocation:
    """Return a place of a topology."""
    options = f"-f {path}" if path else "--configmap ops/topo"
    return TopologyLocation(str(path or "configmap/ops/topo"), options, PLACE, ClusterAccess(Path()), Upper(), path)


FIRST, SECOND, THIRD = text(1), text(2), text(3)


def default(found: TopologyRecords, present: str) -> str:
    """Return the text that a rollback without a hash puts back."""
    return chosen(found, None, where(), present.encode()).content


def test_by_default_it_is_the_one_before_the_one_in_force() -> None:
    """Also if that was in force before; the status says what is in force where the history lags behind."""
    assert default(records(FIRST, SECOND, THIRD), THIRD) == SECOND
    assert default(records(FIRST, SECOND, FIRST), FIRST) == SECOND
    assert default(records(FIRST, SECOND, active=FIRST), FIRST) == SECOND


def test_by_default_an_edit_that_waits_is_undone() -> None:
    """By the text in force: nothing was changed by that edit yet, so nothing else has to go back."""
    assert default(records(FIRST, SECOND, active=SECOND, waiting=THIRD), THIRD) == SECOND
    lagging = records(FIRST, SECOND, active=THIRD, waiting=text(4))
    assert default(lagging, text(4)) == SECOND


def test_by_default_an_edit_that_was_refused_is_undone() -> None:
    """The engine goes on with the text in force, and so does the file then."""
    found = records(FIRST, SECOND, active=SECOND)
    assert default(found, "broken: [") == SECOND
    assert lines(found, SECOND, "broken: [")[1] == "  the engine goes on with this text, which is in force"


def test_one_is_chosen_by_the_beginning_of_its_hash() -> None:
    """Also the one in force."""
    assert chosen(records(FIRST, SECOND), digest(FIRST)[:12], where(), b"").content == FIRST
    assert chosen(records(FIRST, SECOND), digest(SECOND), where(), b"").content == SECOND


def test_what_is_not_there_is_refused() -> None:
    """With the command that lists what is there."""
    with pytest.raises(
        TensileError, match=r"there is no other one in the history: see `tensile rollback --list --conf"
    ):
        chosen(records(FIRST), None, where(), FIRST.encode())
    with pytest.raises(TensileError, match=r"000000000000 is not in the history"):
        chosen(records(FIRST, SECOND), "0" * 12, where(), b"")
    large = TopologyRecords(OWNER, None, (AcceptedText("f" * 64, "t", ""), entry(FIRST)))
    with pytest.raises(TensileError, match="was too large to be kept"):
        chosen(large, "f" * 12, where(), b"")


def test_the_list_has_the_latest_first() -> None:
    """With what each changed; one that this version cannot use is marked."""
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
    """Return what a rollback shows."""
    return list(_shown(entry(target), found, _Present(present.encode(), {}), where()))


def test_it_shows_what_the_engine_will_log() -> None:
    """From the topology in force to the one that is put back, with what needs a restart."""
    more = "telemetry: {port: 9999}\n"
    shown = lines(records(FIRST, text(2, more)), FIRST)
    assert shown[0] == f"Roll back configmap/ops/topo to {digest(FIRST)[:12]}, accepted at 2026-03-01T12:00:00Z:"
    assert shown[1] == "  services.upperAlias: up-2 -> up-1"
    assert shown[2].startswith("  telemetry.port: 9999 -> 9095: this change requires a restart")


def test_it_says_what_may_wait_for_an_approval() -> None:
    """By the limit in force, not that of the text; and that an edit which waits is given up."""
    limited = text(2, "guard: {approveOver: 7}\n")
    shown = lines(records(FIRST, limited, waiting=THIRD, active=limited), FIRST)
    assert "If this affects more running pods than guard.approveOver (7), it waits for `tensile approve`." in shown
    assert shown[-1] == f"This gives up the edit that waits for an approval, {digest(THIRD)[:12]}."
    assert not any("guard" in line for line in lines(records(limited, FIRST), FIRST))


def test_without_the_text_in_force_the_present_one_is_compared() -> None:
    """If that is valid."""
    unknown = records(FIRST, active="gone")
    assert lines(unknown, FIRST, SECOND)[1] == "  services.upperAlias: up-2 -> up-1"
    assert lines(unknown, FIRST, "broken: [")[1].startswith("  the topology in force is not known")


def test_a_text_that_is_not_valid_is_not_put_back() -> None:
    """An older version accepted it."""
    with pytest.raises(TensileError, match="lowers"):
        lines(records(FIRST), "lowers: x\n")


def plan(target: str, present: str) -> RollbackPlan:
    """Return a plan to put a text back."""
    return RollbackPlan(entry(target), (), _Present(present.encode(), {}))


def test_a_file_is_replaced_after_the_question(tmp_path: Path) -> None:
    """Not if the answer is no, and not if it has the text already."""
    path = tmp_path / "topology.yaml"
    path.write_text(SECOND)
    with pytest.raises(TensileError, match="Nothing was changed"):
        roll_back(where(path), plan(FIRST, SECOND), lambda: False)
    assert path.read_text() == SECOND
    assert "nothing was changed" in roll_back(where(path), plan(SECOND, SECOND), lambda: False)
    assert f"rolled back to {digest(FIRST)[:12]}" in roll_back(where(path), plan(FIRST, SECOND), lambda: True)
    assert path.read_text() == FIRST


def test_a_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    """Nothing is left beside it."""
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_bytes(b"a\r\n")
    real.chmod(0o640)
    link.symlink_to(real)
    put_back(link, b"a\r\n", b"b\r\n")
    assert (link.is_symlink(), real.read_bytes()) == (True, b"b\r\n")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]


def test_a_file_that_changed_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    """Somebody edits it; one that is gone cannot be replaced either."""
    path = tmp_path / "topology.yaml"
    path.write_bytes(b"theirs")
    with pytest.raises(TensileError, match="was changed meanwhile"):
        put_back(path, b"seen", b"new")
    assert path.read_bytes() == b"theirs"
    path.unlink()
    with pytest.raises(TensileError, match="cannot be written: No such file"):
        put_back(path, b"seen", b"new")


def test_only_the_edit_that_waits_can_be_approved() -> None:
    """Another hash is refused with what waits."""
    assert pending_digest(records(active=FIRST, waiting=SECOND), digest(SECOND)[:12], where()) == digest(SECOND)
    with pytest.raises(TensileError) as told:
        pending_digest(records(active=FIRST, waiting=SECOND), digest(FIRST), where())
    assert str(told.value).splitlines()[1:] == [f"  {digest(SECOND)}", "  x: 1 -> 2"]
    with pytest.raises(TensileError, match=rf"no edit waits for an approval; in force: {digest(FIRST)[:12]}"):
        pending_digest(records(active=FIRST), digest(SECOND), where())
    with pytest.raises(TensileError, match=r"no edit waits for an approval$"):
        pending_digest(records(), digest(SECOND), where())


def test_a_bad_hash_is_refused_before_a_cluster_is_contacted(files: Files) -> None:
    """And so are options that do not go together."""
    path = files.save()
    assert refused("approve", "abc", "-f", path).startswith("'abc' is not a SHA-256: give at least its first 12")
    assert refused("rollback", "--to", "xyz", "-f", path).startswith("'xyz' is not a SHA-256")
    assert refused("rollback", "--list", "--yes", "-f", path) == "--list shows topologies only: omit --to and --yes\n"
    assert refused("rollback", "--configmap", "topo").startswith("--configmap 'topo': write NAMESPACE/NAME")


def test_a_file_without_a_name_is_refused(files: Files) -> None:
    """Nothing says where its history is; a file with another error is good enough for a way to the clusters."""
    bad = files.directory / "bad.yaml"
    bad.write_text("lowers: [\n")
    assert "bad.yaml:" in refused("rollback", "-f", bad)
    path = files.save(lambda topology: topology.update(lowerz=[]))
    assert "upper: " in refused("rollback", "--list", "-f", path)
