"""A cluster that is out of reach: named with the reason, by commands that wait for it no longer than they may."""

import asyncio
from pathlib import Path

import orjson
import pytest
from clikit import Files, Wait, listening, port_of

from tensile.engine.lower import ClusterAccess
from tensile.engine.plan_and_apply import PATIENCE, opened
from tensile.topology import parse

pytestmark = pytest.mark.real
AT_MOST = 5 * PATIENCE
"""Seconds for a command that waits once. A busy machine takes up to 35 to start and end those that run side by side."""


def last_line(wait: Wait) -> str:
    """Wait for a command's end, which has to come; return its error."""
    told, seconds = wait.result.result()
    assert (told.code, told.out) == (1, "")
    assert seconds < AT_MOST
    return told.err.splitlines()[-1]


def test_lowers_that_cannot_be_read_are_named_with_what_to_do_and_the_others_are_planned(
    waits: dict[str, Wait],
) -> None:
    """Exit code 1, each with its own cause; nothing is planned for them, and all that there is for the others."""
    wait = waits["partly"]
    told, seconds = wait.result.result()
    assert told.code == 1
    assert seconds < AT_MOST
    found = orjson.loads(told.out)
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
    assert sorted(told.err.splitlines()) == sorted(f"{name}: {why}" for name, why in away.items()), "each once"


def test_an_upper_cluster_that_refuses_is_told_at_once_and_at_the_end(waits: dict[str, Wait]) -> None:
    """The log has it while the command still waits; the last line is the error."""
    wait = waits["refusing"]
    error = last_line(wait)
    assert error.startswith(f"upper: out of reach: cannot connect to {wait.address} (Connection refused): ")
    assert "cluster unreachable" in wait.result.result()[0].err.splitlines()[0]


def test_an_upper_cluster_that_hangs_is_out_of_reach(waits: dict[str, Wait]) -> None:
    """Patience ends where a connection is taken and nothing comes."""
    assert last_line(waits["hanging"]).startswith("upper: out of reach: ")


async def test_whoever_waits_is_told_for_what(tmp_path: Path) -> None:
    """After a second, where a cluster takes connections and does not answer."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    files = Files(tmp_path)
    with listening() as silent:
        files.ports[0] = port_of(silent)
        topology = parse(files.save().read_text())
        async with asyncio.timeout(PATIENCE):
            opening = asyncio.create_task(opened(topology, ClusterAccess(tmp_path), lines.put_nowait).__aenter__())
            assert await lines.get() == f"waiting up to {PATIENCE:g} s for the upper cluster"
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
