"""Tests of `tensile run` with clusters that do not answer: what ends it, its exit codes and its output."""

import re
import signal
import socket
from pathlib import Path

import pytest
from clikit import Files, is_alive, lines, port_of, run_failing, started, wait_for_exit
from sandbox_waiting import until

TEXT = re.compile(r"\d{4}-\d\d-\d\dT\S+Z (debug|info|warning|error) +tensile\.")


def test_an_invalid_first_file_ends_run(files: Files) -> None:
    """The error has position and key, as that of `validate`."""
    path = files.save(lambda topology: topology.update(kind="Topologie"))
    assert re.match(rf"{path}:\d+:\d+: kind: ", run_failing("run", "-f", path))


def test_run_fails_without_credentials_for_the_upper_cluster(files: Files) -> None:
    """Waiting would not help; the error names the missing file, or reports that the engine is not in a pod."""
    path = files.save()
    (files.directory / "upper").unlink()
    missing = f"upper: {files.directory}/upper: cannot be read (No such file or directory): check the path"
    assert run_failing("run", "-f", path).startswith(missing)
    path = files.save(lambda topology: topology.pop("upper"))
    assert run_failing("run", "-f", path).startswith(
        "upper: not in a pod (KUBERNETES_SERVICE_HOST is not set): name a kube"
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            2,
            "kubelet API of node below cannot listen on port {port} of 127.0.0.1: another program uses the port: stop",
        ),
        (
            3,
            "telemetry cannot listen on 127.0.0.1:{port}: another program uses this port: stop it, or",
        ),
    ],
    ids=["kubelet", "telemetry"],
)
def test_run_fails_if_a_port_is_in_use(files: Files, silent: socket.socket, place: int, message: str) -> None:
    """The error has the port, its purpose and a remedy."""
    files.ports[place] = port_of(silent)
    last = run_failing("run", "-f", files.save()).splitlines()[-1]
    assert last.startswith(message.format(port=port_of(silent)))


@pytest.mark.parametrize(("number", "form"), [(signal.SIGTERM, "json"), (signal.SIGINT, "text")])
@pytest.mark.process
def test_a_signal_ends_run_while_the_upper_cluster_is_unreachable(files: Files, number: int, form: str) -> None:
    """Until then it logs the unreachable cluster and the reason once, in the requested format."""
    with started("run", "-f", files.save(), "--log-format", form) as process:
        assert process.stderr is not None
        first = b""
        while b"cluster unreachable" not in first:
            first += process.stderr.readline()
        result = wait_for_exit(process, number)
    log = first.decode() + result.err
    assert (result.code, result.out) == (0, ""), log
    certificate, problem, end = log.splitlines()
    assert "serving with a self-signed certificate" in certificate
    assert f"cannot connect to 127.0.0.1:{files.ports[0]}" in problem
    assert "stopped" in end
    if form == "json":
        assert [one["level"] for one in lines(log)] == ["warning", "warning", "info"]
        assert all({"timestamp", "logger", "event"} <= one.keys() for one in lines(log))
    else:
        assert [TEXT.match(line)[1] for line in log.splitlines()] == ["warning", "warning", "info"]  # type: ignore[index]


@pytest.mark.process
def test_a_signal_ends_run_while_the_upper_cluster_hangs(files: Files, silent: socket.socket) -> None:
    """A silent connection does not delay the end; until then the liveness probe succeeds."""
    files.ports[0] = port_of(silent)
    with started("run", "-f", files.save(), "--log-format", "json") as process:
        connection, _ = silent.accept()
        with connection:
            until(lambda: is_alive(files.ports[3]), "the telemetry server answers")
            result = wait_for_exit(process, signal.SIGTERM, limit=25)
    assert (result.code, result.out) == (0, "")
    assert [one["event"] for one in lines(result.err)][1:] == ["stopped"]


@pytest.mark.process
def test_a_second_engine_reports_the_first_one(files: Files, silent: socket.socket, tmp_path: Path) -> None:
    """The error names its topology and the remedy: stop it if it is the same topology, otherwise use another port."""
    files.ports[0] = port_of(silent)
    path = files.save()
    with started("run", "-f", path):
        until(lambda: is_alive(files.ports[3]), "the telemetry server answers")
        message = f"an engine of topology {{}} on this machine already uses telemetry port {files.ports[3]}: {{}}"
        assert run_failing("run", "-f", path).splitlines()[-1] == message.format(
            "files", "stop it first, or, if it is for other clusters, set another telemetry.port"
        )
        other = Files(tmp_path)
        other.ports = files.ports
        path = other.save(lambda topology: topology.update(name="another"))
        last = run_failing("run", "-f", path).splitlines()[-1]
        assert last == message.format("files", "set telemetry.port in one of the two topology files")


@pytest.mark.process
def test_an_interrupted_command_reports_the_interrupt(files: Files, silent: socket.socket) -> None:
    """Ctrl-C gives exit code 130, which is neither success nor an internal error."""
    files.ports[0] = port_of(silent)
    with started("apply", "-f", files.save()) as process:
        connection, _ = silent.accept()
        with connection:
            result = wait_for_exit(process, signal.SIGINT, limit=25)
    assert (result.code, result.out, result.err) == (130, "", "interrupted\n")
