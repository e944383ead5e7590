"""Checks that kubectl shows a virtual node as it shows a real one: some 170 commands, each with two versions.

    .venv/bin/python -m bench.conformance.kubectl [--short] [--document]

The commands run first on a real node (kubelet, containerd, runc) through its own cluster, then on the virtual node for
that cluster. Values that must differ are replaced; each line that still differs has to be in the table of expected
differences (expected.py), which docs/kubectl.md shows. Each of two versions of kubectl runs all commands: the version
of the clusters, and 1.33, built once from Go modules into the user's cache (about 3 minutes).
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.conformance.kubectl.differences import explained, lines_apart
from bench.conformance.kubectl.document import PAGE, page
from bench.conformance.kubectl.expected import EXPECTED
from bench.conformance.kubectl.round import (
    KUBECTL,
    LOWER,
    OLD,
    Answers,
    Side,
    gone,
    nodes_ready,
    put_within_reach,
    run_commands,
)
from bench.kit.child_processes import engine
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.sites import NotInTime
from tensile.sandbox import real_node
from tensile.sandbox.binaries import Finder, cache_directory
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

NAME = "faults-kubectl"
CLUSTERS = Options(lowers=1, nodes=1, real_node=True, verify_kubelet=False)
"""The upper accepts any serving certificate: the sandbox's is for loopback, which is not the node's address."""
SOURCES = Path(__file__).parent / "sources"


def kubectls(sandbox: Sandbox, *, short: bool) -> dict[str, str]:
    """Return the kubectls by version: the sandbox's own, and an older one unless `short` is set."""
    own = sandbox.kubectl_command()[0]
    if short:
        return {KUBECTL: own}
    folder = Finder(os.environ, print, sources=SOURCES).find(OLD)
    return {KUBECTL: own, OLD.version: str(folder / OLD.programs[0])}


def compared(version: str, real: Answers, virtual: Answers) -> dict[str, Any]:
    """Compare one version's answers; return counts of differing lines, the expected differences, and the defects."""
    apart, strange, met = {}, [], set()
    for command, lines in real.items():
        found = lines_apart(lines, virtual[command])
        places, odd = explained(command, found, EXPECTED)
        met |= places
        strange += [f"{version}: {command}: {line}" for line in odd]
        if found:
            apart[command] = len(found)
    return {"commands": len(real), "apart": apart, "met": met, "broken": strange}


def rounds(sandbox: Sandbox, versions: dict[str, str], scratch: Path) -> dict[str, dict[str, Any]]:
    """Run every command on the real node, then on the virtual one; return the comparisons by version."""
    real = {version: run_commands(Side(sandbox, LOWER, scratch), path) for version, path in versions.items()}
    put_within_reach(sandbox)
    child = engine(sandbox, sandbox.directory / "engine.log")
    try:
        nodes_ready(sandbox)
        virtual = {}
        for version, path in versions.items():
            virtual[version] = run_commands(Side(sandbox, UPPER, scratch), path)
            gone(sandbox, LOWER)
    finally:
        child.stop()
    return {version: compared(version, real[version], virtual[version]) for version in versions}


def result_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Merge the comparisons: the defects, and the expected differences that did not occur."""
    met = set().union(*(one.pop("met") for one in found.values()))
    broken = [failure for one in found.values() for failure in one.pop("broken")]
    unmet = [one.what for place, one in enumerate(EXPECTED) if place not in met]
    return {"kubectl": found, "expected": len(EXPECTED), "unmet": unmet, "broken": broken}


def trial(folder: Path, *, short: bool) -> tuple[str, dict[str, Any]]:
    """Run the comparison on new clusters in a folder, and return the clusters' version and the result."""
    with Sandbox.start(folder / "sandbox", CLUSTERS, progress=print) as sandbox:
        sandbox.adopt("engine.log")
        versions = kubectls(sandbox, short=short)
        try:
            return KUBECTL, result_of(rounds(sandbox, versions, folder))
        except NotInTime as error:
            return KUBECTL, {"broken": [str(error)]}


def main() -> int:
    """Read the arguments, run the comparison, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="run only the kubectl of the clusters' own version")
    parser.add_argument("--document", action="store_true", help="only write docs/kubectl.md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    wanted = parser.parse_args()
    if wanted.document:
        PAGE.write_text(page())
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        why = real_node.obstacle((folder, cache_directory(os.environ)), os.environ)
        if why:
            print(f"{NAME}: this machine cannot run a real node: {why}", file=sys.stderr)
            return 1
        kubernetes, result = trial(folder, short=wanted.short)
    return verdict(NAME, result["broken"], keep(wanted.results, NAME, kubernetes, result))


if __name__ == "__main__":
    sys.exit(main())
