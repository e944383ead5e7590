"""Tests of approvals and rollbacks on real clusters.

Edits that affect many pods wait for an approval by hash, and earlier topologies can be restored.
"""

import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, CommandResult, Edit, EngineHarness, edit_lower, run_command, with_fields
from mapkit import KEY, NAME, RIGHT, STATUS, MapProgram, digest, read
from programkit import Program, running_program
from sitekit import Manifest, is_ready

from tensile.engine.history import file_place, history_ref
from tensile.engine.status.configmap import status_ref
from tensile.engine.topology_reader import ConfigMapKey
from tensile.names import APPROVED
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

TIMES = 10
REPLICAS = 3
MOVING = 120.0
"""Seconds for pods to move, on a machine that is busy."""
LIMITED = with_fields(guard={"approveOver": 1})
CORDONED = edit_lower(B, maintenance="cordon")
NOWHERE = "0" * 64


def drained(lower: str) -> Edit:
    """Return an edit that drains a lower cluster."""
    return edit_lower(lower, maintenance="drain")


def noted(number: int) -> Edit:
    """Return an edit of an annotation of a node, which affects no pod."""
    return edit_lower(B, node={"annotations": {"edit": str(number)}})


class ApprovalProgram(MapProgram):
    """A program on a ConfigMap with a limit of one pod, and the commands that approve and roll back its edits."""

    async def start(self, *edits: Edit, await_nodes: bool = True) -> None:
        """Start the program with the limit, and with the second lower cluster drained by default."""
        await super().start(LIMITED, *(edits or (drained(B),)), await_nodes=await_nodes)

    async def edit(self, *edits: Edit) -> str:
        """Write the ConfigMap with the limit, and return its text."""
        text = self.text(LIMITED, *edits)
        await self.put(text)
        return text

    async def decide(self, word: str, *arguments: str) -> CommandResult:
        """Run approve or rollback on the ConfigMap as an administrator.

        The engine itself may not write its own topology.
        """
        file = self.directory / "administrator.kubeconfig"
        file.write_text(self.kubeconfig(UPPER, "administrator"))
        options = ["--configmap", f"{self.namespace}/{NAME}", "--kubeconfig", str(file), "--log-format", "json"]
        return await run_command([sys.executable, "-m", "tensile", word, *options, *arguments])

    async def waits(self, text: str) -> Manifest:
        """Wait until the status shows that a text waits for approval, and return its entry."""
        path = self.path("configmaps", STATUS)
        found = await self.upper.until(
            path, lambda one: read(one).get("pendingApproval", {}).get("sha256") == digest(text), RIGHT
        )
        assert found["data"]["state"] == "Pending"
        waiting: Manifest = read(found)["pendingApproval"]
        return waiting

    async def schedulable(self, lower: str) -> bool:
        """Report whether the node of a lower cluster accepts pods."""
        node = await self.upper.read(f"/api/v1/nodes/{self.nodes[lower]}")
        return not node["spec"].get("unschedulable")


async def deploy(harness: EngineHarness) -> None:
    """Create a Deployment whose pods may run in any lower cluster."""
    labels = {"app": "web"}
    template = harness.template(labels, {"terminationGracePeriodSeconds": 1})
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template}
    path = harness.path("deployments", api="apis/apps/v1")
    await harness.upper.create(path, {"metadata": {"name": "web"}, "spec": spec})


async def moved_to(harness: EngineHarness, lower: str) -> None:
    """Wait until all pods of the Deployment are ready in one lower cluster, and no other pods of it are left."""

    def moved(pods: dict[str, Manifest]) -> bool:
        places = {pod["spec"].get("nodeName") for pod in pods.values()}
        return len(pods) == REPLICAS and places == {harness.nodes[lower]} and all(map(is_ready, pods.values()))

    await harness.upper.until_all(f"{harness.path('pods')}?labelSelector=app%3Dweb", moved, MOVING)


async def on(harness: EngineHarness, lower: str) -> int:
    """Return how many pods of the Deployment are ready on the node of a lower cluster."""
    found = await harness.upper.read(f"{harness.path('pods')}?labelSelector=app%3Dweb")
    return sum(pod["spec"].get("nodeName") == harness.nodes[lower] and is_ready(pod) for pod in found["items"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApprovalProgram]:
    """Start the program, with a Deployment that runs in the first lower cluster."""
    async with running_program(sandbox, tmp_path_factory.mktemp("approved"), ApprovalProgram) as harness:
        await deploy(harness)
        await moved_to(harness, A)
        yield harness


@pytest.mark.parametrize("number", range(TIMES))
async def test_a_large_edit_waits_until_its_hash_is_approved(program: ApprovalProgram, number: int) -> None:
    """The approval is given by the command and by kubectl in turns.

    Before it nothing changes, and the command refuses any other hash.
    """
    source, target = (A, B) if number % 2 == 0 else (B, A)
    text = await program.edit(drained(source), noted(number))
    waiting = await program.waits(text)
    assert (waiting["pods"], waiting["approveOver"]) == (REPLICAS, 1)
    assert f"lowers[{source}].maintenance: none -> drain" in waiting["changes"]
    refused = await program.decide("approve", NOWHERE)
    assert refused.code == 1
    assert digest(text) in refused.err
    assert await program.schedulable(source)
    if number % 2 == 0:
        done = await program.decide("approve", digest(text)[:12])
        assert (done.code, done.err) == (0, "")
    else:
        await program.kubectl("annotate", "configmap", STATUS, f"{APPROVED}={digest(text)}")
    await program.wait_accepted(text)
    await moved_to(program, target)
    found = await program.upper.until(
        program.path("configmaps", STATUS), lambda one: APPROVED not in one["metadata"].get("annotations", {})
    )
    assert "pendingApproval" not in found["data"]


@pytest.mark.parametrize("number", range(TIMES))
async def test_a_rollback_restores_an_earlier_topology_byte_for_byte(program: ApprovalProgram, number: int) -> None:
    """The command prints the changes first, and the engine applies the restored text like any other edit."""
    first, second = [await _accepted(program, edit) for edit in (1000 + number, 2000 + number)]
    done = await program.decide("rollback", "--yes")
    assert (done.code, done.err) == (0, ""), done
    assert f"lowers[{B}].node.annotations.edit: {_quoted(2000 + number)} -> {_quoted(1000 + number)}" in done.out
    kept = await program.upper.read(program.path("configmaps", NAME))
    assert kept["data"][KEY] == first
    await program.wait_accepted(first)
    node = f"/api/v1/nodes/{program.nodes[B]}"
    await program.upper.until(node, lambda one: one["metadata"]["annotations"].get("edit") == str(1000 + number), RIGHT)
    done = await program.decide("rollback", "--to", digest(second)[:12], "--yes")
    assert done.code == 0, done
    await program.wait_accepted(second)


def _quoted(number: int) -> str:
    return f'"{number}"'


async def _accepted(program: ApprovalProgram, number: int) -> str:
    """Edit an annotation, and wait until the edit is accepted and in the history."""
    drains = A if not await program.schedulable(A) else B
    text = await program.edit(drained(drains), noted(number))
    await program.wait_accepted(text)
    path = history_path(program)
    await program.upper.until(path, lambda one: index(one)[-1] == digest(text), RIGHT)
    return text


def history_path(program: Program) -> str:
    """Return the path of the history of the ConfigMap."""
    return program.path("configmaps", f"{NAME}-history")


def index(history: Manifest) -> list[str]:
    """Return the SHA-256 of the texts in a history."""
    return [one["sha256"] for one in orjson.loads(history["data"]["index"])]


async def test_the_history_keeps_ten_topologies_and_rollback_lists_them(program: ApprovalProgram) -> None:
    """The latest one is listed first, and each text has the hash that is its key."""
    history = await program.upper.read(history_path(program))
    assert len(index(history)) == 10
    texts = {key: value for key, value in history["data"].items() if key.endswith(".yaml")}
    assert all(key == f"{digest(value)}.yaml" for key, value in texts.items())
    done = await program.decide("rollback", "--list")
    rows = done.out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [one[:12] for one in reversed(index(history))]
    assert "in force" in rows[0]


async def test_a_rollback_over_the_limit_waits_for_an_approval_too(program: ApprovalProgram) -> None:
    """A rollback is an edit like any other, and the command prints that it has to be approved."""
    now, before = (A, B) if not await program.schedulable(A) else (B, A)
    text = await program.edit(drained(before), noted(1))
    await program.waits(text)
    assert (await program.decide("approve", digest(text))).code == 0
    await program.wait_accepted(text)
    await moved_to(program, now)
    await program.upper.until(history_path(program), lambda one: index(one)[-1] == digest(text), RIGHT)
    done = await program.decide("rollback", "--yes")
    assert "it waits for `tensile approve`" in done.out
    kept = (await program.upper.read(program.path("configmaps", NAME)))["data"][KEY]
    await program.waits(kept)
    assert (await program.decide("approve", digest(kept))).code == 0
    await program.wait_accepted(kept)
    await moved_to(program, before)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
async def test_a_pending_edit_stays_pending_over_a_restart(program: ApprovalProgram, how: signal.Signals) -> None:
    """The engine runs the accepted topology, whether the edit was written before its end or while none was running."""
    drains, other = (A, B) if not await program.schedulable(A) else (B, A)
    accepted = await _accepted(program, 3000 + how)
    text = program.text(LIMITED, drained(other), noted(4000 + how))
    if how == signal.SIGTERM:
        await program.put(text)
        await program.waits(text)
    program.process.send_signal(how)
    await program.process.wait()
    await program.put(text)
    await program.launch_from_configmap()
    await program.waits(text)
    found = read(await program.upper.read(program.path("configmaps", STATUS)))
    assert found["accepted"]["sha256"] == digest(accepted)
    assert await program.schedulable(other)
    await moved_to(program, other)
    assert (await program.decide("approve", digest(text))).code == 0
    await program.wait_accepted(text)
    await moved_to(program, drains)


async def test_a_history_of_another_owner_is_not_touched(program: ApprovalProgram) -> None:
    """The engine emits an Event for the topology's ConfigMap, and continues without a history."""
    path = history_path(program)
    await program.upper.delete(path)
    await program.upper.until(path, bool, RIGHT)
    await program.upper.patch(path, {"metadata": {"labels": {"tensile-kube.io/owner": "somebody"}}, "data": {"x": "y"}})
    before = (await program.upper.read(path))["data"]
    drains = A if not await program.schedulable(A) else B
    text = await program.edit(drained(drains), noted(9000))
    await program.wait_accepted(text)
    await program.wait_for_map_event("HistoryNameConflict", "belongs to another owner")
    assert (await program.upper.read(path))["data"] == before
    done = await program.decide("rollback", "--list")
    assert done.code == 1
    assert "is not an engine's" in done.err
    await program.upper.delete(path)


# A topology file.


class FileApprovalProgram(Program):
    """A program on a file, whose user may write status and history in kube-system, as an administrator can allow."""

    async def grant_roles(self) -> None:
        """Grant this right in addition."""
        await super().grant_roles()
        self.kept = [ref.path() for ref in (status_ref(self.at), history_ref(self.at))]
        names = [path.rpartition("/")[2] for path in self.kept]
        role = {
            "metadata": {"name": self.user},
            "rules": [
                {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"], "resourceNames": names},
            ],
        }
        binding = {
            "metadata": {"name": self.user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.user}],
        }
        base = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system"
        self.granted = [f"{base}/roles/{self.user}", f"{base}/rolebindings/{self.user}"]
        for path, one in zip(self.granted, (role, binding), strict=True):
            await self.upper.create(path.rpartition("/")[0], one)

    @property
    def at(self) -> ConfigMapKey:
        """The place of status and history."""
        return file_place(self.namespace)

    async def command(self, word: str, *arguments: str) -> CommandResult:
        """Run a command on the file."""
        return await run_command([sys.executable, "-m", "tensile", word, "-f", str(self.source), *arguments])

    @property
    def source(self) -> Path:
        """The path of the file."""
        return self.directory / "topology.yaml"


@asynccontextmanager
async def filed(sandbox: Sandbox, directory: Path) -> AsyncIterator[FileApprovalProgram]:
    """Run the program on a file."""
    program = FileApprovalProgram(sandbox, directory)
    try:
        await program.open()
        await program.start(LIMITED, CORDONED)
        yield program
        await program.clear()
    finally:
        for path in (*program.kept, *program.granted):
            await program.upper.delete(path)
        await program.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def file(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FileApprovalProgram]:
    """Start the program on a file, with a Deployment in the first lower cluster and the second one cordoned."""
    async with filed(sandbox, tmp_path_factory.mktemp("filed")) as harness:
        await deploy(harness)
        await moved_to(harness, A)
        yield harness


async def test_an_edit_of_a_file_waits_until_it_is_approved(file: FileApprovalProgram) -> None:
    """Its status is in kube-system, with an Event; the log and `tensile status` show the command that approves it."""
    status, history = file.kept
    before = file.source.read_text()
    await file.upper.until(history, lambda one: index(one) == [digest(before)], RIGHT)
    file.save(LIMITED, drained(A))
    edited = digest(file.source.read_text())
    found = await file.upper.until(status, lambda one: "pendingApproval" in one["data"], RIGHT)
    assert (read(found)["pendingApproval"]["sha256"], found["data"]["state"]) == (edited, "Pending")
    shown = await file.command("status")
    assert f"to approve it: tensile approve {edited[:12]} -f {file.source}" in shown.out
    events = f"/api/v1/namespaces/kube-system/events?fieldSelector=involvedObject.uid={found['metadata']['uid']}"
    await file.upper.until_all(events, lambda found: _has(found, "ApprovalPending"))
    await file.wait_for_log("topology edit waits for an approval")
    assert await on(file, A) == REPLICAS
    done = await file.command("approve", edited)
    assert (done.code, done.err) == (0, "")
    await file.upper.until(status, lambda one: read(one)["accepted"]["sha256"] == edited, RIGHT)
    await file.upper.until(history, lambda one: index(one) == [digest(before), edited], RIGHT)


def _has(events: dict[str, Manifest], reason: str) -> bool:
    return any(one["reason"] == reason for one in events.values())


async def test_a_rollback_of_a_file_keeps_its_mode_and_replaces_unreadable_text(file: FileApprovalProgram) -> None:
    """The rollback also replaces a text that the engine has rejected because it cannot be read."""
    history, before = file.kept[1], file.source.read_text()
    file.save(LIMITED, drained(A), noted(1))
    small = file.source.read_text()
    await file.upper.until(history, lambda one: index(one)[-1] == digest(small), RIGHT)
    file.source.chmod(0o640)
    done = await file.command("rollback", "--yes")
    assert (done.code, file.source.read_text()) == (0, before), done
    assert stat.S_IMODE(file.source.stat().st_mode) == 0o640
    await file.upper.until(history, lambda one: index(one)[-1] == digest(before), RIGHT)
    file.source.write_text(f"name: {file.namespace}\nupper: {{kubeconfig: upper.kubeconfig}}\nlowerz: []\n")
    await file.wait_for_log("topology rejected")
    done = await file.command("rollback", "--to", digest(small)[:12], "--yes")
    assert (done.code, file.source.read_text()) == (0, small), done
    await file.upper.until(history, lambda one: index(one)[-1] == digest(small), RIGHT)
