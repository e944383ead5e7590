"""Tests of an engine that may open too few files for all lowers.

The first lowers are served, and the nodes of the others report how many descriptors are needed.
"""

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


class FewDescriptorsProgram(Program):
    """A program with few file descriptors, and with a soft limit that is lower than the hard one."""

    async def launch(self, file: Path, log: Path, **variables: str) -> Process:
        """Start the program by a shell that sets both limits."""
        limits = f'ulimit -Sn {HARD // 2} && ulimit -Hn {HARD} && exec "$@"'
        command = [sys.executable, "-m", "tensile", "run", "-f", str(file), "--log-format", "json"]
        with log.open("wb") as output:
            environment = {**os.environ, **variables}
            return await create_subprocess_exec(
                "sh", "-c", limits, "sh", *command, stdout=output, stderr=output, env=environment
            )


async def test_lowers_within_the_descriptor_limit_are_served_and_the_others_report_the_need(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The order of the file decides; here the limit allows the first of two lowers."""
    program = FewDescriptorsProgram(sandbox, tmp_path)
    try:
        await program.open()
        await program.start(await_nodes=False)
        await program.wait_for_node(program.nodes[A])
        await program.run_pod("web")
        message = f"may open {HARD} files and connections, and 2 lower clusters need {OWN + 2 * EACH}"

        def says(node: Manifest) -> bool:
            """Report whether a node has this message in its LowerReachable condition."""
            return bool(node) and message in condition_of(node, "LowerReachable").get("message", "")

        await program.upper.until(f"/api/v1/nodes/{program.nodes[B]}", says)
        await program.wait_for_log(message)
        await program.clear()
    finally:
        await program.close()
