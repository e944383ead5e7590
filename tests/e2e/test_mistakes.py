"""Tests of twenty mistakes that users make while an engine runs.

The program has to name the cause, and everything has to work again after its advice is followed literally.
"""

import asyncio
import re
import shlex
import socket
import sys
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, CommandResult, Edit, edit_lower, run_command, with_fields, without_lower
from programkit import Program, running_program
from sitekit import LIMIT, Manifest, is_ready

from bench.kit.spareports import spare_port
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS = "apis/apps/v1"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
OFTEN = 0.3
NEW = "lower-x"
"""The new name of a lower."""


class DiagnosedProgram(Program):
    """A program, the commands by which a user diagnoses it, and the files of the topology."""

    async def diagnose(self, *expected: str) -> CommandResult:
        """Run a command of tensile on the topology file; `explain` and `uninstall` as an administrator."""
        path = self.directory / "topology.yaml"
        if expected[0] in ("explain", "uninstall"):
            found = orjson.loads(path.read_bytes())
            for name, entry in ((UPPER, found["upper"]), *((one["name"], one) for one in found["lowers"])):
                entry["kubeconfig"] = str(self.sandbox.directory / f"{name}.kubeconfig")
            path = self.directory / "administrator.yaml"
            path.write_bytes(orjson.dumps(found))
        return await run_command([sys.executable, "-m", "tensile", *expected, "-f", str(path)])

    async def wait_for_diagnosis(self, expected: str, *command: str) -> str:
        """Run a command repeatedly until its output contains these words, and return the output."""
        text = ""
        try:
            async with asyncio.timeout(LIMIT):
                while expected not in text:
                    done = await self.diagnose(*command)
                    text = done.out + done.err
                    await asyncio.sleep(OFTEN)
        except TimeoutError:
            raise AssertionError(f"{expected!r} is not in:\n{text}") from None
        return text

    async def until_done(self, *command: str) -> None:
        """Run a command repeatedly until it exits with code 0."""
        done = CommandResult(1, "", "")
        try:
            async with asyncio.timeout(2 * LIMIT):
                while done.code:
                    done = await self.diagnose(*command)
        except TimeoutError:
            raise AssertionError(f"{command} does not succeed: {done.out}{done.err}") from None

    async def until_well(self, *lowers: str) -> None:
        """Wait until the status shows that these lowers (default: all) are Ready, and that nothing is pending."""
        report: Manifest = {}
        try:
            async with asyncio.timeout(2 * LIMIT):
                while not _is_well(report, lowers or self.lowers):
                    await asyncio.sleep(OFTEN)
                    done = await self.diagnose("status", "-o", "json")
                    report = orjson.loads(done.out) if done.code == 0 else {}
        except TimeoutError:
            raise AssertionError(f"not well: {report}") from None

    async def restart(self, *edits: Edit) -> None:
        """Stop the program and start it again."""
        await self.stop()
        self.process = await self.launch(self.save(*edits), self.log)

    async def refused(self) -> str:
        """Start another program on the file, which has to exit with code 1, and return its log."""
        log = self.directory / "refused.log"
        process = await self.launch(self.directory / "topology.yaml", log)
        async with asyncio.timeout(LIMIT):
            assert await process.wait() == 1
        return log.read_text()

    def replace(self, name: str, before: str, after: str) -> None:
        """Replace a text in the kubeconfig of a cluster."""
        path = self.directory / f"{name}.kubeconfig"
        text = path.read_text()
        assert before in text
        written = path.with_suffix(".new")
        written.write_text(text.replace(before, after))
        written.rename(path)

    def give(self, name: str, text: str) -> None:
        """Replace the kubeconfig of a cluster."""
        path = self.directory / f"{name}.kubeconfig"
        written = path.with_suffix(".new")
        written.write_text(text)
        written.rename(path)

    async def deployed(self, name: str, count: int, lower: str = "") -> list[str]:
        """Run a Deployment, on the node of a lower if one is named, and return the UIDs of its pods."""
        labels = {"app": name}
        chosen = {"nodeSelector": {"e2e": self.mark, "kubernetes.io/hostname": self.nodes[lower]}} if lower else {}
        template = self.template(labels, {"terminationGracePeriodSeconds": 1, **chosen})
        spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": template}
        await self.upper.create(self.path("deployments", api=APPS), {"metadata": {"name": name}, "spec": spec})
        pods = await self.upper.until_all(self.of(name), lambda found: sum(map(is_ready, found.values())) == count)
        return [one["metadata"]["uid"] for one in pods.values()]

    def of(self, name: str) -> str:
        """Return the query for the pods of a Deployment."""
        return f"{self.path('pods')}?labelSelector=app%3D{name}"

    async def undeploy(self, name: str) -> None:
        """Delete a Deployment, and wait until its pods are deleted."""
        await self.upper.delete(self.path("deployments", name, APPS) + "?propagationPolicy=Background")
        await self.upper.until_all(self.of(name), lambda found: not found)


def renamed_lower(**fields: Manifest) -> Edit:
    """Return an edit that changes fields of the second lower, and its name."""

    def edit(file: Manifest) -> None:
        edit_lower(B, **fields)(file)
        next(one for one in file["lowers"] if one["name"] == B)["name"] = NEW

    return edit


def _is_well(report: Manifest, lowers: tuple[str, ...]) -> bool:
    states = {one["name"]: one["state"] for one in report.get("lowers", ())}
    accepted = report.get("accepted") or {}
    is_told = "rejected" in report or accepted.get("pending") or accepted.get("restartNeeded")
    return bool(accepted) and not is_told and all(states.get(name) == "Ready" for name in lowers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DiagnosedProgram]:
    """Start a program on the sandbox's clusters."""
    async with running_program(sandbox, tmp_path_factory.mktemp("mistakes"), DiagnosedProgram) as harness:
        yield harness


# Mistakes of the first day.


async def test_1_the_status_names_a_kubeconfig_that_does_not_exist(harness: DiagnosedProgram) -> None:
    """The engine keeps the last good connection."""
    await harness.reload(edit_lower(B, kubeconfig="gone.kubeconfig"))
    text = await harness.wait_for_diagnosis("gone.kubeconfig: cannot be read (No such file or directory)", "status")
    assert "check the path and its permissions; the last good connection is kept" in text
    (harness.directory / "gone.kubeconfig").write_text((harness.directory / f"{B}.kubeconfig").read_text())
    await harness.until_well()
    await harness.reload()
    await harness.until_well()


async def test_2_doctor_names_the_kubeconfig_with_a_wrong_port(harness: DiagnosedProgram) -> None:
    """No program listens on that port, so the connection is refused."""
    good = harness.sandbox.clusters[B].server
    harness.replace(B, good, f"https://127.0.0.1:{spare_port()}")
    await harness.wait_for_diagnosis("Connection refused", "status")
    text = (await harness.diagnose("doctor")).out
    assert "cannot be connected to (Connection refused)" in text
    assert f"or correct `server` in {harness.directory / B}.kubeconfig" in text
    harness.replace(B, re.findall(r"https://[0-9.:]+", (harness.directory / f"{B}.kubeconfig").read_text())[0], good)
    await harness.until_well()


async def test_3_doctor_prints_the_command_that_replaces_a_revoked_token(harness: DiagnosedProgram) -> None:
    """The account was deleted and created again, so its old token is not valid any more."""
    site, name = harness.sites[B], f"mistaken-{harness.mark}"
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    await site.create(f"{RIGHTS}/clusterrolebindings", binding)
    await site.create(accounts, {"metadata": {"name": name}})
    answer = await site.call("POST", f"{accounts}/{name}/token", {"spec": {}})
    token = answer["status"]["token"]
    await site.delete(f"{accounts}/{name}")
    await site.create(accounts, {"metadata": {"name": name}})
    good = (harness.directory / f"{B}.kubeconfig").read_text()
    user = re.search(r"client-certificate-data: .*\n +client-key-data: .*", good)
    assert user is not None
    harness.give(B, good.replace(user[0], f"token: {token}"))
    await harness.wait_for_diagnosis("Unauthorized", "status")
    text = (await harness.diagnose("doctor")).out
    assert "the token is damaged, of another cluster, or revoked" in text
    found = re.search(r"kubectl -n default create token \S+", text)
    assert found is not None
    done = await run_command(harness.sandbox.kubectl_command(*found[0].split()[1:], cluster=B))
    harness.give(B, good.replace(user[0], f"token: {done.out.strip()}"))
    await harness.until_well()
    harness.give(B, good)
    await harness.until_well()
    await site.delete(f"{accounts}/{name}")
    await site.delete(f"{RIGHTS}/clusterrolebindings/{name}")


async def test_4_doctor_prints_the_commands_that_grant_missing_permissions(harness: DiagnosedProgram) -> None:
    """Once they are run, the lower cluster is Ready."""
    good = (harness.directory / f"{B}.kubeconfig").read_text()
    harness.give(B, harness.kubeconfig(B, f"nobody-{harness.mark}", ()))
    await harness.wait_for_diagnosis("is forbidden", "status")
    found = orjson.loads((await harness.diagnose("doctor", "-o", "json")).out)
    (needed,) = (
        one
        for cluster in found["clusters"]
        for one in cluster["findings"]
        if (cluster["name"], one["check"], one["level"]) == (B, "rights", "fail")
    )
    commands = [shlex.split(line) for line in "\n".join(needed["advice"]).splitlines() if line.startswith("kubectl ")]
    for _, *arguments in commands:
        done = await run_command(harness.sandbox.kubectl_command(*arguments, cluster=B))
        assert done.code == 0, done.err
    await harness.until_well()
    harness.give(B, good)
    for _, _, kind, name, *_ in commands:
        await harness.sites[B].delete(f"{RIGHTS}/{kind}s/{name}")
    await harness.until_well()


async def test_5_the_log_and_the_status_name_the_key_of_a_port_that_is_taken(harness: DiagnosedProgram) -> None:
    """The engine works again after another telemetry.port or webhook.port is set."""
    await harness.stop()
    with socket.create_server(("127.0.0.1", harness.file()["telemetry"]["port"])):
        assert "another program uses this port: stop it, or set telemetry.port" in await harness.refused()
        moved = with_fields(telemetry={"bind": "127.0.0.1", "port": spare_port()})
        harness.process = await harness.launch(harness.save(moved), harness.log)
        await harness.until_well()
    await harness.restart()
    await harness.until_well()
    taken, free = spare_port(), spare_port()
    with socket.create_server(("127.0.0.1", taken)):
        await harness.reload(with_fields(webhook=_webhook_at(taken)))
        expected = "stop that program, or set another webhook.port, also in webhook.url, and restart the engine"
        await harness.wait_for_diagnosis(expected, "status")
        await harness.restart(with_fields(webhook=_webhook_at(free)))
        await harness.until_well()
    await harness.restart()
    await harness.until_well()


async def test_6_a_second_engine_of_one_topology_does_not_start(harness: DiagnosedProgram) -> None:
    """Its log advises to stop the first one."""
    error = await harness.refused()
    assert f"an engine of topology {harness.namespace} on this machine already uses telemetry port" in error
    assert "stop it first" in error
    await harness.restart()
    await harness.until_well()


async def test_7_the_node_of_a_removed_lower_stays_while_it_has_pods(harness: DiagnosedProgram) -> None:
    """Status and plan advise to put the lower back and to drain it."""
    await harness.deployed("leaving", 4)
    harness.save(without_lower(B))
    text = await harness.wait_for_diagnosis("put it back with maintenance: drain", "status")
    assert "removed from the topology" in text
    assert f"node {harness.nodes[B]}, whose lower was removed, stays until" in (await harness.diagnose("plan")).out
    await harness.reload(edit_lower(B, maintenance="drain"))
    await harness.wait_for_diagnosis("Drained", "status")
    await harness.reload(without_lower(B))
    await harness.upper.gone(f"/api/v1/nodes/{harness.nodes[B]}")
    await harness.undeploy("leaving")
    await harness.reload()
    await harness.until_well()


async def test_8_status_and_plan_advise_to_keep_the_node_name_of_a_renamed_lower(harness: DiagnosedProgram) -> None:
    """With that node name, the pods run on under the lower's new name."""
    before = await harness.deployed("kept", 2, B)
    renamed = renamed_lower(node={"name": f"{harness.nodes[B]}-new"})
    harness.save(renamed)
    remedy = f"to keep them, write node: {{name: {harness.nodes[B]}}} for lower {NEW}"
    await harness.wait_for_diagnosis(remedy, "status")
    assert remedy in (await harness.diagnose("plan")).out
    await harness.reload(renamed_lower())
    await harness.until_well(A, NEW)
    await harness.reload()
    await harness.until_well()
    pods = await harness.upper.until_all(harness.of("kept"), lambda found: all(map(is_ready, found.values())))
    assert sorted(one["metadata"]["uid"] for one in pods.values()) == sorted(before)
    await harness.undeploy("kept")


async def test_9_status_and_validate_name_the_missing_address_of_a_webhook(harness: DiagnosedProgram) -> None:
    """The webhook is registered once it has an address."""
    port = spare_port()
    await harness.reload(with_fields(webhook={"enabled": True, "bind": "127.0.0.1", "port": port}))
    expected = "set webhook.service or webhook.url"
    assert expected in (await harness.diagnose("validate")).err
    await harness.wait_for_diagnosis(expected, "status")
    await harness.reload(with_fields(webhook=_webhook_at(port)))
    await harness.until_well()
    assert "webhook" not in "".join(re.findall("^FAIL.*$", (await harness.diagnose("doctor")).out, re.MULTILINE))
    await harness.reload()
    await harness.until_well()


async def test_10_the_status_reports_an_unknown_key_in_the_topology_file(harness: DiagnosedProgram) -> None:
    """The last good topology stays in force."""
    await harness.reload(edit_lower(B, maintenanc="cordon"))
    text = await harness.wait_for_diagnosis("the last good topology stays in force", "status")
    assert "unknown key; did you mean maintenance?" in text
    await harness.reload(edit_lower(B, maintenance="cordon"))
    await harness.wait_for_diagnosis("Cordoned", "status")
    await harness.reload()
    await harness.until_well()


# Ten more mistakes.


async def explained(harness: DiagnosedProgram, pod: str, why: str, advice: str) -> None:
    """Wait until `explain pod` names a cause and a remedy."""
    text = await harness.wait_for_diagnosis(why, "explain", "pod", pod, "-n", harness.namespace)
    assert advice in text, text


async def test_11_explain_names_the_taint_that_a_pod_does_not_tolerate(harness: DiagnosedProgram) -> None:
    """The advised label `virtual-pod` is enough to run the pod."""
    body = {"metadata": {"name": "plain"}, "spec": harness.template({})["spec"] | {"tolerations": []}}
    await harness.upper.create(harness.path("pods"), body)
    await explained(harness, "plain", "node(s) had untolerated taint(s)", 'or label it virtual-pod: "true"')
    await harness.upper.patch(harness.pod_path("plain"), {"metadata": {"labels": {"virtual-pod": "true"}}})
    await harness.upper.until(harness.pod_path("plain"), is_ready)
    await harness.end_pods("plain")


async def test_12_explain_names_a_config_map_that_does_not_exist(harness: DiagnosedProgram) -> None:
    """The pod starts once the ConfigMap is created."""
    await harness.bind("lacking", {"volumes": [{"name": "v", "configMap": {"name": "settings"}}]})
    expected = f"ConfigMap {harness.namespace}/settings does not exist in the upper cluster"
    await explained(harness, "lacking", expected, "-> create the ConfigMap in the upper cluster")
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": "settings"}})
    await harness.upper.until(harness.pod_path("lacking"), is_ready)
    await harness.end_pods("lacking")


async def test_13_explain_names_the_exceeded_quota_of_a_lower_cluster(harness: DiagnosedProgram) -> None:
    """The pod starts once the quota is raised."""
    await harness.run_pod("first")
    quotas = harness.path("resourcequotas")
    await harness.sites[A].create(quotas, {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}})
    await harness.sites[A].until(f"{quotas}/tight", lambda one: (one.get("status") or {}).get("used"))
    await harness.bind("second")
    await explained(harness, "second", "exceeded quota: tight", f"-> raise the quota in {A}, or delete pods there")
    await harness.sites[A].patch(f"{quotas}/tight", {"spec": {"hard": {"pods": "2"}}})
    await harness.upper.until(harness.pod_path("second"), is_ready)
    await harness.end_pods("first", "second")


async def test_14_explain_advises_to_reduce_the_requests_of_a_pod_that_fits_on_no_real_node(
    harness: DiagnosedProgram,
) -> None:
    """The virtual node has room for the pod only in sum."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "40"}}}
    await harness.bind("large", {"containers": [container]})
    await explained(harness, "large", "Insufficient cpu", "-> reduce the requests of the pod")
    await harness.end_pods("large")
    await harness.run_pod("large")
    await harness.end_pods("large")


async def test_15_the_status_names_a_context_that_the_kubeconfig_does_not_define(harness: DiagnosedProgram) -> None:
    """`kubectl config get-contexts` lists the defined ones."""
    await harness.reload(edit_lower(B, context="production"))
    text = await harness.wait_for_diagnosis("context 'production': no context has this name (1 defined)", "status")
    assert "the last good connection is kept" in text
    config = ["config", "get-contexts", "-o", "name", "--kubeconfig", str(harness.directory / f"{B}.kubeconfig")]
    (name,) = (await run_command([harness.sandbox.kubectl_command()[0], *config])).out.split()
    await harness.reload(edit_lower(B, context=name))
    await harness.until_well()
    await harness.reload()
    await harness.until_well()


async def test_16_the_status_advises_against_one_kubeconfig_for_two_lowers(harness: DiagnosedProgram) -> None:
    """The status names the second lower and the kubeconfig, and `validate` reports that it is the same cluster."""
    good = edit_lower(B, kubeconfig=f"{A}.kubeconfig")
    await harness.reload(good)
    expected = f"use the kubeconfig of another cluster than {harness.directory / A}.kubeconfig"
    text = await harness.wait_for_diagnosis(expected, "status")
    assert f"{B}: " in text
    assert "is the same cluster" in (await harness.diagnose("validate")).err
    await harness.reload()
    await harness.until_well()


async def test_17_a_plan_advises_to_restore_the_name_of_a_renamed_topology(harness: DiagnosedProgram) -> None:
    """Under the former name, the topology owns its objects again."""
    other = with_fields(name=f"{harness.namespace}-new")
    await harness.restart(other)
    await harness.wait_for_log("belongs to topology")
    await harness.wait_for_diagnosis(f"if this topology was renamed, set `name: {harness.namespace}` again", "plan")
    await harness.restart()
    await harness.until_well()


async def test_18_explain_advises_recreate_bare_pods_for_a_bare_pod_that_blocks_a_drain(
    harness: DiagnosedProgram,
) -> None:
    """With that field, the pod is created again in the other lower cluster."""
    await harness.upper.create(
        harness.path("pods"), {"metadata": {"name": "bare"}, "spec": harness.template({})["spec"] | _soon_gone()}
    )
    bound = (await harness.upper.until(harness.pod_path("bare"), is_ready))["spec"]["nodeName"]
    source = next(name for name, node in harness.nodes.items() if node == bound)
    drain = edit_lower(source, maintenance="drain")
    await harness.reload(drain)
    advice = "-> delete it, or set `descheduler.recreateBarePods`"
    await explained(harness, "bare", "and it stays, as it has no controller", advice)
    await harness.reload(drain, with_fields(descheduler={"recreateBarePods": True}))
    await harness.wait_for_diagnosis("Drained", "status")
    moved = await harness.upper.until_all(harness.path("pods"), lambda found: any(map(is_ready, found.values())))
    assert {one["spec"]["nodeName"] for one in moved.values()} == {harness.nodes[B if source == A else A]}
    await harness.end_pods(*(one["metadata"]["name"] for one in moved.values()))
    await harness.reload()
    await harness.until_well()


async def test_19_doctor_names_the_right_ca_if_a_kubeconfig_has_that_of_another_cluster(
    harness: DiagnosedProgram,
) -> None:
    """It prints the wrong CA of the kubeconfig and the CA that issued the server's certificate."""
    good, foreign = (harness.directory / f"{B}.kubeconfig").read_text(), harness.kubeconfig(A, "x")
    pattern = r"certificate-authority-data: (\S+)"
    mine, other = (re.findall(pattern, text)[0] for text in (good, foreign))
    harness.give(B, good.replace(mine, other))
    await harness.wait_for_diagnosis("is not trusted", "status")
    text = (await harness.diagnose("doctor")).out
    assert f"the CA in {harness.directory / B}.kubeconfig is CN={A}-ca" in text
    assert f"the certificate is by CN={B}-ca: put that CA there" in text
    harness.give(B, good)
    await harness.until_well()


async def test_20_uninstall_is_refused_while_pods_are_bound_or_the_engine_runs(harness: DiagnosedProgram) -> None:
    """It succeeds after the pods are deleted and the engine is stopped."""
    await harness.run_pod("last")
    done = await harness.diagnose("uninstall", "--yes")
    assert done.code == 1
    assert f"not uninstalled:\n1 pod is bound to node {harness.nodes[A]}" in done.err
    assert f"set `maintenance: drain` for lower {A}" in done.err
    assert "delete pods without a controller" in done.err
    assert "an engine renews the lease" in done.err
    assert "then stop it (Ctrl-C or SIGTERM" in done.err
    await harness.end_pods("last")
    await harness.stop()
    await harness.until_done("uninstall", "--yes")
    await harness.upper.gone(*(f"/api/v1/nodes/{node}" for node in harness.nodes.values()))
    harness.process = await harness.launch(harness.save(), harness.log)
    await harness.until_well()


def _webhook_at(port: int) -> Manifest:
    return {"enabled": True, "bind": "127.0.0.1", "port": port, "url": f"https://127.0.0.1:{port}"}


def _soon_gone() -> Manifest:
    return {"terminationGracePeriodSeconds": 1}
