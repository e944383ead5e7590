"""Tests of candidates on real clusters: the running engine plans them as `tensile plan` does.

The account that proposes them has few rights: the Role that `tensile manifests` writes. It uses kubectl as
docs/howto/plans-in-ci.md does.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest
import pytest_asyncio
from enginekit import A, B, CommandResult, edit_lower, run_command, without_lower
from mapkit import KEY, NAME, STATUS, MapProgram, digest
from plankit import planned_changes, without_capacity_changes
from programkit import running_program
from sitekit import LIMIT, Manifest, is_ready

from bench.kit.rbac import grant, path_of, split_rule
from tensile.deploy.setup import candidate_roles
from tensile.names import HISTORY_SUFFIX
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

CANDIDATE, PLAN = f"{NAME}-candidate", f"{NAME}-plan"
APPS, POLICY = "apis/apps/v1", "apis/policy/v1"
CONTENT = "cGxhbm5lZC1zZWNyZXQ="


class CandidateProgram(MapProgram):
    """A program on a ConfigMap, to which candidates are proposed."""

    async def propose(self, text: str) -> Manifest:
        """Create or update the candidate."""
        return await self.apply("configmaps", CANDIDATE, {"data": {KEY: text}})

    async def plan_of(self, text: str, in_force: str = "") -> dict[str, str]:
        """Wait for the plan of a candidate against a topology in force, and return the data of NAME-plan."""
        wanted = {"candidateHash": digest(text), "topologyHash": digest(in_force or self.text())}
        found = await self.upper.until(self.path("configmaps", PLAN), lambda one: bool(one) and _has(one, wanted))
        return dict(found["data"])

    async def withdraw(self) -> None:
        """Delete the candidate, and wait until its plan is deleted."""
        await self.upper.delete(self.path("configmaps", CANDIDATE))
        await self.upper.gone(self.path("configmaps", PLAN))


def _has(found: Manifest, wanted: dict[str, str]) -> bool:
    return all((found.get("data") or {}).get(key) == value for key, value in wanted.items())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CandidateProgram]:
    """Start the program on a ConfigMap, with its history, and with a pod in the first lower that uses a Secret."""
    async with running_program(sandbox, tmp_path_factory.mktemp("candidate"), CandidateProgram) as harness:
        await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "key"}, "data": {"key": CONTENT}})
        await harness.run_pod("web", {"volumes": [{"name": "key", "secret": {"secretName": "key"}}]})
        await harness.upper.until(harness.path("configmaps", f"{NAME}{HISTORY_SUFFIX}"), bool)
        yield harness


async def commanded(program: CandidateProgram, *arguments: str, name: str = NAME, user: str = "upper") -> CommandResult:
    """Run a command on a ConfigMap of the namespace, with the kubeconfig of the engine or of another user."""
    where = [
        "--configmap",
        f"{program.namespace}/{name}",
        "--kubeconfig",
        str(program.directory / f"{user}.kubeconfig"),
    ]
    command = program.command("plan")[:3]
    return await run_command([*command, *arguments, *where])


@pytest.mark.parametrize(
    "edit",
    [
        edit_lower(B, node={"labels": {"candidate": "1"}}),
        edit_lower(A, maintenance="drain"),
        edit_lower(A, node={"taints": [{"key": "only", "value": "some", "effect": "NoSchedule"}]}),
    ],
    ids=["label", "drain", "taint"],
)
async def test_the_engine_plans_the_same_changes_as_the_command(program: CandidateProgram, edit: Any) -> None:
    """The engine plans from its own caches, and writes nothing to any cluster but the plan and its status."""
    text = program.text(edit)
    await program.mark_audit_logs()
    await program.propose(text)
    data = await program.plan_of(text)
    assert [one for one in await program.writes() if one.name not in (PLAN, STATUS)] == []
    done = await commanded(program, "plan", "-o", "json", name=CANDIDATE)
    assert done.code == 2, done.err
    plan, other = orjson.loads(data["plan.json"]), orjson.loads(done.out)
    assert plan.keys() == other.keys()
    for one in (plan, other):
        one["changes"] = without_capacity_changes(one["changes"])
    assert planned_changes(plan) == planned_changes(other) != set()
    assert plan["cost"] == other["cost"]
    assert data["plan.md"].startswith("```diff\n")
    assert CONTENT not in str(data)
    await program.withdraw()


async def test_the_status_page_plans_a_pasted_topology(program: CandidateProgram) -> None:
    """The page shows the plan of the command, without the Secret's content; the topology is not stored anywhere."""
    await program.mark_audit_logs()
    url = f"http://127.0.0.1:{program.file()['telemetry']['port']}"
    form, own = {"topology": program.text(edit_lower(A, maintenance="drain"))}, {"Origin": url}
    async with aiohttp.ClientSession(url) as session, session.post("/topology", data=form, headers=own) as answer:
        page = unescape(await answer.text())
    assert "spec.unschedulable: set to true" in page
    assert f"pods block the drain: {program.namespace}/web" in page
    assert "Plan: 0 to add, 1 to change, 0 to delete" in page
    assert CONTENT not in page
    assert [one for one in await program.writes() if one.name != STATUS] == []


async def test_the_cost_of_an_edit_names_the_disruption_budgets_of_evicted_pods(program: CandidateProgram) -> None:
    """The engine lists the budgets that cover pods which would be evicted."""
    labels = {"app": "covered"}
    template = program.template(labels, {"nodeName": program.nodes[A]})
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    deployments, budgets = program.path("deployments", api=APPS), program.path("poddisruptionbudgets", api=POLICY)
    await program.upper.create(deployments, {"metadata": {"name": "covered"}, "spec": spec})
    budget = {"minAvailable": 0, "selector": {"matchLabels": labels}}
    await program.upper.create(budgets, {"metadata": {"name": "covering"}, "spec": budget})
    await program.upper.until_all(
        f"{program.path('pods')}?labelSelector=app%3Dcovered",
        lambda pods: bool(pods) and all(map(is_ready, pods.values())),
    )
    text = program.text(edit_lower(A, maintenance="drain"))
    await program.propose(text)
    cost = orjson.loads((await program.plan_of(text))["plan.json"])["cost"]
    assert cost["unknownBudgets"] == ""
    assert [(one["name"], one["pods"]) for one in cost["budgets"]] == [("covering", 1)]
    await program.upper.delete(f"{deployments}/covered")
    await program.upper.delete(f"{budgets}/covering")
    await program.withdraw()


async def test_the_plan_of_a_candidate_deletes_the_node_of_a_removed_lower(program: CandidateProgram) -> None:
    """The engine deletes the empty node; a command could not plan the objects of a lower without its kubeconfig."""
    text = program.text(without_lower(B))
    await program.propose(text)
    plan = orjson.loads((await program.plan_of(text))["plan.json"])
    assert ("delete", "Node", program.nodes[B]) in {
        (one["action"], one["kind"], one["name"]) for one in plan["changes"]
    }
    await program.withdraw()


async def test_a_new_lower_is_listed_as_unreached_and_the_rest_is_planned(program: CandidateProgram) -> None:
    """The engine reads no Secret that a candidate refers to."""
    secret = {"namespace": program.namespace, "name": "secret-of-nobody"}
    new = {"name": "new", "kubeconfigSecret": secret, "node": {"name": f"{program.namespace}-new"}}
    text = program.text(lambda file: file["lowers"].append(new), edit_lower(B, node={"labels": {"candidate": "2"}}))
    await program.propose(text)
    data = await program.plan_of(text)
    plan = orjson.loads(data["plan.json"])
    assert [one["lower"] for one in plan["unreached"]] == ["new"]
    assert "secret-of-nobody" not in str(data)
    assert program.nodes[B] in {one["name"] for one in plan["changes"]}
    assert data["plan.md"].endswith("; not planned: new)")
    await program.withdraw()


async def test_the_plan_of_an_invalid_candidate_is_an_error_with_its_position(program: CandidateProgram) -> None:
    """The topology in force stays, and the next valid candidate is planned."""
    bad = program.text().replace('"lowers"', '"lowerz"')
    await program.propose(bad)
    data = await program.plan_of(bad)
    assert f"configmap/{program.namespace}/{CANDIDATE}/{KEY}:" in data["error"]
    assert "lowerz: unknown key; did you mean lowers?" in data["error"]
    assert "plan.json" not in data
    text = program.text(edit_lower(B, node={"labels": {"candidate": "3"}}))
    await program.propose(text)
    assert "error" not in await program.plan_of(text)
    await program.withdraw()


async def test_a_candidate_is_planned_again_once_it_is_in_force(program: CandidateProgram) -> None:
    """The new plan has no changes, because all of them are in force."""
    text = program.text(edit_lower(B, node={"labels": {"candidate": "4"}}))
    await program.propose(text)
    before = orjson.loads((await program.plan_of(text))["plan.json"])
    assert without_capacity_changes(before["changes"])
    await program.put(text)
    after = orjson.loads((await program.plan_of(text, in_force=text))["plan.json"])
    assert without_capacity_changes(after["changes"]) == []
    await program.reload()
    await program.wait_accepted(program.text())
    await program.withdraw()


async def test_the_plan_is_recreated_if_deleted_and_deleted_with_its_candidate(program: CandidateProgram) -> None:
    """A plan that was deleted before its candidate is created again with a new UID."""
    text = program.text(edit_lower(B, node={"labels": {"candidate": "5"}}))
    await program.propose(text)
    await program.plan_of(text)
    first = await program.upper.read(program.path("configmaps", PLAN))
    await program.upper.delete(program.path("configmaps", PLAN))
    await program.upper.until(
        program.path("configmaps", PLAN), lambda one: one and one["metadata"]["uid"] != first["metadata"]["uid"]
    )
    await program.withdraw()


async def test_a_plan_config_map_of_another_owner_is_reported_and_not_touched(program: CandidateProgram) -> None:
    """An Event on the candidate reports the conflict; once the other ConfigMap is deleted, the plan is written."""
    theirs = await program.apply("configmaps", PLAN, {"data": {"mine": "yes"}})
    text = program.text(edit_lower(B, node={"labels": {"candidate": "6"}}))
    await program.propose(text)
    event = await program.wait_for_map_event(
        "PlanNameConflict", f"ConfigMap {program.namespace}/{PLAN} belongs", CANDIDATE
    )
    assert event["type"] == "Warning"
    assert await program.upper.read(program.path("configmaps", PLAN)) == theirs
    await program.upper.delete(program.path("configmaps", PLAN))
    await program.plan_of(text)
    await program.withdraw()


class Account(NamedTuple):
    """A user with the Role of the CI account, and its kubeconfig."""

    program: CandidateProgram
    kubeconfig: Path

    async def kubectl(self, *arguments: str, stdin: str = "") -> CommandResult:
        """Run kubectl as that user in the namespace."""
        (kubectl, *_) = self.program.sandbox.kubectl_command()
        where = (f"--kubeconfig={self.kubeconfig}", "-n", self.program.namespace)
        return await run_command([kubectl, *where, *arguments], stdin=stdin)

    async def propose(self, text: str) -> CommandResult:
        """Write the candidate."""
        candidate = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CANDIDATE}, "data": {KEY: text}}
        return await self.kubectl("apply", "--server-side", "-f", "-", stdin=orjson.dumps(candidate).decode())

    async def planned(self, text: str) -> CommandResult:
        """Read the plan until it belongs to the candidate; return early on any other error than NotFound."""
        async with asyncio.timeout(LIMIT):
            while True:
                done = await self.kubectl("get", "configmap", PLAN, "-o", "json")
                if done.code and "NotFound" not in done.err:
                    return done
                if not done.code and _has(orjson.loads(done.out), {"candidateHash": digest(text)}):
                    return done

    async def withdraw(self) -> CommandResult:
        """Delete the candidate."""
        return await self.kubectl("delete", "configmap", CANDIDATE, "--wait=false")

    async def proposal(self, text: str, change: str) -> CommandResult:
        """Propose, change, read and withdraw a candidate; return the first step that fails, or the last one."""
        done = await self.propose(text)
        done = done if done.code else await self.propose(change)
        done = done if done.code else await self.planned(change)
        return done if done.code else await self.withdraw()


@asynccontextmanager
async def account(
    program: CandidateProgram, name: str, missing: tuple[str, str] | None = None
) -> AsyncIterator[Account]:
    """Grant a user the rendered Role, without one verb on one ConfigMap if `missing` names it."""
    user = f"{program.namespace}-{name}"
    objects = candidate_roles(program.namespace, namespace=program.namespace, configmap=NAME)[1:]
    for one in objects:
        one["metadata"] = {**one["metadata"], "name": name}
        if "rules" in one:
            rules = [single for rule in one["rules"] for single in split_rule(rule)]
            one["rules"] = [single for single in rules if (single["resourceNames"][0], single["verbs"][0]) != missing]
        else:
            one["roleRef"] = {**one["roleRef"], "name": name}
    path = program.directory / f"{name}.kubeconfig"
    path.write_text(program.kubeconfig("upper", user, ()))
    await grant(program.upper, objects, user)
    try:
        yield Account(program, path)
    finally:
        for one in objects:
            await program.upper.delete(path_of(one))


async def test_the_ci_account_proposes_reads_and_withdraws_a_candidate(program: CandidateProgram) -> None:
    """The account needs kubectl alone, and leaves no plan behind."""
    first, second = (program.text(edit_lower(B, node={"labels": {"candidate": one}})) for one in ("7", "7b"))
    async with account(program, "ci") as ci:
        assert (await ci.propose(first)).code == 0
        assert (await ci.propose(second)).code == 0
        read = await ci.planned(second)
        assert orjson.loads(read.out)["data"]["plan.md"].startswith("```diff\n")
        assert (await ci.withdraw()).code == 0
    await program.upper.gone(program.path("configmaps", PLAN))


def verbs() -> Iterator[tuple[str, str]]:
    """Yield each verb on each ConfigMap that the Role of the CI account contains."""
    _, role, _ = candidate_roles("any", namespace="any", configmap=NAME)
    for rule in role["rules"]:
        for single in split_rule(rule):
            yield single["resourceNames"][0], single["verbs"][0]


@pytest.mark.parametrize("missing", [*verbs()], ids="-".join)
async def test_the_ci_account_needs_each_right_of_its_role(program: CandidateProgram, missing: tuple[str, str]) -> None:
    """Without any single right the pipeline fails, because the apiserver forbids that very request."""
    name, verb = missing
    texts = (program.text(edit_lower(B, node={"labels": {"candidate": f"8-{verb}-{one}"}})) for one in ("a", "b"))
    async with account(program, f"less-{verb}", missing) as ci:
        failed = await ci.proposal(*texts)
    assert failed.code == 1, failed
    assert f'"{name}" is forbidden' in failed.err
    assert f'cannot {verb} resource "configmaps"' in failed.err
    if await program.upper.read(program.path("configmaps", CANDIDATE)):
        await program.withdraw()


async def test_the_ci_account_has_no_other_rights(program: CandidateProgram) -> None:
    """It may not read its candidate, write the plan, the topology or its status, or read Secrets and pods."""
    async with account(program, "ci-only") as ci:
        refused = [
            *((verb, "configmaps") for verb in ("get", "list", "watch", "create")),
            *((verb, f"configmaps/{CANDIDATE}") for verb in ("get", "list", "watch", "update")),
            *((verb, f"configmaps/{PLAN}") for verb in ("list", "watch", "create", "update", "patch", "delete")),
            *((verb, f"configmaps/{name}") for verb in ("get", "patch", "delete") for name in (NAME, f"{NAME}-status")),
            *((verb, kind) for verb in ("get", "list", "create") for kind in ("secrets", "pods", "nodes", "events")),
        ]
        answers = await asyncio.gather(*(ci.kubectl("auth", "can-i", verb, what) for verb, what in refused))
        assert {what: done.out.split()[0] for what, done in zip(refused, answers, strict=True)} == dict.fromkeys(
            refused, "no"
        )


async def test_commands_read_the_topology_from_the_config_map(program: CandidateProgram) -> None:
    """They read the kubeconfigs of the lowers from their Secrets.

    `explain` also lists events, which an administrator may do.
    """
    (program.directory / "person.kubeconfig").write_text(program.kubeconfig("upper", "person"))
    await program.reload()
    await program.wait_accepted(program.text())
    planned, listed, node, pod, removal = await asyncio.gather(
        commanded(program, "plan", "-o", "json"),
        commanded(program, "list", "-o", "json"),
        commanded(program, "explain", "node", program.nodes[A], "-o", "json", user="person"),
        commanded(program, "explain", "pod", f"{program.namespace}/web", "-o", "json", user="person"),
        commanded(program, "uninstall", "--plan", "-o", "json"),
    )
    assert without_capacity_changes(orjson.loads(planned.out)["changes"]) == []
    assert ("lower-a", "Pod", "web") in {
        (one["cluster"], one["kind"], one["name"]) for one in orjson.loads(listed.out)["items"]
    }
    assert (node.code, pod.code) == (0, 0), (node, pod)
    assert removal.code in (0, 2), removal
    assert any("is bound to node" in obstacle for obstacle in orjson.loads(removal.out)["obstacles"])
    await program.put(program.text(edit_lower(B, node={"labels": {"candidate": "9"}})))
    applied = await commanded(program, "apply", "--yes")
    assert applied.code == 0, applied
    assert applied.out.splitlines()[-1].startswith("Applied: ")
    await program.reload()
