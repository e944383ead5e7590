"""Tests of `tensile apply PLAN` with clusters in memory: it makes exactly the steps of a saved plan, or none."""

import asyncio
import os
import stat
from hashlib import sha256
from pathlib import Path

import pytest
from clikit import Capture, Files, run_in_process
from openkit import MemoryClusters, mixed_world, saved_plan
from worldkit import A, config_map, make_upper_pod

from tensile.cli.apply import ApplyOptions, apply, check_topology, read_plan, topology_file
from tensile.cli.plan import described, write_plan
from tensile.engine.plan_and_apply import Planned
from tensile.errors import TensileError
from tensile.objects import CONFIG_MAP, POD, UPPER, Manifest, Ref
from tensile.reconcile.report import LARGEST, PlanScope, Preview, SavedPlan, SavedTopology, parsed
from tensile.topology import parse

AGAIN = "Nothing was changed. Plan again with `tensile plan --out FILE`."


def show(_plan: Planned) -> None:
    """Ignore the plan."""


def applied(clusters: MemoryClusters, plan: SavedPlan) -> str:
    """Apply a saved plan without a question."""
    return apply(clusters.opening, ApplyOptions(plan=plan), show)


def test_a_plan_is_applied_as_it_was_saved() -> None:
    """Its steps are made, and the last line has its counts."""
    clusters = MemoryClusters(mixed_world())
    done = applied(clusters, asyncio.run(saved_plan(clusters)))
    assert done.startswith("Applied: 1 to add, 2 to change, 1 to delete (")
    assert clusters.lower_writes == {"create Pod new", "delete Pod orphan"}


def test_a_plan_is_refused_if_an_object_has_changed() -> None:
    """The error names the object, the planned and the present action, and nothing is written."""
    clusters = MemoryClusters(mixed_world())
    plan = asyncio.run(saved_plan(clusters))
    clusters.connections[UPPER].place(POD, make_upper_pod("late"))
    with pytest.raises(TensileError) as refused:
        applied(clusters, plan)
    lines = str(refused.value).splitlines()
    assert lines[0] == "The plan is stale. These have moved since it was made:"
    assert "lower-a: Pod default/late: from nothing to create" in lines
    assert lines[-1] == AGAIN
    assert clusters.writes == []


def test_a_plan_is_refused_the_second_time() -> None:
    """Its steps are done, so the present plan no longer has them."""
    clusters = MemoryClusters(mixed_world())
    plan = asyncio.run(saved_plan(clusters))
    applied(clusters, plan)
    with pytest.raises(TensileError, match="lower-a: Pod default/new: from create to nothing"):
        applied(clusters, plan)


def test_a_plan_of_some_kinds_changes_no_other_kinds() -> None:
    """Changes of other kinds, and objects that depend on them, are not made, and both are reported."""
    clusters = MemoryClusters(mixed_world())
    only = PlanScope((A,), (), ("Pod",))
    clusters.connections[UPPER].place(CONFIG_MAP, config_map("settings"))
    volumes = [{"name": "c", "configMap": {"name": "settings"}}]
    clusters.connections[UPPER].place(POD, make_upper_pod("reader", spec={"volumes": volumes}))
    with pytest.raises(TensileError) as partly:
        applied(clusters, asyncio.run(saved_plan(clusters, only)))
    *_, left, unmade, last = str(partly.value).splitlines()
    assert left == ("Left out: create lower-a: ConfigMap default/settings is not in the plan: run `tensile plan` again")
    assert unmade.startswith("Not made, for lack of what was left out: lower-a: Pod default/reader")
    assert last.startswith("Applied in part: 1 to add, ")
    assert not any("ConfigMap" in write for write in clusters.lower_writes)
    assert "create Pod new" in clusters.lower_writes


def test_changes_that_arise_during_apply_are_left_out() -> None:
    """A pod that is bound during apply is not created, because it was not approved."""
    clusters = MemoryClusters(mixed_world())
    plan = asyncio.run(saved_plan(clusters))

    def bind_another(verb: str, ref: Ref, _body: Manifest) -> None:
        """Bind another pod when the first one is created."""
        if (verb, ref.name) == ("create", "new"):
            clusters.connections[UPPER].place(POD, make_upper_pod("late"))

    clusters.connections[A].on_write = bind_another
    left, done = applied(clusters, plan).splitlines()
    assert left == ("Left out: create lower-a: Pod default/late is not in the plan: run `tensile plan` again")
    assert done.startswith("Applied: 1 to add, ")
    assert "create Pod late" not in clusters.lower_writes


def test_a_plan_that_becomes_stale_during_the_question_is_not_applied() -> None:
    """The answer referred to another plan."""
    clusters = MemoryClusters(mixed_world())

    def ask() -> bool:
        """Agree, after another pod has been bound."""
        clusters.connections[UPPER].place(POD, make_upper_pod("late"))
        return True

    with pytest.raises(TensileError, match="Pod default/late: from nothing to create"):
        apply(clusters.opening, ApplyOptions(ask=ask), show)
    assert clusters.writes == []


def test_the_plan_file_is_private_and_replaces_an_existing_file(tmp_path: Path) -> None:
    """Its mode is 0600, whatever mode the replaced file had."""
    path = tmp_path / "x.plan"
    path.write_text("old")
    path.chmod(0o644)
    topology = described(mixed_world().topology, str(tmp_path / "topology.yaml"), b"content")
    write_plan(Planned(Preview("demo", {}), {"upper": "u"}), path, topology)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["x.plan"]
    found = read_plan(str(path))
    assert found.topology.file == str(tmp_path / "topology.yaml")
    assert found.topology.sha256 == sha256(b"content").hexdigest()


def test_a_symbolic_link_is_followed_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    """As in other programs, `--out /dev/null` must not replace the device."""
    topology, found = described(mixed_world().topology, "topology.yaml", b""), Planned(Preview("demo", {}), {})
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "x.plan")
    write_plan(found, link, topology)
    assert link.is_symlink()
    assert read_plan(str(tmp_path / "x.plan")).topology.name == topology.name
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_plan(found, pipe, topology)
    assert pipe.is_fifo()
    assert parsed(os.read(reader, 65536), "pipe").topology.name == topology.name
    os.close(reader)


def test_a_plan_that_is_too_large_for_apply_is_not_written(tmp_path: Path) -> None:
    """The file would be useless, and its plan may have taken minutes."""
    topology = described(mixed_world().topology, "x" * LARGEST, b"")
    with pytest.raises(TensileError, match=f"`tensile apply` accepts at most {LARGEST}: plan fewer clusters"):
        write_plan(Planned(Preview("demo", {}), {}), tmp_path / "x.plan", topology)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error has the reason, and no file is left."""
    topology = described(mixed_world().topology, "topology.yaml", b"")
    found = Planned(Preview("demo", {}), {})
    with pytest.raises(TensileError, match=r"missing/x\.plan: cannot be written: No such file or directory"):
        write_plan(found, tmp_path / "missing" / "x.plan", topology)
    with pytest.raises(TensileError, match="cannot be written: Is a directory"):
        write_plan(found, tmp_path, topology)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_refused_if_its_topology_file_was_edited(files: Files, capsys: Capture) -> None:
    """The file of the plan, or of -f, is compared by content before any cluster is contacted."""
    path, plan = files.save(), files.directory / "x.plan"
    topology = described(parse(path.read_text()), str(path), path.read_bytes())
    write_plan(Planned(Preview("files", {}), {}), plan, topology)
    path.write_text(path.read_text() + "# edited\n")
    result = run_in_process(capsys, "apply", str(plan))
    assert result.code == 1
    assert f"{path}: edited, from SHA-256 {topology.sha256[:12]} to " in result.err
    assert result.err.endswith(f"{AGAIN}\n")
    check_topology(read_plan(str(plan)), str(path), path.read_bytes().removesuffix(b"# edited\n"))


def test_a_topology_that_became_invalid_is_reported_with_its_errors(files: Files, capsys: Capture) -> None:
    """The plan was made for another content, and each error of the present content has a line."""
    path, plan = files.save(), files.directory / "x.plan"
    topology = described(parse(path.read_text()), str(path), path.read_bytes())
    write_plan(Planned(Preview("files", {}), {}), plan, topology)
    path.write_text(path.read_text().replace("lowers:", "lowerz:"))
    digest = sha256(path.read_bytes()).hexdigest()
    result = run_in_process(capsys, "apply", str(plan))
    first, moved, *errors, last = result.err.removeprefix("Error: ").splitlines()
    assert (result.code, result.out) == (1, "")
    assert first == "The plan is stale. These have moved since it was made:"
    assert moved == f"{path}: edited, from SHA-256 {topology.sha256[:12]} to {digest[:12]}, which is not valid:"
    assert [one.partition(": ")[2] for one in errors] == [
        "lowers: required key is missing",
        "lowerz: unknown key; did you mean lowers?",
    ]
    assert last == AGAIN
    write_plan(Planned(Preview("files", {}), {}), plan, SavedTopology(topology.name, topology.file, digest))
    assert run_in_process(capsys, "apply", str(plan)).err.splitlines() == errors


def test_the_topology_of_a_plan_from_standard_input_must_be_named() -> None:
    """The plan does not know where that topology came from."""
    clusters = MemoryClusters(mixed_world())
    plan = asyncio.run(saved_plan(clusters))
    assert topology_file(plan, "given.yaml") == "given.yaml"
    with pytest.raises(TensileError, match="standard input or a ConfigMap: name it with -f"):
        topology_file(plan, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("apply missing.plan", "missing.plan: cannot be read: No such file or directory: name a file of "),
        ("apply {topology}", "{topology}: not a saved plan: save one with `tensile plan --out`; name a topology file "),
        ("apply {topology} --force", "--force and a saved plan exclude each other: "),
        ("plan -f {topology} --out x --drain below", "--out and --drain exclude each other: "),
    ],
)
def test_incompatible_arguments_are_refused(files: Files, capsys: Capture, line: str, message: str) -> None:
    """The error describes valid arguments, and no cluster is contacted."""
    topology = str(files.save())
    result = run_in_process(capsys, *line.format(topology=topology).split())
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(message.format(topology=topology))
