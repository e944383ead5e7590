"""Tests of the program `tensile doctor`: exit codes, both formats, and clusters that do not answer."""

import os
import pty
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from clikit import PROGRAM, Completed, Files, environment, port_of, run_failing, run_timed, silent_listener, tensile

from tensile.diagnostics.doctor.collect import LIMIT
from tensile.sandbox.sandbox import Sandbox

STARTING = 5.0
"""Additional seconds for a start; on a busy machine, clusters that refuse connections take longer as well."""


def findings(result: Completed, level: str) -> list[tuple[Any, str, str]]:
    """Return the findings of a level from the JSON output: cluster, check, text."""
    return [
        (cluster["name"], one["check"], one["what"])
        for cluster in orjson.loads(result.out)["clusters"]
        for one in cluster["findings"]
        if one["level"] == level
    ]


def test_clusters_that_refuse_connections_are_failures(tmp_path: Path) -> None:
    """Both are reported on stdout, because they are the requested result, and the exit code is 1."""
    files = Files(tmp_path)
    result = tensile("doctor", "-f", files.save())
    assert (result.code, result.err) == (1, "")
    first, *_, upper, below, empty, _ = result.out.splitlines()
    assert first.startswith("FAIL upper: reach: ")
    assert (upper.split(), below.split(), empty) == (["upper", "1", "failed"], ["below", "1", "failed"], "")
    assert result.out.count("cannot be connected to (Connection refused)") == 2
    assert result.out.endswith("2 failed, 0 warnings\n")


def test_json_output_has_the_same_failures(tmp_path: Path) -> None:
    """Each failed check is reported with its cluster."""
    result = tensile("doctor", "-o", "json", "-f", Files(tmp_path).save())
    assert result.code == 1
    assert [(name, check) for name, check, _ in findings(result, "fail")] == [(None, "reach"), ("below", "reach")]


def test_all_missing_files_of_a_topology_are_reported_at_once(tmp_path: Path) -> None:
    """`validate` opens only the topology file, so doctor checks whether the files that it names exist."""

    def edit(topology: dict[str, Any]) -> None:
        """Set paths of files that do not exist."""
        topology["lowers"][0]["kubeconfig"] = "gone/lower"
        topology["kubelet"] |= {"tlsCertFile": "gone.crt", "tlsKeyFile": "gone.key", "clientCAFile": "gone.ca"}

    result = tensile("doctor", "-f", Files(tmp_path).save(edit))
    assert result.code == 1
    for name in ("gone/lower", "gone.crt", "gone.key", "gone.ca"):
        assert f"{tmp_path / name}: cannot be read (No such file or directory)" in result.out


def test_a_lower_whose_kubeconfig_is_in_an_unreachable_cluster_is_reported(tmp_path: Path) -> None:
    """The lower cannot be checked, and the reason is the upper cluster."""

    def edit(topology: dict[str, Any]) -> None:
        """Set a Secret as the source of the kubeconfig."""
        topology["lowers"][0].pop("kubeconfig")
        topology["lowers"][0]["kubeconfigSecret"] = {"namespace": "ops", "name": "below"}

    result = tensile("doctor", "-f", Files(tmp_path).save(edit))
    assert "Secret ops/below of the upper cluster, which does not answer" in result.out
    assert "-> fix the upper cluster first" in result.out


@pytest.mark.process
def test_clusters_that_never_answer_take_a_bounded_time(tmp_path: Path) -> None:
    """All of them hang, and the command ends in time and reports each."""
    files = Files(tmp_path)
    _, starting = run_timed("doctor", "-o", "json", "-f", files.save())
    with ExitStack() as stack:
        files.ports[:2] = [port_of(stack.enter_context(silent_listener())) for _ in range(2)]
        result, seconds = run_timed("doctor", "-o", "json", "-f", files.save())
    assert [(name, check) for name, check, _ in findings(result, "fail")] == [(None, "reach"), ("below", "reach")]
    assert all("no answer in 3 s" in what for _, _, what in findings(result, "fail"))
    assert seconds < LIMIT + STARTING + 2 * starting


def test_a_waiting_user_sees_a_message(tmp_path: Path, silent: socket.socket) -> None:
    """It is printed to stderr after a second if that is a terminal; the output itself is unchanged."""
    files = Files(tmp_path)
    files.ports[0] = port_of(silent)
    terminal, stderr = pty.openpty()
    command = [PROGRAM, "doctor", "-o", "json", "-f", str(files.save())]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=environment(), timeout=120, check=False)
    os.close(stderr)
    output = os.read(terminal, 1000).decode()
    os.close(terminal)
    assert output == "checking the clusters, 12 s at most\r\n"
    assert orjson.loads(done.stdout)["level"] == "fail"


def test_an_invalid_file_is_refused(tmp_path: Path) -> None:
    """The error has line and column, and no cluster is contacted."""
    (tmp_path / "bad.yaml").write_text("kind: Topology\n")
    assert "bad.yaml:1:1" in run_failing("doctor", "-f", tmp_path / "bad.yaml")
    assert "'markdown' is not one of text, json" in run_failing("doctor", "-o", "markdown")


@pytest.mark.real
def test_a_sandbox_has_no_failures(sandbox: Sandbox) -> None:
    """Its own topology passes all checks; what it lacks, or what other tests left, gives only warnings."""
    result = tensile("doctor", "-o", "json", "-f", sandbox.directory / "topology.yaml")
    assert (result.code, result.err, findings(result, "fail")) == (0, "", [])
    assert {check for _, check, _ in findings(result, "warn")} <= {"metrics", "tenants"}
    assert {check for name, check, _ in findings(result, "ok") if name == "lower-a"} >= {
        "reach",
        "login",
        "version",
        "clock",
        "certificates",
        "identity",
        "rights",
    }
    text = tensile("doctor", "-f", sandbox.directory / "topology.yaml")
    assert text.code == 0
    assert "0 failed" in text.out.splitlines()[-1]
    assert "FAIL" not in text.out
    every = tensile("doctor", "--all", "-f", sandbox.directory / "topology.yaml")
    assert "\n  ok   certificates: " in every.out
