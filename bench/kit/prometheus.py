"""A Prometheus process beside an engine, and the responses of its API.

Prometheus is not part of what `make setup` installs, so a program that needs it searches the PATH, and otherwise
continues without it and reports that.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml

from bench.kit.sites import Manifest, until
from bench.kit.spareports import spare_port

LIMIT = 60.0


def program() -> str | None:
    """Return the path of Prometheus, None if it is not installed."""
    return shutil.which("prometheus")


class PrometheusProcess(NamedTuple):
    """A Prometheus that runs."""

    url: str
    session: aiohttp.ClientSession

    async def get(self, path: str, **query: str) -> Any:
        """Return the data of a response of its API."""
        async with self.session.get(f"{self.url}/api/v1/{path}", params=query) as answer:
            return (await answer.json())["data"]

    async def targets(self, count: int) -> list[Manifest]:
        """Wait until so many targets have been scraped, and return them."""
        found: list[Manifest] = []

        async def are_scraped() -> bool:
            found[:] = (await self.get("targets", state="active"))["activeTargets"]
            return len(found) == count and all(one["health"] != "unknown" for one in found)

        await until(are_scraped, f"{count} targets", LIMIT)
        return found

    async def values(self, query: str, holds: Callable[[list[Manifest]], bool]) -> list[Manifest]:
        """Wait until the result of a query satisfies a condition, and return it."""
        found: list[Manifest] = []

        async def is_there() -> bool:
            found[:] = (await self.get("query", query=query))["result"]
            return holds(found)

        await until(is_there, query, LIMIT)
        return found


@asynccontextmanager
async def running(
    path: str, directory: Path, scrapes: Sequence[Manifest], rules: Manifest | None = None
) -> AsyncIterator[PrometheusProcess]:
    """Run Prometheus at `path` with these scrape configurations and groups of rules, each once a second."""
    config: Manifest = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": list(scrapes),
    }
    if rules is not None:
        (directory / "rules.yaml").write_text(yaml.safe_dump(rules))
        config["rule_files"] = ["rules.yaml"]
    file = directory / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    port = spare_port()
    command = [
        path, f"--config.file={file}", f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    log = directory / "prometheus.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        async with aiohttp.ClientSession() as session:
            yield PrometheusProcess(f"http://127.0.0.1:{port}", session)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
