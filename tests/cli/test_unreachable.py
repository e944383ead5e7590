"""Tests of unreachable clusters: commands report them with the reason, and wait only for a limited time."""

import asyncio
from pathlib import Path

import orjson
import pytest
from clikit import Files, HangingCommand, port_of, silent_listener

from tensile.engine.lower import ClusterAccess
from tensile.engine.plan_and_apply import PATIENCE, opened
from tensile.topology import parse

pytestmark = pytest.mark.real
AT_MOST = 5 * PATIENCE
"""Seconds for a command that waits once. A busy machine takes up to 35 to start and end concurrent commands."""


def last_line(wait: HangingCommand) -> str:
    """Wait until a command has failed, and return its error."""
    result, seconds = wait.result.result()
    assert (result.code, result.out) == (1, "")
    assert seconds < AT_MOST
    return result.err.splitlines()[-1]


def test_unreadable_lowers_are_reported_and_all_others_are_planned(
    waits: dict[str, HangingCommand],
) -> None:
    """The exit code is 1; each lower has its own cause and no changes, and the plan of the others is complete."""
    wait = waits["partly"]
    result, seconds = wait.result.result()
    assert result.code == 1
    assert seconds < AT_MOST
    found = orjson.loads(result.out)
    assert {one["name"] for one in found["changes"] if one["kind"] == "Node"} == {"answering"}
    assert found["summary"]["clusters"].keys() == {"upper", "answering"}
    away = {one["lower"]: one["message"] for one in found["unreached"]}
    causes = {
        "below": f"out of reach: cannot connect to {wait.address} (Connection refused): ",
        "hangs": "out of reach: no response: check that its apiserver works",
        "forbidden": 'read Namespace kube-system: denied: namespaces "kube-system" is forbidden: User "nobody-known"',
        "unknown": "credential rejected: Unauthorized",
        "gone": f"{wait.directory / 'gone.kubeconfig'}: cannot be read (No such file or directory): ",
    }
    assert away.keys() == causes.keys()
    assert [name for name, cause in causes.items() if not away[name].startswith(cause)] == [], away
    assert "`tensile doctor` lists the missing permissions" in away["forbidden"]
    assert ": renew the credential of " in away["unknown"]
    assert sorted(result.err.splitlines()) == sorted(f"{name}: {why}" for name, why in away.items()), "each once"


def test_a_refusing_upper_cluster_is_logged_at_once_and_reported_at_the_end(waits: dict[str, HangingCommand]) -> None:
    """The log has it while the command still waits, and the last line is the error."""
    wait = waits["refusing"]
    error = last_line(wait)
    assert error.startswith(f"upper: out of reach: cannot connect to {wait.address} (Connection refused): ")
    assert "cluster unreachable" in wait.result.result()[0].err.splitlines()[0]


def test_a_hanging_upper_cluster_is_out_of_reach(waits: dict[str, HangingCommand]) -> None:
    """The wait is limited even if the cluster accepts connections and never answers."""
    assert last_line(waits["hanging"]).startswith("upper: out of reach: ")


async def test_the_wait_for_a_cluster_is_announced(tmp_path: Path) -> None:
    """The message appears while a cluster accepts the connection and does not answer."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    files = Files(tmp_path)
    with silent_listener() as silent:
        files.ports[0] = port_of(silent)
        topology = parse(files.save().read_text())
        async with asyncio.timeout(PATIENCE):
            opening = asyncio.create_task(opened(topology, ClusterAccess(tmp_path), lines.put_nowait).__aenter__())
            assert await lines.get() == f"waiting up to {PATIENCE:g} s for the upper cluster"
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
