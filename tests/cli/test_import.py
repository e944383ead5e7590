"""Tests of the program `tensile import`: what it writes where, what it refuses, and its exit codes."""

from pathlib import Path

from clikit import run_failing, tensile

LINE = "virtual-node --nodename vk-1 --client-kubeconfig /etc/lower.conf --kubeconfig /etc/upper.conf"
POLICY = "kind: DeschedulerPolicy\nstrategies: {PodLifeTime: {enabled: true, params: {maxPodLifeTimeSeconds: 300}}}\n"


def test_the_topology_is_written_to_stdout_and_the_notes_to_stderr(tmp_path: Path) -> None:
    """A command line, a file and standard input give the same topology, which `validate` accepts."""
    result = tensile("import", "--", *LINE.split(), cwd=tmp_path)
    assert result.code == 0
    assert "- name: vk-1  # decide: " in result.out
    assert result.err.startswith("virtual-node of command line:\n  --nodename=vk-1 -> lowers[0].node.name: vk-1\n")
    checked = tensile("validate", "-f", "-", stdin=result.out.encode(), cwd=tmp_path)
    assert checked.out == "standard input: valid: topology tensile-kube with 1 lower cluster\n"
    (tmp_path / "start.sh").write_text(LINE)
    assert tensile("import", "-f", "start.sh", cwd=tmp_path).out == result.out
    assert tensile("import", "-f", "-", stdin=LINE.encode(), cwd=tmp_path).out == result.out


def test_several_inputs_become_one_topology(tmp_path: Path) -> None:
    """They are a file, standard input and a command line."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    other = LINE.replace("vk-1", "vk-2").replace("lower", "other").split()
    result = tensile("import", "-f", "policy.yaml", "-f", "-", "--", *other, stdin=LINE.encode(), cwd=tmp_path)
    assert result.code == 0
    assert result.out.index("- name: vk-1") < result.out.index("- name: vk-2")
    assert "pendingLongerThan: 5m" in result.out
    assert "DeschedulerPolicy (policy.yaml, document 1):" in result.err


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    """The file may have been edited since the last import."""
    file = tmp_path / "topology.yaml"
    command = ("import", "-o", "topology.yaml", "--name", "prod")
    result = tensile(*command, "--", *LINE.split(), cwd=tmp_path)
    assert (result.code, result.out) == (0, "")
    assert "name: prod\n" in file.read_text()
    file.write_text("mine")
    assert run_failing(*command, "--", *LINE.split(), cwd=tmp_path) == (
        "topology.yaml: exists, and was not changed: give another -o, or replace it with --force\n"
    )
    assert file.read_text() == "mine"
    assert tensile(*command, "--force", "--", *LINE.split(), cwd=tmp_path).code == 0
    assert "name: prod\n" in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["topology.yaml"]


def test_invalid_input_is_refused(tmp_path: Path) -> None:
    """The exit code is 1, and the error names the input and the remedy."""
    assert run_failing("import", cwd=tmp_path).startswith("no input: nothing of tensile-kube: give workloads")
    assert run_failing("import", "-f", "absent", cwd=tmp_path).startswith("absent: no such file")
    assert run_failing("import", "-f", "", cwd=tmp_path).startswith("-f: empty")
    assert run_failing("import", "-f", "-", "-f", "-", cwd=tmp_path).startswith("-f: only one of them")
    assert run_failing("import", "--name", "A", "--", *LINE.split(), cwd=tmp_path).startswith("--name A: must be")
    assert run_failing("import", "--", "kubelet", "--v=1", cwd=tmp_path).startswith("command line: runs none of")
    binary = run_failing("import", "-f", "-", stdin=b"\xff\xfe\x00", cwd=tmp_path)
    assert binary.startswith("standard input:1: a byte that is not UTF-8")
    assert run_failing("import", "-o", ".", "--force", "--", *LINE.split(), cwd=tmp_path).startswith(".: a directory")
