"""Imports images into the real node of a running sandbox, whose containerd has its own Linux namespaces."""

import os
import subprocess
from pathlib import Path

from tensile.sandbox import processes
from tensile.sandbox.sandbox import Sandbox


def import_images(sandbox: Sandbox, archive: Path) -> None:
    """Import the images of an archive into the node.

    The archive must be in a directory that the node sees too: not under /run or /var.
    """
    state = sandbox.state()
    (containerd,) = (pid for pid in processes.marked(state.identity) if _name(pid) == "containerd")
    assert state.node is not None
    variables = ["env", f"PATH={state.node.runtime.path}:{os.environ['PATH']}"]
    enter = ["nsenter", f"--target={containerd}", "--mount", "--", *variables]
    command = [*enter, "ctr", "--namespace=k8s.io", "images", "import", str(archive)]
    subprocess.run(command, check=True, capture_output=True)


def _name(pid: int) -> str:
    """Return a process's name, "" for one that has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
