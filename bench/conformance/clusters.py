"""The clusters that the suite is run on: one real node, and a cluster whose only node is the virtual one before it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.conformance.images import Files, archive, listed
from bench.conformance.kubectl.round import LOWER, nodes_ready, put_within_reach
from bench.conformance.programs import Programs
from bench.kit.children import engine
from bench.kit.nodeimages import bring
from tensile.sandbox.credentials import authority
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

SERVER = "localhost"
OPTIONS = Options(lowers=1, nodes=1, real_node=True, verify_kubelet=False)
"""The upper takes any serving certificate: that of the sandbox is for loopback, where the node is not."""


@contextmanager
def clusters(folder: Path, programs: Programs) -> Iterator[Sandbox]:
    """Start the clusters, with the images that the suite's tests ask for; they end with the block."""
    with Sandbox.start(folder / "sandbox", OPTIONS, progress=print) as sandbox:
        sandbox.adopt("engine.log", "images.tar")
        images = sandbox.directory / "images.tar"
        names = subprocess.run([programs.suite, "--list-images"], capture_output=True, text=True, check=True).stdout
        images.write_bytes(archive(listed(names), files(sandbox, programs)))
        bring(sandbox, images)
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
    """Return the text of a topology whose only lower has a node without taints: the suite's pods tolerate none."""
    line = f"  kubeconfig: {LOWER}.kubeconfig\n"
    return topology.replace(line, f"{line}  node: {{taints: []}}\n")


def files(sandbox: Sandbox, programs: Programs) -> Files:
    """Read what the images are made of."""
    state = sandbox.state()
    assert state.node is not None
    busybox = state.node.runtime.busybox
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    whole = [Path(path).read_bytes() for path in (busybox, programs.shell, programs.agnhost, programs.nnp)]
    pair = authority("agnhost", datetime.now(UTC)).issue(SERVER, hosts=(SERVER,))
    return Files(tuple(applets), *whole, pair.certificate, pair.key)
