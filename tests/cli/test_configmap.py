"""`--configmap` and `tensile status` on the command line, without a cluster that answers."""

import signal
import socket
import urllib.error
import urllib.request

import pytest
from clikit import Files, ended, is_alive, lines, listening, port_of, refused, started, tensile
from sandbox_waiting import until

from tensile.cli.plan import described, write_plan
from tensile.engine.plan_and_apply import Planned
from tensile.reconcile.report import Preview
from tensile.topology import parse


@pytest.mark.parametrize(
    ("options", "words"),
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
def test_options_that_do_not_go_together_are_refused(options: list[str], words: str) -> None:
    """By name."""
    assert refused("status", *options).startswith(words)


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
def test_others_take_the_same_options(command: str) -> None:
    """And refuse the same."""
    words = command.split()
    assert refused(*words, "--configmap", "topo").startswith("--configmap 'topo': write NAMESPACE/NAME")
    assert refused(*words, "--configmap", "a/b", "-f", "t.yaml").startswith("--configmap and -f exclude each other")


@pytest.mark.parametrize("command", [*OTHERS, "status"])
def test_without_credentials_for_the_upper_cluster_it_ends(command: str, files: Files) -> None:
    """The kubeconfig that is missing is named, or that there is no cluster around it."""
    words, missing = command.split(), files.directory / "none"
    told = refused(*words, "--configmap", "a/b", "--kubeconfig", missing)
    assert told.startswith(f"upper: {missing}: ")
    assert refused(*words, "--configmap", "a/b").startswith("upper: not in a pod")


def test_a_saved_plan_of_a_topology_without_a_file_needs_it_named(files: Files) -> None:
    """It records no place, so the ConfigMap, or a file with the same text, is named again."""
    saved = files.directory / "x.plan"
    topology = described(parse(files.save().read_text()), "", b"text")
    write_plan(Planned(Preview("files", {}), {}), saved, topology)
    told = refused("apply", saved)
    assert told.startswith("the topology of this plan came from standard input or a ConfigMap: name it with -f or --c")


@pytest.mark.process
def test_a_signal_ends_it_while_the_upper_cluster_is_away(files: Files) -> None:
    """It waits for the ConfigMap for as long as that takes."""
    files.save()
    options = ["--configmap", "a/b", "--kubeconfig", str(files.directory / "upper"), "--log-format", "json"]
    with started("run", *options) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        told = ended(process, signal.SIGTERM)
    assert (told.code, told.out) == (0, "")
    assert [one["event"] for one in lines(first.decode() + told.err)] == ["cluster unreachable", "stopped"]


@pytest.mark.process
def test_probes_are_answered_while_a_topology_is_waited_for(files: Files) -> None:
    """It is alive, and not ready: a pod whose ConfigMap is not there yet must not be started again for ever."""
    files.save()
    probes = files.ports[2]
    options = ["--configmap", "a/b", "--kubeconfig", str(files.directory / "upper"), "--log-format", "json"]
    with started("run", *options, "--probes", str(probes)) as process:
        until(lambda: is_alive(probes), "probes are answered")
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(f"http://127.0.0.1:{probes}/readyz", timeout=30)
        with told.value as answer:
            assert (answer.code, answer.read()) == (503, b"no topology is loaded yet\n")
        assert ended(process, signal.SIGTERM).code == 0


def test_a_port_of_probes_that_is_taken_ends_it(files: Files) -> None:
    """With what to do."""
    with listening() as other:
        options = ["--kubeconfig", files.directory / "upper", "--probes", port_of(other)]
        files.save()
        told = tensile("run", "--configmap", "a/b", *options)
    assert told.code == 1
    assert "use another port for --probes" in told.err


def test_status_where_no_engine_runs_says_so(files: Files) -> None:
    """With where it was looked for; a bad file is told as ever."""
    told = refused("status", "-f", files.save())
    assert told.startswith(f"no engine responds at http://127.0.0.1:{files.ports[3]}/status (Connection refused): ")
    assert "start `tensile run` on this machine" in told
    assert "kind: " in refused("status", "-f", files.save(lambda topology: topology.update(kind="Topologie")))


@pytest.mark.process
def test_status_of_an_engine_that_waits_says_what_for(files: Files) -> None:
    """It answers, so this is no error."""
    path = files.save()
    with started("run", "-f", path):
        until(lambda: tensile("status", "-f", path).code == 0, "the engine answers")
        told = tensile("status", "-f", path)
    assert told.out.startswith("The lower clusters are not known yet.\n\nTopology files: in force since ")
    assert told.out.endswith("\nThe engine is not ready: the upper cluster has not responded yet\n")


def test_status_of_a_cluster_that_hangs_ends(files: Files, silent: socket.socket) -> None:
    """In bounded time."""
    files.ports[0] = port_of(silent)
    files.save()
    told = refused("status", "--configmap", "a/b", "--kubeconfig", files.directory / "upper")
    assert told.startswith("upper: no response within 5 s")


def test_status_takes_three_forms() -> None:
    """And names them."""
    assert "'yaml' is not one of text, wide, json" in refused("status", "-o", "yaml")
