"""Tests of the function of `tensile import`, with a corpus of installations and with hostile inputs.

Each folder of imports/ is one installation: its files, or command.txt with a command line, and the expected topology
and notes. TENSILE_RECORD=1 in the environment records these again; read what changed before you commit it.
"""

import os
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tensile.deploy.importing import Imported, imported
from tensile.deploy.tensile_kube_commands import FLAGS, VARIABLES, VIRTUAL_NODE, Program, of_script, parse
from tensile.deploy.tensile_kube_input import Source
from tensile.errors import TensileError
from tensile.topology import Topology
from tensile.topology import parse as parse_topology

CORPUS = Path(__file__).with_name("imports")
CASES = sorted(path.name for path in CORPUS.iterdir())
RECORDING = bool(os.environ.get("TENSILE_RECORD"))
TOPOLOGY, NOTES, COMMAND = "topology.yaml", "notes.txt", "command.txt"
EXAMPLE = Path(__file__).parents[2] / "topology.example.yaml"


def converted(case: str) -> Imported:
    """Return the result of a case of the corpus."""
    files = sorted(path for path in (CORPUS / case).iterdir() if path.name not in (TOPOLOGY, NOTES, COMMAND))
    command = CORPUS / case / COMMAND
    arguments = shlex.split(command.read_text()) if command.exists() else []
    return imported([Source(path.name, path.read_bytes()) for path in files], arguments)


def of(text: str, name: str = "input.yaml") -> Imported:
    """Return the result of one file."""
    return imported([Source(name, text.encode())])


def topology_of(found: Imported) -> Topology:
    """Return the topology, as the engine reads it."""
    return parse_topology(found.text)


def refusal(data: bytes, name: str = "input.yaml") -> str:
    """Return the error about an input."""
    with pytest.raises(TensileError) as caught:
        imported([Source(name, data)])
    return str(caught.value)


def node(*arguments: str) -> Imported:
    """Return the result of a command line of virtual-node."""
    return imported([], ["virtual-node", "--kubeconfig=/u", "--client-kubeconfig=/l", *arguments])


@pytest.mark.parametrize("case", CASES)
def test_topology_and_notes_are_as_recorded(case: str) -> None:
    """Both are compared in full, so that every change is visible."""
    found = converted(case)
    for name, text in ((TOPOLOGY, found.text), (NOTES, "".join(f"{line}\n" for line in found.lines()))):
        file = CORPUS / case / name
        if RECORDING:
            file.write_text(text)
        assert file.read_text() == text


@pytest.mark.parametrize("case", CASES)
def test_every_topology_is_valid_and_ordered_as_the_example(case: str) -> None:
    """The engine's parser accepts it, and a key is in the same place as in topology.example.yaml."""
    found = converted(case)
    topology_of(found)
    assert_ordered(yaml.safe_load(found.text), yaml.safe_load(EXAMPLE.read_text()))


def assert_ordered(found: object, example: object) -> None:
    """Assert that the keys of mappings have the order of the example, at every depth.

    The first lower of the example has every key of lowers in all topologies, except kubeconfigSecret.
    """
    if isinstance(found, list) and isinstance(example, list):
        for item in found:
            assert_ordered(item, example[0])
    if isinstance(found, dict) and isinstance(example, dict):
        assert [key for key in example if key in found] == [key for key in found if key in example]
        for key in found.keys() & example.keys():
            assert_ordered(found[key], example[key])


@pytest.mark.parametrize("case", CASES)
def test_no_secret_of_the_input_is_in_the_output(case: str) -> None:
    """Secrets of the corpus contain a unique word, which is searched in plain text and in base64."""
    found = converted(case)
    output = found.text + "".join(found.lines())
    assert "SECRET" not in output
    assert "U0VDUkVU" not in output


@pytest.mark.parametrize("case", CASES)
def test_every_comment_has_a_note_and_every_such_note_has_a_comment(case: str) -> None:
    """A reader of either one sees every decision."""
    found = converted(case)
    listed = [note.text.partition(": ")[2] for note in found.notes if note.subject == "To decide in the topology"]
    written = [line.partition("# ")[2] for line in found.text.splitlines()[2:] if "# " in line]
    assert sorted(listed) == sorted(line.removeprefix("upper: ") for line in written)


@pytest.mark.parametrize("case", CASES)
def test_every_flag_of_a_script_has_a_note(case: str) -> None:
    """There is a line with a verdict for each flag, including repeated ones."""
    found = converted(case)
    for file in (path for path in (CORPUS / case).iterdir() if path.suffix in (".sh", ".txt", ".service")):
        for process in of_script(file.name, file.read_text()) if file.name != NOTES else ():
            expected = [key_of(one.name) for one in parse(process.program, process.words).flags]
            where = process.origin if file.name != COMMAND else "command line"
            about = f"{process.program} of {where}"
            lines = [note.text for note in found.notes if note.subject == about]
            if lines != ["the same as one above, and counted once"]:
                assert [
                    line.partition(" ")[0].partition("=")[0].rstrip(":") for line in lines[: len(expected)]
                ] == expected
                assert all(": " in line or " -> " in line for line in lines)


def key_of(flag: str) -> str:
    """Return a flag as notes name it; an unknown flag of one letter keeps its single dash."""
    return flag if flag.startswith("-") else f"--{flag}"


@pytest.mark.parametrize("program", FLAGS)
def test_every_flag_and_variable_has_a_verdict(program: str) -> None:
    """The verdict exists for any value: a fixed one, or one from the resulting topology."""
    for value in ("true", "1", "/a", "10s"):
        flags = {name: f"--{name}={value}" for name in FLAGS[program] if name not in ("version", "client-kubeconfig")}
        needed = ["--client-kubeconfig=/l"] if program == VIRTUAL_NODE else []
        script = [*(f"{name}={value}" for name in VARIABLES[program]), program, *needed, *flags.values()]
        found = of(shlex.join(script), "start.sh")
        lines = [note.text for note in found.notes if note.subject == f"{program} of start.sh:1"]
        assert len(lines) == len(flags) + len(needed) + len(VARIABLES[program])
        assert not [line for line in lines if line.endswith("empty, as if it was not given")]


def test_controllers_are_mapped_to_their_names() -> None:
    """The default of tensile-kube is this project's default with ServiceAccount; flags that disable one are written."""
    assert "controllers:" not in node("--enable-controllers=PVControllers,ServiceControllers").text
    assert topology_of(node("--enable-controllers=ServiceControllers")).controllers == ("Service", "ServiceAccount")
    assert topology_of(node("--enable-serviceaccount=false")).controllers == ("PV", "Service")
    assert topology_of(node("--enable-controllers=", "--enable-serviceaccount=0")).controllers == ()


def test_taints_are_those_of_the_former_node() -> None:
    """They are disabled, the default, or composed of flag, provider and variables."""
    (lower,) = topology_of(node("--disable-taint")).lowers
    assert lower.node.taints == ()
    (lower,) = topology_of(node("--disable-taint=false", "--provider=k8s")).lowers
    assert [taint.key for taint in lower.node.taints] == ["virtual-kubelet.io/provider"]
    script = "VKUBELET_TAINT_KEY=a VKUBELET_TAINT_EFFECT=NoExecute virtual-node --taint=b --provider=p"
    (lower,) = topology_of(of(script)).lowers
    assert [taint.model_dump() for taint in lower.node.taints] == [{"key": "b", "value": "p", "effect": "NoExecute"}]


def test_nodes_keep_their_names_and_lowers_get_valid_ones() -> None:
    """An address is a valid name of a node, but not of a lower."""
    (lower,) = topology_of(node("--nodename=10.0.0.1")).lowers
    assert (lower.node.name, lower.name) == ("10.0.0.1", "10-0-0-1")
    (lower,) = topology_of(node("--nodename", "vk-1")).lowers
    assert (lower.node.name, lower.name) == ("vk-1", "vk-1")
    assert "node:" not in node("--nodename", "vk-1").text


def test_the_name_of_the_topology_can_be_given() -> None:
    """It is then no placeholder; an invalid name is refused with the rule."""
    found = imported([], ["virtual-node", "--client-kubeconfig=/l"], "prod")
    assert topology_of(found).name == "prod"
    assert "name: prod\n" in found.text
    with pytest.raises(TensileError, match=r"^--name My\.Name: must be lower-case"):
        imported([], ["virtual-node"], "My.Name")


DEPLOYMENT = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: first}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: vk}
spec:
  template:
    spec:
      containers: CONTAINERS
"""
HOSTILE = {
    "binary": (b"\x00\xff\xfe\x01", "input.yaml:1: a byte that is not UTF-8"),
    "text that is no command": (
        b"hello, world\n",
        "input.yaml: neither manifests (apiVersion, kind) nor a command line",
    ),
    "empty": (b"", "input.yaml: neither manifests"),
    "larger than any": (b"#" * (2 << 20), "input.yaml: larger than 1048576 bytes"),
    "deep": (b"kind: Pod\nspec: " + b"[" * 5000, "input.yaml:2:38: document 1: spec[0]"),
    "deep JSON": (b'{"kind": ' + b"[" * 5000, "input.yaml:1:41: document 1: kind[0]"),
    "aliases": (b"kind: &a [x]\nb: [" + b"*a, " * 200 + b"]\n", "document 1: b[100]: more than 100 aliases"),
    "a list of containers that is a number": (DEPLOYMENT.replace("CONTAINERS", "5").encode(), ""),
    "a command that is a mapping": (DEPLOYMENT.replace("CONTAINERS", "[{command: {a: b}}]").encode(), ""),
    "a word that is a list": (DEPLOYMENT.replace("CONTAINERS", "[{args: [[SECRET]]}]").encode(), ""),
    "a container that is text": (DEPLOYMENT.replace("CONTAINERS", "[SECRET]").encode(), ""),
    "open quotes of a shell": (DEPLOYMENT.replace("CONTAINERS", '[{command: [sh, -c, "a \'b"]}]').encode(), ""),
    "open quotes in a script": (b"A='b\nvirtual-node\n", "input.yaml:1: quotes that are not closed"),
    "a document that is a list": (
        b"kind: Pod\n---\n- a\n",
        "input.yaml:3:1: document 2: (file): is a list, must be a mapping",
    ),
    "a scalar": (
        b"kind: Pod\n---\nSECRET\n",
        "input.yaml:3:1: document 2: (file): is a single value, must be a mapping",
    ),
    "a duplicate key": (b"kind: Pod\nkind: Pod\n", "input.yaml:2:1: document 1: kind: the same key twice"),
    "a tag": (b"kind: !!python/object:os.system {}\n", "input.yaml:1:7: document 1: kind: "),
    "only others": (b"kind: Namespace\nmetadata: {name: a}\n", "input.yaml: nothing of tensile-kube: give workloads"),
    "only a version": (b"virtual-node version\n", "input.yaml: neither manifests"),
}
_CONTAINERS = "document 2: spec.template.spec.containers"
PLACES = {
    "a list of containers that is a number": f"11:19: {_CONTAINERS}: is a single value, must be a list",
    "a command that is a mapping": f"11:30: {_CONTAINERS}[0].command: is a mapping, must be a list",
    "a word that is a list": f"11:28: {_CONTAINERS}[0].args[0]: is a list, must be text",
    "a container that is text": f"11:20: {_CONTAINERS}[0]: is a single value, must be a mapping",
    "open quotes of a shell": f"{_CONTAINERS}[0]: a shell command with quotes that are not closed",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_unreadable_input_is_refused_with_its_position(case: str) -> None:
    """The error has file, document and path, but no content, which may be secret."""
    data, expected = HOSTILE[case]
    message = refusal(data)
    assert message.startswith("input.yaml")
    assert (expected or PLACES[case]) in message
    assert "SECRET" not in message


@pytest.mark.parametrize(
    ("script", "kubeconfig"),
    [
        ("cat <<EOF\nIt doesn't matter.\nEOF\nvirtual-node --nodename=a --client-kubeconfig=/7\n", "/7"),
        ("ARGS='--nodename=a\n --client-kubeconfig=/8'\nexec virtual-node $ARGS\n", "/8"),
        ("virtual-node --nodename=a '\n' --client-kubeconfig=/9\n", "/9"),
    ],
    ids=["here-document", "variable-of-two-lines", "argument-of-two-lines"],
)
def test_quotes_may_span_lines_and_be_unbalanced_in_unrelated_text(script: str, kubeconfig: str) -> None:
    """The command line of the virtual node is read in each of these scripts."""
    assert topology_of(of(script)).lowers[0].kubeconfig == kubeconfig


def test_an_unreadable_policy_is_reported_with_its_configmap() -> None:
    """The error also has the line within the policy."""
    text = (CORPUS / "descheduler-in-the-cluster" / "descheduler.yaml").read_text()
    message = refusal(text.replace("    strategies:", "    strategies: [").encode())
    assert message.startswith('input.yaml:5:16: document 1: data["policy.yaml"]: in its line 3: not valid YAML')


def test_inputs_without_known_programs_are_named() -> None:
    """The error names the input, or reports that there was none."""
    with pytest.raises(TensileError, match=r"^no input: nothing of tensile-kube: "):
        imported([])
    with pytest.raises(TensileError, match=r"^command line: runs none of virtual-node, webhook, "):
        imported([], ["kubelet", "--v=1"])


def test_a_shell_variable_becomes_a_placeholder() -> None:
    """Its value is not in the input, and a topology has no variables."""
    found = of("virtual-node --nodename $HOST --client-kubeconfig $HOME/lower", "start.sh")
    (lower,) = topology_of(found).lowers
    assert (lower.name, lower.kubeconfig) == ("lower-1", "kubeconfigs/lower-1")
    assert "$" not in found.text


def test_a_value_that_may_be_secret_is_not_repeated() -> None:
    """A kubeconfig may be given in place of its path, on one or several lines, in plain text or base64."""
    for content in ('{"token": "SECRET"}', "users:\n- token: SECRET", "SECRET" * 400, "SECRET $(x) `y`"):
        found = node(f"--client-kubeconfig={content}", f"--provider={content}", f"--token={content}", content)
        assert "SECRET" not in found.text + "".join(found.lines())


VALUES = [
    "",
    "true",
    "0",
    "-1",
    "10250",
    "10350",
    "9095",
    "8888",
    "/a/b",
    "a,b",
    "a:b",
    "$(X)",
    "$X",
    "10s",
    "::",
    "k8s",
]
WORDS = st.sampled_from([*VALUES, "[]", "é", "a" * 70, "a: b", "{", "'", "#", "*x", "null", "1e3", "\n- a"])


@st.composite
def command_lines(draw: st.DrawFn) -> str:
    """Return a script of some programs with any flags, variables and values."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        program = draw(st.sampled_from(sorted(FLAGS)))
        variables = [
            f"{name}={draw(WORDS)}" for name in draw(st.lists(st.sampled_from(sorted(VARIABLES[VIRTUAL_NODE]))))
        ]
        names = draw(st.lists(st.sampled_from(sorted(FLAGS[program])), max_size=12))
        flags = [f"--{name}={draw(WORDS)}" if draw(st.booleans()) else f"--{name}" for name in names]
        lines.append(shlex.join([*variables, program, *flags, *draw(st.lists(WORDS, max_size=2))]))
    return "\n".join(" ".join(line.splitlines()) for line in lines)


@given(command_lines())
def test_for_any_flag_values_the_topology_is_valid_or_the_input_is_refused(script: str) -> None:
    """No value reaches the topology without a check, and ports and names are unique."""
    try:
        processes = of_script("start.sh", script)
    except TensileError:  # no program that runs, such as `virtual-node version`
        assert refusal(script.encode(), "start.sh").startswith("start.sh: neither manifests")
        return
    topology_of(of(script, "start.sh"))
    for process in processes:
        assert len(list(Program(process).notes())) >= len(parse(process.program, process.words).flags)
