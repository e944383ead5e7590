"""The page that says how a virtual node differs from a real one for kubectl, made from the table that is checked."""

from pathlib import Path

from bench.conformance.kubectl.commands import STEPS
from bench.conformance.kubectl.expected import EXPECTED

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kubectl.md"
_HEAD = """\
# kubectl on a virtual node

What kubectl says of a virtual node and of the pods on it is what it says of a real node: the same output, the same
errors, the same exit codes. `python -m bench.conformance.kubectl` gives the commands below to a real node (kubelet,
containerd, runc) in its own cluster, and to the virtual node behind which that node is, with kubectl 1.33 and 1.36, and
compares line by line. Names of nodes, addresses, UIDs, moments and ages aside, these differences are left; one that is
not in this table is a defect.

<!-- Made by `python -m bench.conformance.kubectl --document` from bench/conformance/kubectl/expected.py. -->
| what differs on a virtual node | why |
|---|---|
"""
_COMMANDS = """
A virtual node stands for all nodes of its lower cluster, and the comparison has one. With several, `kubectl debug
node/NAME` opens its pod on the one that the lower's scheduler chooses (the second `Scheduled` event of the pod says
which), capacity and `kubectl top node` are sums, and kernel, system and runtime are what most of them say.

## What is compared
Once with kubectl's WebSockets, and where it says so with SPDY:

"""


def page() -> str:
    """Return the text of the page."""
    rows = "".join(f"| {one.what} | {one.why} |\n" for one in EXPECTED)
    titles = dict.fromkeys(_shown(step.title) for step in STEPS if not step.until)
    return _HEAD + rows + _COMMANDS + "".join(f"- `{title}`\n" for title in titles)


def _shown(title: str) -> str:
    """Return a command as a person would: what makes a pod fit for both nodes is left out."""
    words = title.split(" ")
    return " ".join(word for word in words if not word.startswith(("--overrides=", "--image-pull-policy=")))
