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
from enginekit import UPPER, A, B, Done, Edit, edit_lower, ran, with_fields, without_lower
from programkit import Program, served
from sitekit import LIMIT, Manifest, is_ready

from bench.kit.spareports import spare_port
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

APPS = "apis/apps/v1"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
OFTEN = 0.3
NEW = "lower-x"
"""The new name of a lower."""


class Mistaken(Program):
    """A program, the commands by which a user diagnoses it, and the files of the topology."""

    async def says(self, *words: str) -> Done:
        """Run a command of tensile on the topology file; `explain` and `uninstall` as an administrator."""
        path = self.directory / "topology.yaml"
        if words[0] in ("explain", "uninstall"):
            found = orjson.loads(path.read_bytes())
            for name, entry in ((UPPER, found["upper"]), *((one["name"], one) for one in found["lowers"])):
                entry["kubeconfig"] = str(self.sandbox.directory / f"{name}.kubeconfig")
            path = self.directory / "administrator.yaml"
            path.write_bytes(orjson.dumps(found))
        return await ran([sys.executable, "-m", "tensile", *words, "-f", str(path)])

    async def until_says(self, words: str, *command: str) -> str:
        """Run a command repeatedly until its output contains these words, and return the output."""
        text = ""
        try:
            async with asyncio.timeout(LIMIT):
                while words not in text:
                    done = await self.says(*command)
                    text = done.out + done.err
                    await asyncio.sleep(OFTEN)
        except TimeoutError:
            raise AssertionError(f"{words!r} is not in:\n{text}") from None
        return text

    async def until_done(self, *command: str) -> None:
        """Run a command repeatedly until it exits with code 0."""
        done = Done(1, "", "")
        try:
            async with asyncio.timeout(2 * LIMIT):
                while done.code:
                    done = await self.says(*command)
        except TimeoutError:
            raise AssertionError(f"{command} does not succeed: {done.out}{done.err}") from None

    async def until_well(self, *lowers: str) -> None:
        """Wait until the status shows that these lowers (default: all) are Ready, and that nothing is pending."""
        report: Manifest = {}
        try:
            async with asyncio.timeout(2 * LIMIT):
                while not _is_well(report, lowers or self.lowers):
                    await asyncio.sleep(OFTEN)
                    done = await self.says("status", "-o", "json")
                    report = orjson.loads(done.out) if done.code == 0 else {}
        except TimeoutError:
            raise AssertionError(f"not well: {report}") from None

    async def restart(self, *edits: Edit) -> None:
        """Stop the program and start it again."""
        await self.stop()
        self.process = await self.begun(self.save(*edits), self.log)

    async def refused(self) -> str:
        """Start another program on the file, which has to exit with code 1, and return its log."""
        log = self.directory / "refused.log"
        process = await self.begun(self.directory / "topology.yaml", log)
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
async def here(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mistaken]:
    """Start a program on the sandbox's clusters."""
    async with served(sandbox, tmp_path_factory.mktemp("mistakes"), Mistaken) as made:
        yield made


# Mistakes of the first day.


async def test_1_the_status_names_a_kubeconfig_that_does_not_exist(here: Mistaken) -> None:
    """The engine keeps the last good connection."""
    await here.reload(edit_lower(B, kubeconfig="gone.kubeconfig"))
    text = await here.until_says("gone.kubeconfig: cannot be read (No such file or directory)", "status")
    assert "check the path and its permissions; the last good connection is kept" in text
    (here.directory / "gone.kubeconfig").write_text((here.directory / f"{B}.kubeconfig").read_text())
    await here.until_well()
    await here.reload()
    await here.until_well()


async def test_2_doctor_names_the_kubeconfig_with_a_wrong_port(here: Mistaken) -> None:
    """No program listens on that port, so the connection is refused."""
    good = here.sandbox.clusters[B].server
    here.replace(B, good, f"https://127.0.0.1:{spare_port()}")
    await here.until_says("Connection refused", "status")
    text = (await here.says("doctor")).out
    assert "cannot be connected to (Connection refused)" in text
    assert f"or correct `server` in {here.directory / B}.kubeconfig" in text
    here.replace(B, re.findall(r"https://[0-9.:]+", (here.directory / f"{B}.kubeconfig").read_text())[0], good)
    await here.until_well()


async def test_3_doctor_prints_the_command_that_replaces_a_revoked_token(here: Mistaken) -> None:
    """The account was deleted and created again, so its old token is not valid any more."""
    site, name = here.sites[B], f"mistaken-{here.mark}"
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
    good = (here.directory / f"{B}.kubeconfig").read_text()
    user = re.search(r"client-certificate-data: .*\n +client-key-data: .*", good)
    assert user is not None
    here.give(B, good.replace(user[0], f"token: {token}"))
    await here.until_says("Unauthorized", "status")
    text = (await here.says("doctor")).out
    assert "the token is damaged, of another cluster, or revoked" in text
    found = re.search(r"kubectl -n default create token \S+", text)
    assert found is not None
    done = await ran(here.sandbox.kubectl_command(*found[0].split()[1:], cluster=B))
    here.give(B, good.replace(user[0], f"token: {done.out.strip()}"))
    await here.until_well()
    here.give(B, good)
    await here.until_well()
    await site.delete(f"{accounts}/{name}")
    await site.delete(f"{RIGHTS}/clusterrolebindings/{name}")


async def test_4_doctor_prints_the_commands_that_grant_missing_permissions(here: Mistaken) -> None:
    """Once they are run, the lower cluster is Ready."""
    good = (here.directory / f"{B}.kubeconfig").read_text()
    here.give(B, here.kubeconfig(B, f"nobody-{here.mark}", ()))
    await here.until_says("is forbidden", "status")
    found = orjson.loads((await here.says("doctor", "-o", "json")).out)
    (needed,) = (
        one
        for cluster in found["clusters"]
        for one in cluster["findings"]
        if (cluster["name"], one["check"], one["level"]) == (B, "rights", "fail")
    )
    commands = [shlex.split(line) for line in "\n".join(needed["advice"]).splitlines() if line.startswith("kubectl ")]
    for _, *words in commands:
        done = await ran(here.sandbox.kubectl_command(*words, cluster=B))
        assert done.code == 0, done.err
    await here.until_well()
    here.give(B, good)
    for _, _, kind, name, *_ in commands:
        await here.sites[B].delete(f"{RIGHTS}/{kind}s/{name}")
    await here.until_well()


async def test_5_the_log_and_the_status_name_the_key_of_a_port_that_is_taken(here: Mistaken) -> None:
    """The engine works again after another telemetry.port or webhook.port is set."""
    await here.stop()
    with socket.create_server(("127.0.0.1", here.file()["telemetry"]["port"])):
        assert "another program uses this port: stop it, or set telemetry.port" in await here.refused()
        moved = with_fields(telemetry={"bind": "127.0.0.1", "port": spare_port()})
        here.process = await here.begun(here.save(moved), here.log)
        await here.until_well()
    await here.restart()
    await here.until_well()
    taken, free = spare_port(), spare_port()
    with socket.create_server(("127.0.0.1", taken)):
        await here.reload(with_fields(webhook=_webhook_at(taken)))
        words = "stop that program, or set another webhook.port, also in webhook.url, and restart the engine"
        await here.until_says(words, "status")
        await here.restart(with_fields(webhook=_webhook_at(free)))
        await here.until_well()
    await here.restart()
    await here.until_well()


async def test_6_a_second_engine_of_one_topology_does_not_start(here: Mistaken) -> None:
    """Its log advises to stop the first one."""
    told = await here.refused()
    assert f"an engine of topology {here.namespace} on this machine already uses telemetry port" in told
    assert "stop it first" in told
    await here.restart()
    await here.until_well()


async def test_7_the_node_of_a_removed_lower_stays_while_it_has_pods(here: Mistaken) -> None:
    """Status and plan advise to put the lower back and to drain it."""
    await here.deployed("leaving", 4)
    here.save(without_lower(B))
    text = await here.until_says("put it back with maintenance: drain", "status")
    assert "removed from the topology" in text
    assert f"node {here.nodes[B]}, whose lower was removed, stays until" in (await here.says("plan")).out
    await here.reload(edit_lower(B, maintenance="drain"))
    await here.until_says("Drained", "status")
    await here.reload(without_lower(B))
    await here.upper.gone(f"/api/v1/nodes/{here.nodes[B]}")
    await here.undeploy("leaving")
    await here.reload()
    await here.until_well()


async def test_8_status_and_plan_advise_to_keep_the_node_name_of_a_renamed_lower(here: Mistaken) -> None:
    """With that node name, the pods run on under the lower's new name."""
    before = await here.deployed("kept", 2, B)
    renamed = renamed_lower(node={"name": f"{here.nodes[B]}-new"})
    here.save(renamed)
    remedy = f"to keep them, write node: {{name: {here.nodes[B]}}} for lower {NEW}"
    await here.until_says(remedy, "status")
    assert remedy in (await here.says("plan")).out
    await here.reload(renamed_lower())
    await here.until_well(A, NEW)
    await here.reload()
    await here.until_well()
    pods = await here.upper.until_all(here.of("kept"), lambda found: all(map(is_ready, found.values())))
    assert sorted(one["metadata"]["uid"] for one in pods.values()) == sorted(before)
    await here.undeploy("kept")


async def test_9_status_and_validate_name_the_missing_address_of_a_webhook(here: Mistaken) -> None:
    """The webhook is registered once it has an address."""
    port = spare_port()
    await here.reload(with_fields(webhook={"enabled": True, "bind": "127.0.0.1", "port": port}))
    words = "set webhook.service or webhook.url"
    assert words in (await here.says("validate")).err
    await here.until_says(words, "status")
    await here.reload(with_fields(webhook=_webhook_at(port)))
    await here.until_well()
    assert "webhook" not in "".join(re.findall("^FAIL.*$", (await here.says("doctor")).out, re.MULTILINE))
    await here.reload()
    await here.until_well()


async def test_10_the_status_reports_an_unknown_key_in_the_topology_file(here: Mistaken) -> None:
    """The last good topology stays in force."""
    await here.reload(edit_lower(B, maintenanc="cordon"))
    text = await here.until_says("the last good topology stays in force", "status")
    assert "unknown key; did you mean maintenance?" in text
    await here.reload(edit_lower(B, maintenance="cordon"))
    await here.until_says("Cordoned", "status")
    await here.reload()
    await here.until_well()


# Ten more mistakes.


async def explained(here: Mistaken, pod: str, why: str, advice: str) -> None:
    """Wait until `explain pod` names a cause and a remedy."""
    text = await here.until_says(why, "explain", "pod", pod, "-n", here.namespace)
    assert advice in text, text


async def test_11_explain_names_the_taint_that_a_pod_does_not_tolerate(here: Mistaken) -> None:
    """The advised label `virtual-pod` is enough to run the pod."""
    body = {"metadata": {"name": "plain"}, "spec": here.template({})["spec"] | {"tolerations": []}}
    await here.upper.create(here.path("pods"), body)
    await explained(here, "plain", "node(s) had untolerated taint(s)", 'or label it virtual-pod: "true"')
    await here.upper.patch(here.pod_path("plain"), {"metadata": {"labels": {"virtual-pod": "true"}}})
    await here.upper.until(here.pod_path("plain"), is_ready)
    await here.end_pods("plain")


async def test_12_explain_names_a_config_map_that_does_not_exist(here: Mistaken) -> None:
    """The pod starts once the ConfigMap is created."""
    await here.bind("lacking", {"volumes": [{"name": "v", "configMap": {"name": "settings"}}]})
    words = f"ConfigMap {here.namespace}/settings does not exist in the upper cluster"
    await explained(here, "lacking", words, "-> create the ConfigMap in the upper cluster")
    await here.upper.create(here.path("configmaps"), {"metadata": {"name": "settings"}})
    await here.upper.until(here.pod_path("lacking"), is_ready)
    await here.end_pods("lacking")


async def test_13_explain_names_the_exceeded_quota_of_a_lower_cluster(here: Mistaken) -> None:
    """The pod starts once the quota is raised."""
    await here.run_pod("first")
    quotas = here.path("resourcequotas")
    await here.sites[A].create(quotas, {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}})
    await here.sites[A].until(f"{quotas}/tight", lambda one: (one.get("status") or {}).get("used"))
    await here.bind("second")
    await explained(here, "second", "exceeded quota: tight", f"-> raise the quota in {A}, or delete pods there")
    await here.sites[A].patch(f"{quotas}/tight", {"spec": {"hard": {"pods": "2"}}})
    await here.upper.until(here.pod_path("second"), is_ready)
    await here.end_pods("first", "second")


async def test_14_explain_advises_to_reduce_the_requests_of_a_pod_that_fits_on_no_real_node(here: Mistaken) -> None:
    """The virtual node has room for the pod only in sum."""
    asked = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "40"}}}
    await here.bind("large", {"containers": [asked]})
    await explained(here, "large", "Insufficient cpu", "-> reduce the requests of the pod")
    await here.end_pods("large")
    await here.run_pod("large")
    await here.end_pods("large")


async def test_15_the_status_names_a_context_that_the_kubeconfig_does_not_define(here: Mistaken) -> None:
    """`kubectl config get-contexts` lists the defined ones."""
    await here.reload(edit_lower(B, context="production"))
    text = await here.until_says("context 'production': no context has this name (1 defined)", "status")
    assert "the last good connection is kept" in text
    config = ["config", "get-contexts", "-o", "name", "--kubeconfig", str(here.directory / f"{B}.kubeconfig")]
    (name,) = (await ran([here.sandbox.kubectl_command()[0], *config])).out.split()
    await here.reload(edit_lower(B, context=name))
    await here.until_well()
    await here.reload()
    await here.until_well()


async def test_16_the_status_advises_against_one_kubeconfig_for_two_lowers(here: Mistaken) -> None:
    """The status names the second lower and the kubeconfig, and `validate` reports that it is the same cluster."""
    good = edit_lower(B, kubeconfig=f"{A}.kubeconfig")
    await here.reload(good)
    words = f"use the kubeconfig of another cluster than {here.directory / A}.kubeconfig"
    text = await here.until_says(words, "status")
    assert f"{B}: " in text
    assert "is the same cluster" in (await here.says("validate")).err
    await here.reload()
    await here.until_well()


async def test_17_a_plan_advises_to_restore_the_name_of_a_renamed_topology(here: Mistaken) -> None:
    """Under the former name, the topology owns its objects again."""
    other = with_fields(name=f"{here.namespace}-new")
    await here.restart(other)
    await here.logged("belongs to topology")
    await here.until_says(f"if this topology was renamed, set `name: {here.namespace}` again", "plan")
    await here.restart()
    await here.until_well()


async def test_18_explain_advises_recreate_bare_pods_for_a_bare_pod_that_blocks_a_drain(here: Mistaken) -> None:
    """With that field, the pod is created again in the other lower cluster."""
    await here.upper.create(
        here.path("pods"), {"metadata": {"name": "bare"}, "spec": here.template({})["spec"] | _soon_gone()}
    )
    bound = (await here.upper.until(here.pod_path("bare"), is_ready))["spec"]["nodeName"]
    source = next(name for name, node in here.nodes.items() if node == bound)
    drain = edit_lower(source, maintenance="drain")
    await here.reload(drain)
    advice = "-> delete it, or set `descheduler.recreateBarePods`"
    await explained(here, "bare", "and it stays, as it has no controller", advice)
    await here.reload(drain, with_fields(descheduler={"recreateBarePods": True}))
    await here.until_says("Drained", "status")
    moved = await here.upper.until_all(here.path("pods"), lambda found: any(map(is_ready, found.values())))
    assert {one["spec"]["nodeName"] for one in moved.values()} == {here.nodes[B if source == A else A]}
    await here.end_pods(*(one["metadata"]["name"] for one in moved.values()))
    await here.reload()
    await here.until_well()


async def test_19_doctor_names_the_right_ca_if_a_kubeconfig_has_that_of_another_cluster(here: Mistaken) -> None:
    """It prints the wrong CA of the kubeconfig and the CA that issued the server's certificate."""
    good, foreign = (here.directory / f"{B}.kubeconfig").read_text(), here.kubeconfig(A, "x")
    pattern = r"certificate-authority-data: (\S+)"
    mine, other = (re.findall(pattern, text)[0] for text in (good, foreign))
    here.give(B, good.replace(mine, other))
    await here.until_says("is not trusted", "status")
    text = (await here.says("doctor")).out
    assert f"the CA in {here.directory / B}.kubeconfig is CN={A}-ca" in text
    assert f"the certificate is by CN={B}-ca: put that CA there" in text
    here.give(B, good)
    await here.until_well()


async def test_20_uninstall_is_refused_while_pods_are_bound_or_the_engine_runs(here: Mistaken) -> None:
    """It succeeds after the pods are deleted and the engine is stopped."""
    await here.run_pod("last")
    done = await here.says("uninstall", "--yes")
    assert done.code == 1
    assert f"not uninstalled:\n1 pod is bound to node {here.nodes[A]}" in done.err
    assert f"set `maintenance: drain` for lower {A}" in done.err
    assert "delete pods without a controller" in done.err
    assert "an engine renews the lease" in done.err
    assert "then stop it (Ctrl-C or SIGTERM" in done.err
    await here.end_pods("last")
    await here.stop()
    await here.until_done("uninstall", "--yes")
    await here.upper.gone(*(f"/api/v1/nodes/{node}" for node in here.nodes.values()))
    here.process = await here.begun(here.save(), here.log)
    await here.until_well()


def _webhook_at(port: int) -> Manifest:
    return {"enabled": True, "bind": "127.0.0.1", "port": port, "url": f"https://127.0.0.1:{port}"}


def _soon_gone() -> Manifest:
    return {"terminationGracePeriodSeconds": 1}
