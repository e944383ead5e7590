"""The tour as data: that what is printed can be typed, and that it waits where it has to."""

import shlex

import pytest
import yaml

from tensile.sandbox import apiserver
from tensile.sandbox.demo_script import (
    BOTH_SIDES,
    COLUMNS_FILE,
    DELETION,
    EDIT,
    EDITED_FILE,
    LOWERS,
    NAMES,
    NODES,
    RELOAD,
    SUMMARY,
    TOUR,
    WORKLOAD,
    WORKLOAD_FILE,
    Command,
    edited,
)
from tensile.sandbox.demo_script import WORKLOAD_SCENE as CREATION
from tensile.topology import parse

COMMANDS = [command for scene in TOUR for command in scene.lines]
LINES = [command.line for command in COMMANDS]
MADE = apiserver.topology(["lower-a", "lower-b"], kubelet_port=23450, telemetry_port=23460)
THERE = {"topology.yaml", EDITED_FILE, WORKLOAD_FILE, "upper.kubeconfig", "lower-a.kubeconfig", "lower-b.kubeconfig"}


def words(command: Command) -> list[str]:
    """Return a command line as a shell would split it."""
    return shlex.split(command.line)


@pytest.mark.parametrize("command", COMMANDS, ids=LINES)
def test_a_command_is_one_that_can_be_typed(command: Command) -> None:
    """It begins with a program, and what would mean something to a shell stands in quotes."""
    assert words(command)[0] in {"kubectl", "tensile", "cat", "cp", "grep"}
    bare = "".join(command.line.split("'")[::2])
    assert not set(bare) & set('{}$|&;<>*?`"\\()')


@pytest.mark.parametrize("command", COMMANDS, ids=LINES)
def test_a_command_names_files_that_are_there(command: Command) -> None:
    """Every file of a command is the sandbox's or the demo's."""
    files = {word for word in words(command) if word.endswith((".yaml", ".kubeconfig"))}
    assert files <= THERE


@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if {"wait", "rollout", "delete"} & set(words(one))], ids=str
)
def test_what_waits_ends_before_the_shell_gives_up(command: Command) -> None:
    """A command that waits says for how long, so that its own words tell what did not come."""
    assert "--timeout=60s" in words(command)


def test_the_scenes_are_told_apart_and_said_in_short_lines() -> None:
    """Each scene has a title of its own, words, commands, and no line that a terminal breaks."""
    assert len({scene.title for scene in TOUR}) == len(TOUR)
    assert all(scene.words and scene.commands for scene in TOUR)
    texts = [*(scene.words for scene in TOUR), SUMMARY]
    assert max(len(line) for text in texts for line in text.splitlines()) <= 80
    assert max(map(len, LINES)) <= 90


def test_the_tour_shows_every_part_of_the_main_job() -> None:
    """Nodes, pods above and below, logs, exec, a plan before the edit, the edit, and a plan at the end."""
    shown = [
        "kubectl get nodes",
        "kubectl apply -f workload.yaml",
        "kubectl -n shop get pods",
        "kubectl --context lower-a -n shop get pods",
        "kubectl --context lower-b -n shop get pods",
        "kubectl -n shop logs",
        "kubectl -n shop exec",
        "tensile plan -f edited.yaml",
        "cp edited.yaml topology.yaml",
        "kubectl delete -f workload.yaml",
        "tensile plan -f topology.yaml",
    ]
    places = [next(place for place, line in enumerate(LINES) if line.startswith(start)) for start in shown]
    assert places == sorted(places)


def test_only_the_plan_of_the_edit_holds_changes() -> None:
    """Every other command ends with 0, the last plan with it, which then says that nothing is left to change."""
    others = [command for command in COMMANDS if command.codes != (0,)]
    assert others == [Command("tensile plan -f edited.yaml", (2,))]
    assert others[0] in EDIT.lines
    assert DELETION.lines[-1] == Command("tensile plan -f topology.yaml")


def test_nodes_and_workload_are_waited_for_before_they_are_shown() -> None:
    """No list of the tour is printed before it is complete."""
    for scenes, waits, lists in (
        ((NODES,), "condition=Ready", "get nodes"),
        ((CREATION, LOWERS), "readyReplicas}'=6", "get pods"),
        ((RELOAD,), "readyReplicas}'=8", "get pods"),
    ):
        lines = [command.line for scene in scenes for command in scene.lines]
        first = next(place for place, line in enumerate(lines) if lists in line)
        assert any(waits in line for line in lines[:first])


def test_both_sides_are_shown_before_and_after_the_edit() -> None:
    """With columns that fit next to each other, of a file that the demo writes."""
    assert [scene for scene in TOUR if BOTH_SIDES in scene.commands] == [LOWERS, RELOAD]
    assert all(command.line.endswith(f"={COLUMNS_FILE}") for command in (BOTH_SIDES.left, *BOTH_SIDES.right))
    assert COLUMNS_FILE in NAMES


def test_the_edit_is_a_cordon_and_a_label_of_lower_b_alone() -> None:
    """The edited file is valid, and differs in nothing else."""
    before, after = parse(MADE), parse(edited(MADE))
    changed = after.lowers[1]
    assert (changed.maintenance, changed.node.labels) == ("cordon", {"zone": "north", "clusterID": "lower-b"})
    assert after.lowers[0] == before.lowers[0]
    assert [line for line in edited(MADE).splitlines() if line not in MADE.splitlines()] == [
        "  maintenance: cordon",
        "  node:",
        "    labels: {zone: north}",
    ]


def test_the_plan_of_the_edit_is_shown_with_the_lines_that_were_added() -> None:
    """What grep prints is the whole entry of lower-b."""
    assert words(EDIT.lines[0]) == ["grep", "-A", "4", "name: lower-b", EDITED_FILE]
    after = edited(MADE).splitlines()
    start = after.index("- name: lower-b")
    assert after[start + 4] == "  kubeconfig: lower-b.kubeconfig"


def test_the_workload_may_run_on_virtual_nodes_and_ends_at_once() -> None:
    """Its pods tolerate the nodes' taint, and a deletion does not wait for half a minute of grace."""
    templates = [
        one["spec"]["template"]["spec"] for one in yaml.safe_load_all(WORKLOAD) if "template" in one.get("spec", {})
    ]
    assert len(templates) == 2
    for pod in templates:
        assert pod["tolerations"] == [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]
        assert pod["terminationGracePeriodSeconds"] == 1


def test_the_workload_brings_what_its_pods_refer_to() -> None:
    """The Deployment's ConfigMap and Secret are in the file, before it, in its namespace."""
    objects = list(yaml.safe_load_all(WORKLOAD))
    kinds = [one["kind"] for one in objects]
    assert kinds == ["Namespace", "ConfigMap", "Secret", "Deployment", "Job"]
    pod = objects[3]["spec"]["template"]["spec"]
    assert pod["containers"][0]["envFrom"][0]["configMapRef"]["name"] == objects[1]["metadata"]["name"]
    assert pod["volumes"][0]["secret"]["secretName"] == objects[2]["metadata"]["name"]
    assert {one["metadata"]["namespace"] for one in objects[1:]} == {objects[0]["metadata"]["name"]}


def test_what_the_demo_writes_is_on_the_list_of_what_is_removed() -> None:
    """The names are plain, and none of them is one of the sandbox's own."""
    assert {WORKLOAD_FILE, EDITED_FILE} < set(NAMES)
    assert not set(NAMES) & {"upper", "lower-a", "lower-b", "topology.yaml", "state.json"}
    assert all("/" not in name for name in NAMES)
