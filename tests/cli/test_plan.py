"""Tests of `tensile plan` on real clusters: its three formats and its exit codes, and that it changes nothing."""

import asyncio
import os
import pty
import re
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import orjson
import pytest
from clikit import PROGRAM, environment
from enginekit import UPPER, A, CommandResult, EngineHarness, run_command, with_fields

from tensile.engine.history import HistoryWriter, file_place
from tensile.engine.topology_reader import TopologyText, TopologyUpdate
from tensile.kube.client import HttpCluster

pytestmark = pytest.mark.real

LAST = re.compile(r"^Plan: (\d+) to add, (\d+) to change, (\d+) to delete \(.+\)$")
CONTENT = "cGxhbm5lZC1zZWNyZXQ="


async def planned(path: Path, *arguments: str) -> CommandResult:
    """Run `tensile plan` on a file."""
    return await run_command([PROGRAM, "plan", "-f", str(path), *arguments])


async def waiting_pods(harness: EngineHarness) -> None:
    """Bind a pod that has all its dependencies, and one whose ConfigMap is missing."""
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "key"}, "data": {"key": CONTENT}})
    await harness.bind("whole", {"volumes": [{"name": "key", "secret": {"secretName": "key"}}]})
    await harness.bind("stuck", {"volumes": [{"name": "lost", "configMap": {"name": "lost"}}]})


async def test_the_three_formats_have_the_same_content_and_nothing_is_changed(harness: EngineHarness) -> None:
    """The exit code is 2, all output is on stdout, no cluster gets a write, and each format has the problems."""
    await waiting_pods(harness)
    path = harness.save()
    await harness.mark_audit_logs()
    text, document, markdown = await asyncio.gather(
        *(planned(path, "-o", form) for form in ("text", "json", "markdown"))
    )
    assert await harness.attempts() == []
    for done in (text, document, markdown):
        assert (done.code, done.err) == (2, "")
        assert "\x1b" not in done.out
        assert CONTENT not in done.out
        assert "planned-secret" not in done.out
    _hold_text(harness, text.out, markdown.out)
    _hold_document(harness, text.out, document.out)


def _hold_text(harness: EngineHarness, text: str, markdown: str) -> None:
    last = LAST.match(text.splitlines()[-1])
    assert last is not None
    assert int(last[1]) == len(re.findall(r"^\+ ", text, re.MULTILINE)) > 3
    assert (last[2], last[3]) == ("1", "0")
    assert f"\n+ Pod {harness.namespace}/whole: " in text
    assert f"\n! pod {harness.namespace}/stuck on {A}: ConfigMapNotFound: ConfigMap {harness.namespace}/lost " in text
    assert markdown.startswith("```diff\n")
    assert markdown.replace("```diff\n", "").replace("\n```", "") == text


def _hold_document(harness: EngineHarness, text: str, out: str) -> None:
    document = orjson.loads(out)
    assert document["formatVersion"] == "1.5"
    assert document["topology"] == harness.namespace
    problems = {(one["lower"], one["namespace"], one["name"], one["reason"]) for one in document["problems"]}
    assert (A, harness.namespace, "stuck", "ConfigMapNotFound") in problems
    made = {(one["kind"], one["namespace"], one["name"]) for one in document["changes"] if one["cluster"] == A}
    home = harness.namespace
    assert made == {("Namespace", "", home), ("Secret", home, "key"), ("Pod", home, "whole")}
    assert all(one["reason"] and one["operations"] for one in document["changes"])
    assert all({"op", "path"} <= operation.keys() for one in document["changes"] for operation in one["operations"])
    summary = document["summary"]
    assert text.splitlines()[-1].startswith(f"Plan: {summary['add']} to add, {summary['change']} to change, ")


async def test_a_plan_of_one_lower_omits_the_others(harness: EngineHarness) -> None:
    """Its own virtual node is included, and that of the other lower is not."""
    whole, filtered = await asyncio.gather(planned(harness.save()), planned(harness.save(), "--lower", A))
    assert whole.out.count("\n+ Node ") == 2
    assert filtered.out.count("\n+ Node ") == 1
    assert filtered.out.splitlines()[-1].endswith(f"; partial: only {A} shown)")


async def test_colors_are_only_for_terminals(harness: EngineHarness) -> None:
    """Without the escape codes, the plan on a terminal has the same text."""
    path = harness.save()
    plain, (code, coloured) = await asyncio.gather(
        planned(path), asyncio.to_thread(_on_a_terminal, "plan", "-f", str(path))
    )
    assert code == plain.code == 2
    assert "\x1b[32m+\x1b[0m Node " in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).replace("\r\n", "\n") == plain.out


def _on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run the program with a terminal as its stdout, and return the exit code and the output.

    Stderr is discarded, because a slow machine adds lines of progress to it.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execve(PROGRAM, [PROGRAM, *arguments], environment(TERM="xterm"))
    written = b""
    while True:
        try:
            written += os.read(terminal, 65536)
        except OSError:
            break
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), written.decode()


async def test_changes_that_need_a_restart_of_the_engine_are_named(harness: EngineHarness) -> None:
    """They are found by the topology in force, which the engine keeps in the upper cluster."""
    admin = with_fields(upper={"kubeconfig": str(harness.sandbox.directory / "upper.kubeconfig")})
    data, topology = orjson.dumps(harness.file(admin)), harness.topology(admin)
    upper = HttpCluster(UPPER, await harness.cluster_access.upper_access(topology.upper))
    configmap_key, owner = file_place(topology.name), await upper.identify()
    writer = HistoryWriter(upper, configmap_key, owner, emit_event=lambda *_: None, now=lambda: datetime.now(UTC))
    writer.keep(TopologyUpdate(TopologyText(len(data), sha256(data).hexdigest()), topology, data=data))
    assert await writer.write() is None
    await upper.close()
    old, new = topology.kubelet.port, topology.kubelet.port + 100
    done = await planned(harness.save(admin, with_fields(kubelet={**harness.file()["kubelet"], "port": new})))
    wanted = f"kubelet.port: {old} -> {new}: this change requires a restart of the engine"
    assert f"\nNeeds a restart of the engine:\n  {wanted}\n" in done.out
    document = await planned(harness.save(admin), "-o", "json")
    assert orjson.loads(document.out)["restartNeeded"] == []
