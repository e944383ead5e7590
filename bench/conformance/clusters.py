"""The clusters that the suite runs on: one with a real node, and one whose only node is its virtual node."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.conformance.images import Files, archive, listed
from bench.conformance.kubectl.round import LOWER, nodes_ready, put_within_reach
from bench.conformance.programs import Programs
from bench.kit.child_processes import engine
from bench.kit.node_images import import_images
from tensile.sandbox.credentials import authority
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

SERVER = "localhost"
OPTIONS = Options(lowers=1, nodes=1, real_node=True, verify_kubelet=False)
"""The upper accepts any serving certificate: the sandbox's is for loopback, which is not the node's address."""


@contextmanager
def clusters(folder: Path, programs: Programs) -> Iterator[Sandbox]:
    """Start the clusters for the block, with the images that the suite's tests use."""
    with Sandbox.start(folder / "sandbox", OPTIONS, progress=print) as sandbox:
        sandbox.adopt("engine.log", "images.tar")
        images = sandbox.directory / "images.tar"
        names = subprocess.run([programs.suite, "--list-images"], capture_output=True, text=True, check=True).stdout
        images.write_bytes(archive(listed(names), files(sandbox, programs)))
        import_images(sandbox, images)
        images.unlink()
        yield sandbox


@contextmanager
def virtual_node(sandbox: Sandbox) -> Iterator[None]:
    """Run an engine in the block, as `tensile run` does; its virtual node has no taints."""
    put_within_reach(sandbox)
    topology = sandbox.directory / "topology.yaml"
    topology.write_text(untainted(topology.read_text()))
    child = engine(sandbox, sandbox.directory / "engine.log")
    try:
        nodes_ready(sandbox)
        yield
    finally:
        child.stop()


def untainted(topology: str) -> str:
    """Return a topology's text with a node without taints for its only lower: the suite's pods tolerate none."""
    line = f"  kubeconfig: {LOWER}.kubeconfig\n"
    return topology.replace(line, f"{line}  node: {{taints: []}}\n")


def files(sandbox: Sandbox, programs: Programs) -> Files:
    """Return the files that the images are made of."""
    state = sandbox.state()
    assert state.node is not None
    busybox = state.node.runtime.busybox
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    whole = [Path(path).read_bytes() for path in (busybox, programs.shell, programs.agnhost, programs.nnp)]
    pair = authority("agnhost", datetime.now(UTC)).issue(SERVER, hosts=(SERVER,))
    return Files(tuple(applets), *whole, pair.certificate, pair.key)
