"""`tensile doctor` as a program: exit codes, both forms, and that nobody waits for a cluster that does not answer."""

import os
import pty
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from clikit import PROGRAM, Completed, Files, environment, listening, port_of, refused, tensile, timed

from tensile.diagnostics.doctor.collect import LIMIT
from tensile.sandbox.sandbox import Sandbox

STARTING = 5.0
"""Seconds more than it takes where nobody answers at all, which a machine that is busy has take longer, too."""


def findings(told: Completed, level: str) -> list[tuple[Any, str, str]]:
    """Return the findings of a level in JSON: cluster, check, what."""
    return [
        (cluster["name"], one["check"], one["what"])
        for cluster in orjson.loads(told.out)["clusters"]
        for one in cluster["findings"]
        if one["level"] == level
    ]


def test_clusters_at_which_nobody_listens(tmp_path: Path) -> None:
    """Both are told, on standard output, as it is what was asked for; the exit code says that something fails."""
    files = Files(tmp_path)
    told = tensile("doctor", "-f", files.save())
    assert (told.code, told.err) == (1, "")
    first, *_, upper, below, empty, _ = told.out.splitlines()
    assert first.startswith("FAIL upper: reach: ")
    assert (upper.split(), below.split(), empty) == (["upper", "1", "failed"], ["below", "1", "failed"], "")
    assert told.out.count("cannot be connected to (Connection refused)") == 2
    assert told.out.endswith("2 failed, 0 warnings\n")


def test_the_same_for_programs(tmp_path: Path) -> None:
    """With the advice as lines."""
    told = tensile("doctor", "-o", "json", "-f", Files(tmp_path).save())
    assert told.code == 1
    assert [(name, check) for name, check, _ in findings(told, "fail")] == [(None, "reach"), ("below", "reach")]


def test_paths_that_lead_nowhere_are_told_all_at_once(tmp_path: Path) -> None:
    """`validate` opens nothing but the topology file itself: whether what it names is there is told here."""

    def edit(topology: dict[str, Any]) -> None:
        """Name what is not there."""
        topology["lowers"][0]["kubeconfig"] = "gone/lower"
        topology["kubelet"] |= {"tlsCertFile": "gone.crt", "tlsKeyFile": "gone.key", "clientCAFile": "gone.ca"}

    told = tensile("doctor", "-f", Files(tmp_path).save(edit))
    assert told.code == 1
    for name in ("gone/lower", "gone.crt", "gone.key", "gone.ca"):
        assert f"{tmp_path / name}: cannot be read (No such file or directory)" in told.out


def test_a_lower_whose_kubeconfig_is_in_a_cluster_that_is_away(tmp_path: Path) -> None:
    """It cannot be looked at, and the reason is the other cluster."""

    def edit(topology: dict[str, Any]) -> None:
        """Keep the kubeconfig in a Secret."""
        topology["lowers"][0].pop("kubeconfig")
        topology["lowers"][0]["kubeconfigSecret"] = {"namespace": "ops", "name": "below"}

    told = tensile("doctor", "-f", Files(tmp_path).save(edit))
    assert "Secret ops/below of the upper cluster, which does not answer" in told.out
    assert "-> fix the upper cluster first" in told.out


@pytest.mark.process
def test_clusters_that_never_answer_cost_their_own_time_only(tmp_path: Path) -> None:
    """All hang, and the command ends in time, with each of them told."""
    files = Files(tmp_path)
    _, starting = timed("doctor", "-o", "json", "-f", files.save())
    with ExitStack() as stack:
        files.ports[:2] = [port_of(stack.enter_context(listening())) for _ in range(2)]
        told, seconds = timed("doctor", "-o", "json", "-f", files.save())
    assert [(name, check) for name, check, _ in findings(told, "fail")] == [(None, "reach"), ("below", "reach")]
    assert all("no answer in 3 s" in what for _, _, what in findings(told, "fail"))
    assert seconds < LIMIT + STARTING + 2 * starting


def test_a_person_is_told_what_is_waited_for(tmp_path: Path, silent: socket.socket) -> None:
    """After a second, on standard error, if that is a terminal; the answer itself is as ever."""
    files = Files(tmp_path)
    files.ports[0] = port_of(silent)
    terminal, stderr = pty.openpty()
    command = [PROGRAM, "doctor", "-o", "json", "-f", str(files.save())]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=environment(), timeout=120, check=False)
    os.close(stderr)
    told = os.read(terminal, 1000).decode()
    os.close(terminal)
    assert told == "checking the clusters, 12 s at most\r\n"
    assert orjson.loads(done.stdout)["level"] == "fail"


def test_a_bad_file_is_refused_as_everywhere(tmp_path: Path) -> None:
    """With line and column, and nothing is asked."""
    (tmp_path / "bad.yaml").write_text("kind: Topology\n")
    assert "bad.yaml:1:1" in refused("doctor", "-f", tmp_path / "bad.yaml")
    assert "'markdown' is not one of text, json" in refused("doctor", "-o", "markdown")


@pytest.mark.real
def test_a_sandbox_is_well(sandbox: Sandbox) -> None:
    """Its own topology has nothing that fails; what it lacks is a warning, as is what other tests left there."""
    told = tensile("doctor", "-o", "json", "-f", sandbox.directory / "topology.yaml")
    assert (told.code, told.err, findings(told, "fail")) == (0, "", [])
    assert {check for _, check, _ in findings(told, "warn")} <= {"metrics", "tenants"}
    assert {check for name, check, _ in findings(told, "ok") if name == "lower-a"} >= {
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
