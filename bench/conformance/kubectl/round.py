"""Runs one round: all commands, with one kubectl on one cluster, in a namespace that is deleted afterwards."""

import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.conformance.kubectl.commands import STEPS
from bench.conformance.kubectl.execution import CommandRunner
from bench.conformance.kubectl.normalization import normalized
from bench.conformance.kubectl.objects import NAMESPACE
from bench.conformance.kubectl.steps import Step
from tensile.sandbox.binaries import ProgramSet
from tensile.sandbox.real_node import IMAGE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import LOOPBACK, UPPER

KUBECTL = "v1.36.3"
LOWER = "lower-a"
NODES = {UPPER: LOWER, LOWER: f"{LOWER}-node-1"}
"""The node of each cluster: the virtual one, and the real one behind it."""
OLD = ProgramSet(
    "kubectl",
    "v1.33.13",
    ("kubectl-1.33",),
    ".",
    "-s -w -X k8s.io/component-base/version.gitVersion=v1.33.13",
    "about 3 minutes on 2 cores",
)
Answers = dict[str, list[str]]
"""The lines of each answer, in the form in which they are compared, by command."""


class Side(NamedTuple):
    """Where commands run: a cluster of a sandbox, and a folder for what they copy."""

    sandbox: Sandbox
    cluster: str
    scratch: Path


def run_commands(side: Side, kubectl: str) -> Answers:
    """Run all commands and return their answers; raises NotInTime if a step that later ones need does not succeed."""
    with tempfile.TemporaryDirectory(dir=side.scratch) as folder:
        runner = _hand(side, kubectl, Path(folder))
        _must(side.sandbox, side.cluster, "create", "namespace", NAMESPACE)
        _must(side.sandbox, side.cluster, "-n", NAMESPACE, "wait", "--for=create", "serviceaccount/default")
        try:
            return _answers(runner)
        finally:
            side.sandbox.kubectl("delete", "namespace", NAMESPACE, cluster=side.cluster)


def put_within_reach(sandbox: Sandbox) -> None:
    """Serve the virtual node's kubelet API in the real node's network: apiservers do not proxy to loopback."""
    gateway = sandbox.state().clusters[LOWER].layout.gateway
    path = sandbox.directory / "topology.yaml"
    text = path.read_text()
    for key in ("nodeAddress", "kubelet:\n  bind"):
        text = text.replace(f"{key}: {LOOPBACK}", f"{key}: {gateway}")
    path.write_text(text)


def nodes_ready(sandbox: Sandbox) -> None:
    """Wait until the virtual node is Ready."""
    _must(sandbox, UPPER, "wait", "--for=create", f"node/{NODES[UPPER]}", "--timeout=60s")
    _must(sandbox, UPPER, "wait", "--for=condition=Ready", f"node/{NODES[UPPER]}", "--timeout=60s")


def gone(sandbox: Sandbox, cluster: str) -> None:
    """Wait until a cluster has nothing left of a round."""
    _must(sandbox, cluster, "wait", "--for=delete", f"namespace/{NAMESPACE}", "--timeout=60s")


def _hand(side: Side, kubectl: str, folder: Path) -> CommandRunner:
    tree = folder / "tree" / "deep"
    tree.mkdir(parents=True)
    (tree / "one").write_text("1")
    (folder / "sent").write_bytes(bytes(range(256)) * 4096)
    names = {"node": NODES[side.cluster], "tmp": str(folder), "image": IMAGE}
    return CommandRunner(kubectl, side.sandbox.directory / f"{side.cluster}.kubeconfig", names, folder)


def _answers(runner: CommandRunner) -> Answers:
    instead = {runner.names["node"]: "NODE", runner.names["tmp"]: "TMP"}
    found: Answers = {}
    for step in STEPS:
        if step.until:
            runner.wait(step)
        else:
            found[_title(step, found)] = normalized(runner.run(step), step.form, instead)
    return found


def _title(step: Step, before: Answers) -> str:
    """Return a command's title, with a mark if the command runs a second time."""
    return step.title if step.title not in before else f"{step.title} (again)"


def _must(sandbox: Sandbox, cluster: str, *arguments: str) -> None:
    done = sandbox.kubectl(*arguments, cluster=cluster)
    if done.returncode != 0:
        raise RuntimeError(f"{cluster}: kubectl {' '.join(arguments)}: {done.stderr}")
