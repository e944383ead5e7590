"""Fixtures for tests of commands, and commands that wait while other tests run."""

import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from clikit import Files, HangingCommand, port_of, run_timed, silent_listener
from enginekit import A, EngineHarness
from programkit import Program, running_program

from bench.kit.spareports import spare_ports
from tensile.sandbox.sandbox import Sandbox


@pytest_asyncio.fixture
async def harness(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[EngineHarness]:
    """Three clusters with a namespace and a topology of unique names.

    No engine runs, and all objects are deleted at the end.
    """
    harness = EngineHarness(sandbox, tmp_path)
    try:
        await harness.open()
        yield harness
        await harness.upper.delete(harness.path("pods"), 0)
    finally:
        await harness.close()


@pytest_asyncio.fixture
async def program(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Program]:
    """The same with a running `tensile run`."""
    async with running_program(sandbox, tmp_path) as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A topology whose clusters do not answer."""
    return Files(tmp_path)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server socket that accepts connections and never answers."""
    with silent_listener() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def _early(request: pytest.FixtureRequest) -> None:
    """Start the waiting commands before the first test of this folder, if any selected test uses them."""
    if any("waits" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("waits")


@pytest.fixture(scope="session")
def waits(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, HangingCommand]]:
    """Start three commands on unreachable clusters, so that their waits overlap with other tests."""
    with silent_listener() as silent, silent_listener() as mute, ThreadPoolExecutor(3) as pool:
        hanging, refusing, partly = (Files(tmp_path_factory.mktemp(name)) for name in ("hanging", "refusing", "partly"))
        hanging.ports[0] = port_of(silent)
        for name, cluster in sandbox.clusters.items():
            (partly.directory / f"{name}.kubeconfig").write_bytes(cluster.kubeconfig.read_bytes())
        _write_bad_ways(sandbox, partly.directory, port_of(mute))
        commands = {
            "hanging": (("plan", "-f", hanging.save()), port_of(silent), hanging),
            "refusing": (("apply", "-f", refusing.save()), refusing.ports[0], refusing),
            "partly": (("plan", "-o", "json", "-f", partly.save(_with_good_ones)), partly.ports[1], partly),
        }
        yield {
            name: HangingCommand(pool.submit(run_timed, *arguments), f"127.0.0.1:{port}", files.directory)
            for name, (arguments, port, files) in commands.items()
        }


BAD_WAYS = ("hangs", "forbidden", "unknown", "gone")
"""Lowers besides the one whose port refuses connections: each cannot be read for another reason."""


def _with_good_ones(topology: dict[str, object]) -> None:
    """Set an upper cluster that responds, lowers that cannot be read, and a lower that can."""
    topology["name"] = "partly-out-of-reach"
    topology["upper"] = {"kubeconfig": "upper.kubeconfig"}
    assert isinstance(topology["lowers"], list)
    topology["lowers"] += [{"name": name, "kubeconfig": f"{name}.kubeconfig"} for name in BAD_WAYS]
    topology["lowers"].append({"name": "answering", "kubeconfig": "lower-b.kubeconfig"})
    for lower, port in zip(topology["lowers"], spare_ports(len(topology["lowers"])), strict=True):
        lower["node"] = {"kubeletPort": port}


def _write_bad_ways(sandbox: Sandbox, directory: Path, port: int) -> None:
    """Write kubeconfigs of a server that never answers, of a user without rights, and of an unknown user."""
    harness = EngineHarness(sandbox, directory)
    stranger, good = harness.kubeconfig(A, "nobody-known", ()), yaml.safe_load(harness.kubeconfig(A, "nobody", ()))
    (directory / "forbidden.kubeconfig").write_text(stranger)
    good["users"][0]["user"] = {"token": "a-token-of-no-use"}
    (directory / "unknown.kubeconfig").write_text(yaml.safe_dump(good))
    good["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    (directory / "hangs.kubeconfig").write_text(yaml.safe_dump(good))
