"""Tests of `--configmap` and `tensile status` on the command line, with clusters that do not answer."""

import signal
import socket
import urllib.error
import urllib.request

import pytest
from clikit import Files, is_alive, lines, port_of, run_failing, silent_listener, started, tensile, wait_for_exit
from sandbox_waiting import until

from tensile.cli.plan import described, write_plan
from tensile.engine.plan_and_apply import Planned
from tensile.reconcile.report import Preview
from tensile.topology import parse


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--configmap", "topo"], "--configmap 'topo': write NAMESPACE/NAME"),
        (["--configmap", "a/b/c"], "--configmap 'a/b/c': write NAMESPACE/NAME"),
        (["--configmap", "/b"], "--configmap '/b': write NAMESPACE/NAME"),
        (["--configmap", "a/b", "-f", "t.yaml"], "--configmap and -f exclude each other"),
        (["--configmap", "a/b", "--context", "c"], "--context needs --kubeconfig"),
        (["--key", "a"], "--key needs --configmap"),
        (["--kubeconfig", "a"], "--kubeconfig needs --configmap"),
        (["--context", "a"], "--context needs --configmap"),
    ],
)
def test_incompatible_options_are_refused(options: list[str], arguments: str) -> None:
    """The error names the options."""
    assert run_failing("status", *options).startswith(arguments)


OTHERS = [
    "run",
    "doctor",
    "plan",
    "apply",
    "uninstall --plan",
    "list",
    "explain pod shop/web",
    "explain node lower-a",
    "explain claim shop/data",
    "explain service shop/web",
]


@pytest.mark.parametrize("command", OTHERS)
def test_other_commands_have_the_same_options(command: str) -> None:
    """They refuse the same values and combinations."""
    arguments = command.split()
    assert run_failing(*arguments, "--configmap", "topo").startswith("--configmap 'topo': write NAMESPACE/NAME")
    assert run_failing(*arguments, "--configmap", "a/b", "-f", "t.yaml").startswith(
        "--configmap and -f exclude each other"
    )


@pytest.mark.parametrize("command", [*OTHERS, "status"])
def test_commands_fail_without_credentials_for_the_upper_cluster(command: str, files: Files) -> None:
    """The error names the missing kubeconfig, or reports that the command runs outside of a pod."""
    arguments, missing = command.split(), files.directory / "none"
    error = run_failing(*arguments, "--configmap", "a/b", "--kubeconfig", missing)
    assert error.startswith(f"upper: {missing}: ")
    assert run_failing(*arguments, "--configmap", "a/b").startswith("upper: not in a pod")


def test_a_saved_plan_of_a_topology_without_a_file_needs_it_named(files: Files) -> None:
    """The plan records no path, so the ConfigMap, or a file with the same text, must be given again."""
    saved = files.directory / "x.plan"
    topology = described(parse(files.save().read_text()), "", b"text")
    write_plan(Planned(Preview("files", {}), {}), saved, topology)
    error = run_failing("apply", saved)
    assert error.startswith("the topology of this plan came from standard input or a ConfigMap: name it with -f or --c")


@pytest.mark.process
def test_a_signal_ends_run_while_the_upper_cluster_is_unreachable(files: Files) -> None:
    """The command waits for the ConfigMap without a time limit."""
    files.save()
    options = ["--configmap", "a/b", "--kubeconfig", str(files.directory / "upper"), "--log-format", "json"]
    with started("run", *options) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        result = wait_for_exit(process, signal.SIGTERM)
    assert (result.code, result.out) == (0, "")
    assert [one["event"] for one in lines(first.decode() + result.err)] == ["cluster unreachable", "stopped"]


@pytest.mark.process
def test_probes_are_answered_before_a_topology_is_loaded(files: Files) -> None:
    """The pod is alive and not ready, so that it is not restarted endlessly while its ConfigMap is missing."""
    files.save()
    probes = files.ports[2]
    options = ["--configmap", "a/b", "--kubeconfig", str(files.directory / "upper"), "--log-format", "json"]
    with started("run", *options, "--probes", str(probes)) as process:
        until(lambda: is_alive(probes), "probes are answered")
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"http://127.0.0.1:{probes}/readyz", timeout=30)
        with raised.value as answer:
            assert (answer.code, answer.read()) == (503, b"no topology is loaded yet\n")
        assert wait_for_exit(process, signal.SIGTERM).code == 0


def test_run_fails_if_the_port_of_probes_is_in_use(files: Files) -> None:
    """The error contains the remedy."""
    with silent_listener() as other:
        options = ["--kubeconfig", files.directory / "upper", "--probes", port_of(other)]
        files.save()
        result = tensile("run", "--configmap", "a/b", *options)
    assert result.code == 1
    assert "use another port for --probes" in result.err


def test_status_fails_if_no_engine_runs(files: Files) -> None:
    """The error has the address and the remedy; an invalid file is reported as usual."""
    error = run_failing("status", "-f", files.save())
    assert error.startswith(f"no engine responds at http://127.0.0.1:{files.ports[3]}/status (Connection refused): ")
    assert "start `tensile run` on this machine" in error
    assert "kind: " in run_failing("status", "-f", files.save(lambda topology: topology.update(kind="Topologie")))


@pytest.mark.process
def test_status_of_a_waiting_engine_has_the_reason(files: Files) -> None:
    """The engine answers, so the exit code is 0."""
    path = files.save()
    with started("run", "-f", path):
        until(lambda: tensile("status", "-f", path).code == 0, "the engine answers")
        result = tensile("status", "-f", path)
    assert result.out.startswith("The lower clusters are not known yet.\n\nTopology files: in force since ")
    assert result.out.endswith("\nThe engine is not ready: the upper cluster has not responded yet\n")


def test_status_fails_after_a_time_limit_if_the_upper_cluster_hangs(files: Files, silent: socket.socket) -> None:
    """The error reports that there was no response within 5 s."""
    files.ports[0] = port_of(silent)
    files.save()
    error = run_failing("status", "--configmap", "a/b", "--kubeconfig", files.directory / "upper")
    assert error.startswith("upper: no response within 5 s")


def test_status_refuses_an_unknown_format_with_the_known_ones() -> None:
    """The formats are text, wide and json."""
    assert "'yaml' is not one of text, wide, json" in run_failing("status", "-o", "yaml")
