"""Twenty mistakes that users make, each with an engine that runs.

The program has to name the cause, and what it advises is done to the letter: all has to be well again after that.
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
"""The name that a lower gets."""


class Mistaken(Program):
    """A program, the commands that a user asks about it, and the files of the topology."""

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
        """Run a command again and again until its output has these words, and return that."""
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
        """Run a command again and again until it ends with code 0."""
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
        """Start another program on the file, which has to end with code 1, and return what it logs."""
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
        """Delete a Deployment, and wait until its pods are gone."""
        await self.upper.delete(self.path("deployments", name, APPS) + "?propagationPolicy=Background")
        await self.upper.until_all(self.of(name), lambda found: not found)


def renamed_lower(**fields: Manifest) -> Edit:
    """Make an edit that gives the second lower another name, and lays fields over it."""

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
    """A program on the sandbox's clusters."""
    async with served(sandbox, tmp_path_factory.mktemp("mistakes"), Mistaken) as made:
        yield made


# The mistakes of every first day.


async def test_1_a_wrong_path_of_a_kubeconfig(here: Mistaken) -> None:
    """The last good connection is kept."""
    await here.reload(edit_lower(B, kubeconfig="gone.kubeconfig"))
    text = await here.until_says("gone.kubeconfig: cannot be read (No such file or directory)", "status")
    assert "check the path and its permissions; the last good connection is kept" in text
    (here.directory / "gone.kubeconfig").write_text((here.directory / f"{B}.kubeconfig").read_text())
    await here.until_well()
    await here.reload()
    await here.until_well()


async def test_2_a_wrong_port_of_a_lower(here: Mistaken) -> None:
    """Nothing listens there."""
    good = here.sandbox.clusters[B].server
    here.replace(B, good, f"https://127.0.0.1:{spare_port()}")
    await here.until_says("Connection refused", "status")
    text = (await here.says("doctor")).out
    assert "cannot be connected to (Connection refused)" in text
    assert f"or correct `server` in {here.directory / B}.kubeconfig" in text
    here.replace(B, re.findall(r"https://[0-9.:]+", (here.directory / f"{B}.kubeconfig").read_text())[0], good)
    await here.until_well()


async def test_3_a_token_that_was_revoked(here: Mistaken) -> None:
    """The account was made anew, and a token of the old one does not belong to the new one."""
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


async def test_4_an_account_without_permissions(here: Mistaken) -> None:
    """The commands that grant them are printed."""
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


async def test_5_a_port_that_is_taken(here: Mistaken) -> None:
    """The file says which port to choose instead."""
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


async def test_6_two_engines_of_one_topology(here: Mistaken) -> None:
    """The second one does not start."""
    told = await here.refused()
    assert f"an engine of topology {here.namespace} on this machine already uses telemetry port" in told
    assert "stop it first" in told
    await here.restart()
    await here.until_well()


async def test_7_a_lower_removed_with_pods_on_it(here: Mistaken) -> None:
    """They stay until it is put back and drained."""
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


async def test_8_a_lower_renamed_with_pods_on_it(here: Mistaken) -> None:
    """They run on under its node's name."""
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


async def test_9_a_webhook_without_an_address(here: Mistaken) -> None:
    """It is registered once it has one."""
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


async def test_10_a_broken_topology_file(here: Mistaken) -> None:
    """The last good one stays in force."""
    await here.reload(edit_lower(B, maintenanc="cordon"))
    text = await here.until_says("the last good topology stays in force", "status")
    assert "unknown key; did you mean maintenance?" in text
    await here.reload(edit_lower(B, maintenance="cordon"))
    await here.until_says("Cordoned", "status")
    await here.reload()
    await here.until_well()


# Ten more.


async def explained(here: Mistaken, pod: str, why: str, advice: str) -> None:
    """Wait until `explain pod` names a cause and a remedy."""
    text = await here.until_says(why, "explain", "pod", pod, "-n", here.namespace)
    assert advice in text, text


async def test_11_a_pod_without_the_toleration(here: Mistaken) -> None:
    """A label is enough."""
    body = {"metadata": {"name": "plain"}, "spec": here.template({})["spec"] | {"tolerations": []}}
    await here.upper.create(here.path("pods"), body)
    await explained(here, "plain", "node(s) had untolerated taint(s)", 'or label it virtual-pod: "true"')
    await here.upper.patch(here.pod_path("plain"), {"metadata": {"labels": {"virtual-pod": "true"}}})
    await here.upper.until(here.pod_path("plain"), is_ready)
    await here.end_pods("plain")


async def test_12_a_config_map_that_does_not_exist(here: Mistaken) -> None:
    """The pod starts once it is there."""
    await here.bind("lacking", {"volumes": [{"name": "v", "configMap": {"name": "settings"}}]})
    words = f"ConfigMap {here.namespace}/settings does not exist in the upper cluster"
    await explained(here, "lacking", words, "-> create the ConfigMap in the upper cluster")
    await here.upper.create(here.path("configmaps"), {"metadata": {"name": "settings"}})
    await here.upper.until(here.pod_path("lacking"), is_ready)
    await here.end_pods("lacking")


async def test_13_a_quota_in_the_lower(here: Mistaken) -> None:
    """It is raised there."""
    await here.run_pod("first")
    quotas = here.path("resourcequotas")
    await here.sites[A].create(quotas, {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}})
    await here.sites[A].until(f"{quotas}/tight", lambda one: (one.get("status") or {}).get("used"))
    await here.bind("second")
    await explained(here, "second", "exceeded quota: tight", f"-> raise the quota in {A}, or delete pods there")
    await here.sites[A].patch(f"{quotas}/tight", {"spec": {"hard": {"pods": "2"}}})
    await here.upper.until(here.pod_path("second"), is_ready)
    await here.end_pods("first", "second")


async def test_14_a_pod_that_no_real_node_holds(here: Mistaken) -> None:
    """The virtual node has room for it in sum only."""
    asked = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "40"}}}
    await here.bind("large", {"containers": [asked]})
    await explained(here, "large", "Insufficient cpu", "-> reduce the requests of the pod")
    await here.end_pods("large")
    await here.run_pod("large")
    await here.end_pods("large")


async def test_15_a_context_that_the_kubeconfig_lacks(here: Mistaken) -> None:
    """Those that there are can be listed."""
    await here.reload(edit_lower(B, context="production"))
    text = await here.until_says("context 'production': no context has this name (1 defined)", "status")
    assert "the last good connection is kept" in text
    config = ["config", "get-contexts", "-o", "name", "--kubeconfig", str(here.directory / f"{B}.kubeconfig")]
    (name,) = (await ran([here.sandbox.kubectl_command()[0], *config])).out.split()
    await here.reload(edit_lower(B, context=name))
    await here.until_well()
    await here.reload()
    await here.until_well()


async def test_16_two_lowers_with_one_kubeconfig(here: Mistaken) -> None:
    """The one that is wrong is named."""
    good = edit_lower(B, kubeconfig=f"{A}.kubeconfig")
    await here.reload(good)
    words = f"use the kubeconfig of another cluster than {here.directory / A}.kubeconfig"
    text = await here.until_says(words, "status")
    assert f"{B}: " in text
    assert "is the same cluster" in (await here.says("validate")).err
    await here.reload()
    await here.until_well()


async def test_17_another_name_of_the_topology(here: Mistaken) -> None:
    """Under the old one everything is its own again."""
    other = with_fields(name=f"{here.namespace}-new")
    await here.restart(other)
    await here.logged("belongs to topology")
    await here.until_says(f"if this topology was renamed, set `name: {here.namespace}` again", "plan")
    await here.restart()
    await here.until_well()


async def test_18_a_drain_of_a_pod_without_a_controller(here: Mistaken) -> None:
    """It stays until the topology allows to create it again elsewhere."""
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


async def test_19_the_authority_of_another_cluster(here: Mistaken) -> None:
    """The right one is named, with the command that prints it."""
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


async def test_20_an_uninstall_while_the_engine_runs(here: Mistaken) -> None:
    """First the pods leave, then the engine is stopped."""
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
