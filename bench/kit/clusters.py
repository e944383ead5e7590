"""The clusters that a scenario runs on: a sandbox of its own that ends with it, or one that runs already and stays."""

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
"""A function of the clusters and a temporary directory; "broken" in its result lists the failures."""

ONE_NODE = Options(nodes=1)
"""Clusters with one node each, which is enough if pods only have to run somewhere."""


def on_clusters(
    scenario: Scenario, running: Path | None = None, options: Options = ONE_NODE
) -> tuple[str, dict[str, Any]]:
    """Run a scenario; return the clusters' version and its result, in which a timeout counts as broken.

    Args:
        scenario: the scenario to run on the clusters.
        running: the directory of a running sandbox, to be used instead of an own one.
        options: the options of an own sandbox.
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
