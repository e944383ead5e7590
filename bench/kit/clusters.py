"""How a scenario comes to its clusters: a sandbox of its own that ends with it, or one that runs and goes on."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.kit.sites import NotInTime, Site
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

Scenario = Callable[[Sandbox, Path], Awaitable[dict[str, Any]]]
"""Takes the clusters and a directory that vanishes with the run; what it broke is "broken" in its result."""

ONE_NODE = Options(nodes=1)
"""Clusters with one node each, which is enough where pods only have to run somewhere."""


def on_clusters(
    scenario: Scenario, running: Path | None = None, options: Options = ONE_NODE
) -> tuple[str, dict[str, Any]]:
    """Run a scenario and give the clusters' version and its result; what did not come in time is something that broke.

    Args:
        scenario: what to do there.
        running: the directory of a sandbox that runs, instead of one of its own.
        options: what that one of its own is like.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if running:
            sandbox = Sandbox.attach(running)
        else:
            sandbox = stack.enter_context(Sandbox.start(scratch / "sandbox", options))
        return asyncio.run(_kept(scenario, sandbox, scratch))


async def _kept(scenario: Scenario, sandbox: Sandbox, scratch: Path) -> tuple[str, dict[str, Any]]:
    async with Site(sandbox.clusters[UPPER]) as upper:
        version = await upper.version()
    try:
        return version, await scenario(sandbox, scratch)
    except NotInTime as error:
        return version, {"broken": [str(error)]}
