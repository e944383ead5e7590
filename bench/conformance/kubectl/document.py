"""Writes the page on how a virtual node differs from a real one for kubectl, from the table that is checked."""

from pathlib import Path

from bench.conformance.kubectl.commands import STEPS
from bench.conformance.kubectl.expected import EXPECTED

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kubectl.md"
_HEAD = """\
# kubectl on a virtual node

kubectl shows a virtual node and its pods like a real node: with the same output, errors and exit codes.
`python -m bench.conformance.kubectl` verifies this. It runs the [commands](#compared-commands) with kubectl 1.33 and
1.36, on a real node (kubelet, containerd, runc) in its own cluster, and on the virtual node of that cluster. It then
compares the output line by line. It ignores names of nodes, addresses, UIDs, times and ages. The table lists the
remaining differences; any other difference is a defect.

<!-- Made by `python -m bench.conformance.kubectl --document` from bench/conformance/kubectl/expected.py. -->
| difference on a virtual node | reason |
|---|---|
"""
_COMMANDS = """
A virtual node represents all nodes of its lower cluster; the comparison uses a lower cluster with one node. With
several nodes:
- `kubectl debug node/NAME` opens its pod on the node that the lower scheduler chooses. The second `Scheduled` event of
  the pod names it.
- Capacity and `kubectl top node` are sums.
- Kernel, system and runtime are those of most nodes.

## Compared commands
Each command runs with kubectl's WebSockets. Those marked (SPDY) run with SPDY:

"""


def page() -> str:
    """Return the text of the page."""
    rows = "".join(f"| {one.what} | {one.why} |\n" for one in EXPECTED)
    titles = dict.fromkeys(_shown(step.title) for step in STEPS if not step.until)
    return _HEAD + rows + _COMMANDS + "".join(f"- `{title}`\n" for title in titles)


def _shown(title: str) -> str:
    """Return a command as a user would type it, without the options that only let a pod run on both nodes."""
    words = title.split(" ")
    return " ".join(word for word in words if not word.startswith(("--overrides=", "--image-pull-policy=")))
