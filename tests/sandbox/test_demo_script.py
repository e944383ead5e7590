"""Tests of the tour's data: its commands can be typed, and it waits before it shows incomplete lists."""

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


def shell_words(command: Command) -> list[str]:
    """Return a command line as a shell would split it."""
    return shlex.split(command.line)


@pytest.mark.parametrize("command", COMMANDS, ids=LINES)
def test_each_command_can_be_typed(command: Command) -> None:
    """It begins with a program, and characters that are special to a shell are quoted."""
    assert shell_words(command)[0] in {"kubectl", "tensile", "cat", "cp", "grep"}
    bare = "".join(command.line.split("'")[::2])
    assert not set(bare) & set('{}$|&;<>*?`"\\()')


@pytest.mark.parametrize("command", COMMANDS, ids=LINES)
def test_each_command_names_files_that_exist(command: Command) -> None:
    """Every file of a command belongs to the sandbox or to the demo."""
    files = {word for word in shell_words(command) if word.endswith((".yaml", ".kubeconfig"))}
    assert files <= THERE


@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if {"wait", "rollout", "delete"} & set(shell_words(one))], ids=str
)
def test_commands_that_wait_have_a_timeout(command: Command) -> None:
    """It ends them before the tour's shell does, so that their own output names the missing object."""
    assert "--timeout=60s" in shell_words(command)


def test_scenes_have_distinct_titles_and_short_lines() -> None:
    """Each scene has its own title, words and commands, and no line that a terminal would wrap."""
    assert len({scene.title for scene in TOUR}) == len(TOUR)
    assert all(scene.text and scene.commands for scene in TOUR)
    texts = [*(scene.text for scene in TOUR), SUMMARY]
    assert max(len(line) for text in texts for line in text.splitlines()) <= 80
    assert max(map(len, LINES)) <= 90


def test_the_tour_shows_every_part_of_the_main_workflow() -> None:
    """In order: nodes, pods in all clusters, logs, exec, a plan, the edit, and a plan at the end."""
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


def test_only_the_plan_of_the_edit_has_changes() -> None:
    """Every other command exits with 0, including the last plan, which then has no changes."""
    others = [command for command in COMMANDS if command.codes != (0,)]
    assert others == [Command("tensile plan -f edited.yaml", (2,))]
    assert others[0] in EDIT.lines
    assert DELETION.lines[-1] == Command("tensile plan -f topology.yaml")


def test_the_tour_waits_for_nodes_and_workload_before_it_lists_them() -> None:
    """Each list of the tour is printed only when it is complete."""
    for scenes, waits, lists in (
        ((NODES,), "condition=Ready", "get nodes"),
        ((CREATION, LOWERS), "readyReplicas}'=6", "get pods"),
        ((RELOAD,), "readyReplicas}'=8", "get pods"),
    ):
        lines = [command.line for scene in scenes for command in scene.lines]
        first = next(place for place, line in enumerate(lines) if lists in line)
        assert any(waits in line for line in lines[:first])


def test_pods_of_all_clusters_are_shown_before_and_after_the_edit() -> None:
    """The columns fit next to each other, because all lists use a file of columns that the demo writes."""
    assert [scene for scene in TOUR if BOTH_SIDES in scene.commands] == [LOWERS, RELOAD]
    assert all(command.line.endswith(f"={COLUMNS_FILE}") for command in (BOTH_SIDES.left, *BOTH_SIDES.right))
    assert COLUMNS_FILE in NAMES


def test_the_edit_cordons_and_labels_only_lower_b() -> None:
    """The edited file is valid and has no other difference."""
    before, after = parse(MADE), parse(edited(MADE))
    changed = after.lowers[1]
    assert (changed.maintenance, changed.node.labels) == ("cordon", {"zone": "north", "clusterID": "lower-b"})
    assert after.lowers[0] == before.lowers[0]
    assert [line for line in edited(MADE).splitlines() if line not in MADE.splitlines()] == [
        "  maintenance: cordon",
        "  node:",
        "    labels: {zone: north}",
    ]


def test_grep_shows_the_complete_edited_entry() -> None:
    """The output of grep is the complete entry of lower-b."""
    assert shell_words(EDIT.lines[0]) == ["grep", "-A", "4", "name: lower-b", EDITED_FILE]
    after = edited(MADE).splitlines()
    start = after.index("- name: lower-b")
    assert after[start + 4] == "  kubeconfig: lower-b.kubeconfig"


def test_the_workload_tolerates_virtual_nodes_and_ends_within_a_second() -> None:
    """Its pods tolerate the nodes' taint, and a deletion does not wait for the default grace period."""
    templates = [
        one["spec"]["template"]["spec"] for one in yaml.safe_load_all(WORKLOAD) if "template" in one.get("spec", {})
    ]
    assert len(templates) == 2
    for pod in templates:
        assert pod["tolerations"] == [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]
        assert pod["terminationGracePeriodSeconds"] == 1


def test_the_workload_contains_the_objects_that_its_pods_refer_to() -> None:
    """The ConfigMap and the Secret precede the Deployment in the file and share its namespace."""
    objects = list(yaml.safe_load_all(WORKLOAD))
    kinds = [one["kind"] for one in objects]
    assert kinds == ["Namespace", "ConfigMap", "Secret", "Deployment", "Job"]
    pod = objects[3]["spec"]["template"]["spec"]
    assert pod["containers"][0]["envFrom"][0]["configMapRef"]["name"] == objects[1]["metadata"]["name"]
    assert pod["volumes"][0]["secret"]["secretName"] == objects[2]["metadata"]["name"]
    assert {one["metadata"]["namespace"] for one in objects[1:]} == {objects[0]["metadata"]["name"]}


def test_every_file_that_the_demo_writes_is_on_the_list_for_removal() -> None:
    """The names have no folders, and none of them is the sandbox's own."""
    assert {WORKLOAD_FILE, EDITED_FILE} < set(NAMES)
    assert not set(NAMES) & {"upper", "lower-a", "lower-b", "topology.yaml", "state.json"}
    assert all("/" not in name for name in NAMES)
