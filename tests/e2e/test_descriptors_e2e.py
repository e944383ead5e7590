"""An engine that may open too few files for all lowers: the first ones are served, the others say what is needed."""

import os
import sys
from asyncio.subprocess import Process, create_subprocess_exec
from pathlib import Path

import pytest
from enginekit import A, B
from programkit import Program
from sitekit import Manifest, condition_of

from tensile.kube.net import EACH, OWN
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real
HARD = OWN + EACH + EACH // 2
"""Enough for one lower."""


class Narrow(Program):
    """The program with few descriptors, and a soft limit below even those."""

    async def begun(self, file: Path, log: Path, **variables: str) -> Process:
        """Start it by a shell that sets both limits."""
        limits = f'ulimit -Sn {HARD // 2} && ulimit -Hn {HARD} && exec "$@"'
        command = [sys.executable, "-m", "tensile", "run", "-f", str(file), "--log-format", "json"]
        with log.open("wb") as output:
            environment = {**os.environ, **variables}
            return await create_subprocess_exec(
                "sh", "-c", limits, "sh", *command, stdout=output, stderr=output, env=environment
            )


async def test_the_lowers_that_fit_go_on_and_the_others_say_how_many_descriptors_are_needed(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """In the order of the file: here there is room for the first of two."""
    program = Narrow(sandbox, tmp_path)
    try:
        await program.open()
        await program.start(await_nodes=False)
        await program.usable(program.nodes[A])
        await program.run_pod("web")
        words = f"may open {HARD} files and connections, and 2 lower clusters need {OWN + 2 * EACH}"

        def says(node: Manifest) -> bool:
            """Report whether a node does."""
            return bool(node) and words in condition_of(node, "LowerReachable").get("message", "")

        await program.upper.until(f"/api/v1/nodes/{program.nodes[B]}", says)
        await program.logged(words)
        await program.clear()
    finally:
        await program.close()
