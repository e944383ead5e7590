"""Grounds for commands, and commands that wait while other tests run."""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio
from clikit import Files, Wait, listening, port_of, timed
from enginekit import Ground
from programkit import Program, served

from tensile.sandbox.environment import Sandbox


@pytest_asyncio.fixture
async def ground(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Ground]:
    """Three clusters, a namespace, and a topology with names of its own; nothing runs, and nothing stays."""
    made = Ground(sandbox, tmp_path)
    try:
        await made.open()
        yield made
        await made.upper.delete(made.path("pods"), 0)
    finally:
        await made.close()


@pytest_asyncio.fixture
async def program(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Program]:
    """The same with `tensile run` on it."""
    async with served(sandbox, tmp_path) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def _early(request: pytest.FixtureRequest) -> None:
    """Start the commands that wait before the first test of this folder, where there is one that asks for them."""
    if any("waits" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("waits")


@pytest.fixture(scope="session")
def waits(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Wait]]:
    """Start three commands on clusters that are away: waiting costs them their patience, and the tests nothing."""
    with listening() as silent, ThreadPoolExecutor(3) as pool:
        hanging, refusing, partly = (Files(tmp_path_factory.mktemp(name)) for name in ("hanging", "refusing", "partly"))
        hanging.ports[0] = port_of(silent)
        for name, cluster in sandbox.clusters.items():
            (partly.directory / f"{name}.kubeconfig").write_bytes(cluster.kubeconfig.read_bytes())
        commands = {
            "hanging": (("plan", "-f", hanging.save()), port_of(silent)),
            "refusing": (("apply", "-f", refusing.save()), refusing.ports[0]),
            "partly": (("plan", "-o", "json", "-f", partly.save(_with_good_ones)), partly.ports[1]),
        }
        yield {
            name: Wait(pool.submit(timed, *arguments), f"127.0.0.1:{port}")
            for name, (arguments, port) in commands.items()
        }


def _with_good_ones(topology: dict[str, object]) -> None:
    """Have an upper cluster that answers, and after the lower that does not, one that does."""
    topology["name"] = "partly-out-of-reach"
    topology["upper"] = {"kubeconfig": "upper.kubeconfig"}
    assert isinstance(topology["lowers"], list)
    topology["lowers"].append({"name": "answering", "kubeconfig": "lower-b.kubeconfig"})
