"""Tests of `manifests/` and `tensile manifests` on real clusters.

The objects are applied with strict validation, and an engine is set up by them.
"""

import asyncio
import shutil
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from applykit import ENFORCE, WARN, Kubectl, commands_in, namespaced, overlay, setup
from enginekit import LOWERS, TOLERATION, UPPER, A, wait_until
from sitekit import Manifest, Site, is_ready, is_true

from bench.kit.spareports import spare_ports
from tensile.deploy.manifests import lower_stream, upper_stream, written
from tensile.deploy.setup import Setup
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SHIPPED = Path(__file__).resolve().parents[2] / "manifests"
EVERYTHING: dict[str, Any] = {
    "controllers": ["PV", "Service", "RBAC", "ServiceAccount"],
    "serviceAccounts": {"identity": "upper"},
    "webhook": {"enabled": True},
    "extender": {"enabled": True},
    "descheduler": {"enabled": True, "recreateBarePods": True},
}
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "little": {"controllers": [], "lowers": []},
    "default": {},
    "everything": EVERYTHING,
    "webhook": {"webhook": {"enabled": True}, "controllers": []},
    "prefix": {"lowerDefaults": {"namespaces": {"mapping": "prefix"}, "maintenance": "drain"}},
    "ports": {"lowerDefaults": {"node": {"kubeletPort": 9000}}, "lowers": [{"name": "lower-a"}]},
}
CRITICAL = 2_000_000_000
SENT_ANYWAY = "poddisruptionbudget.policy/tensile configured"
"""What kubectl prints each time: it writes the whole selector of a budget, even if it is the same already."""


def others(text: str) -> str:
    """Return a stream without its Namespace, which exists already."""
    kept = [one for one in yaml.safe_load_all(text) if one["kind"] != "Namespace"]
    return yaml.safe_dump_all(kept)


async def strictly(hand: Kubectl, text: str, cluster: str) -> None:
    """Create a stream's Namespace, validate all other objects strictly by a dry run, and allow no warning."""
    (namespace,) = [one for one in yaml.safe_load_all(text) if one["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"][ENFORCE] == "restricted"
    namespace["metadata"]["labels"] |= WARN
    create = ("create", "--validate=strict", "-f", "-")
    await hand.check_output(*create, cluster=cluster, stdin=yaml.safe_dump(namespace))
    await hand.check_output(*create, "--dry-run=server", cluster=cluster, stdin=others(text))


@pytest.mark.parametrize("fields", TOPOLOGIES.values(), ids=TOPOLOGIES)
async def test_rendered_objects_are_valid_in_every_cluster(sandbox: Sandbox, fields: dict[str, Any]) -> None:
    """Neither the upper cluster nor a lower one finds an unknown or invalid field or returns a warning."""
    hand = Kubectl(sandbox)
    async with namespaced(sandbox, UPPER, *LOWERS) as (name, _):
        found = setup(name, **fields)
        await strictly(hand, upper_stream(found), UPPER)
        for lower in found.topology.lowers:
            await strictly(hand, lower_stream(found, lower.name, "tensile manifests"), lower.name)


async def running(site: Site, name: str, namespace: str) -> dict[str, Manifest]:
    """Wait until a Deployment has created both pods, and return them."""
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    found = await site.until(deployment, lambda one: one["status"]["replicas"] == one["spec"]["replicas"] == 2)
    assert not is_true(found, "ReplicaFailure"), found["status"]
    return await site.until_all(f"/api/v1/namespaces/{namespace}/pods", lambda pods: len(pods) == 2)


async def test_applying_the_shipped_directory_again_changes_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    """`kubectl apply -k` creates every object the first time, and its pods satisfy the restricted Pod Security."""
    hand = Kubectl(sandbox)
    async with namespaced(sandbox, UPPER, name="tensile") as (name, sites):
        shutil.copytree(SHIPPED, tmp_path / "shipped")
        place = str(overlay(tmp_path / "own", tmp_path / "shipped"))
        first = await hand.check_output("apply", "--validate=strict", "-k", place)
        assert {line.rpartition(" ")[2] for line in first.splitlines()} == {"created"}
        assert "configmap/topology created" in first.splitlines()
        again = await hand.check_output("apply", "--validate=strict", "-k", place)
        assert {line for line in again.splitlines() if not line.endswith(" unchanged")} <= {SENT_ANYWAY}
        pods = await running(sites[UPPER], name, name)
        assert {pod["spec"]["priority"] for pod in pods.values()} == {CRITICAL}
        (held,) = [await sites[UPPER].read(f"/api/v1/namespaces/{name}/configmaps/topology")]
        assert held["data"] == {"topology.yaml": (SHIPPED / "topology.yaml").read_text()}
        assert await hand.check_output("diff", "-k", place) == ""


async def test_the_shipped_storage_class_is_valid(sandbox: Sandbox) -> None:
    """It is only validated by a dry run, because other tests create their own class from it."""
    await Kubectl(sandbox).check_output(
        "create", "--dry-run=server", "--validate=strict", "-f", str(SHIPPED / "storageclass.yaml")
    )


async def test_pods_with_weaker_security_settings_are_refused(sandbox: Sandbox) -> None:
    """This proves that the namespace enforces its Pod Security profile."""
    hand = Kubectl(sandbox)
    async with namespaced(sandbox, UPPER) as (name, sites):
        objects = list(yaml.safe_load_all(upper_stream(setup(name, controllers=[]))))
        (deployment,) = [one for one in objects if one["kind"] == "Deployment"]
        deployment["spec"]["template"]["spec"]["hostNetwork"] = True
        done = await hand("create", "-f", "-", stdin=yaml.safe_dump_all(objects))
        assert (done.code, "would violate PodSecurity" in done.err) == (0, True), done
        path = f"/apis/apps/v1/namespaces/{name}/deployments/tensile"
        await sites[UPPER].until(path, lambda one: is_true(one, "ReplicaFailure"))


def machine(sandbox: Sandbox) -> dict[str, Any]:
    """Return the fields of a topology for this machine, where engines of other tests run.

    The webhook and the extender are disabled, because they would affect all pods of the upper cluster.
    """
    ports = spare_ports(len(LOWERS) + 2)
    lowers = [{"name": name, "node": {"kubeletPort": port}} for name, port in zip(LOWERS, ports, strict=False)]
    return {
        **EVERYTHING,
        "controllers": ["Service", "RBAC", "ServiceAccount"],
        "lowers": lowers,
        "lowerDefaults": {"capacity": {"basis": "allocatable"}},
        "extender": {"enabled": False},
        "webhook": {"enabled": False},
        "kubelet": {"port": ports[-2]},
        "telemetry": {"port": ports[-1]},
        "upper": {"advertiseURL": sandbox.clusters[UPPER].server},
    }


@asynccontextmanager
async def engine(hand: Kubectl, found: Setup, directory: Path) -> AsyncIterator[Path]:
    """Run the engine as its pod would: with its account's token, on the ConfigMap, at a pod's address."""
    server = hand.sandbox.clusters[UPPER].server
    token = (await hand.check_output("-n", found.namespace, "create", "token", "tensile", "--duration=1h")).strip()
    authority = hand.sandbox.clusters[UPPER].audit_log.parent / "pki" / "ca.crt"
    file, log = directory / "upper.kubeconfig", directory / "tensile.log"
    cluster = {"server": server, "certificate-authority": str(authority)}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": cluster}],
        "users": [{"name": "x", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }
    file.write_text(yaml.safe_dump(body))
    options = ["--configmap", found.configmap, "--kubeconfig", str(file), "--leader-elect", "--log-format", "json"]
    command = ["env", "POD_IP=127.0.0.1", sys.executable, "-m", "tensile", "run", *options]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        yield log
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(20):
            await process.wait()


async def test_the_rendered_commands_set_up_an_engine_that_runs_a_pod(sandbox: Sandbox, tmp_path: Path) -> None:
    """The engine has no administrator's credential, and no request that it needs is forbidden."""
    hand = Kubectl(sandbox)
    async with namespaced(sandbox, UPPER, *LOWERS) as (name, sites):
        fields = machine(sandbox)
        for lower in fields["lowers"]:
            lower["node"]["name"] = f"{name}-{lower['name']}"
        found = setup(name, **fields)
        written(found, tmp_path / "set-up", "topology.yaml")
        await hand.check_output("apply", "--validate=strict", "-k", str(tmp_path / "set-up"))
        async with engine(hand, found, tmp_path) as log:
            await wait_until(lambda: "lower-a" in log.read_text())
            for lower in LOWERS:
                head = (tmp_path / "set-up" / "lowers" / lower / "access.yaml").read_text()
                await hand.shell(tmp_path / "set-up", commands_in(head), sandbox.directory / f"{lower}.kubeconfig")
            for lower in found.topology.lowers:
                node = f"/api/v1/nodes/{lower.node.name}"
                await sites[UPPER].until(node, lambda one: is_true(one, "LowerSchedulable"), 40)
            await mirrored(sites, name, found.topology.lowers[0].node.name)
            assert not [line for line in log.read_text().splitlines() if "forbidden" in line]
            await seen_off(sites, found)


async def mirrored(sites: dict[str, Site], name: str, node: str) -> None:
    """Wait until a pod runs in the lower cluster, in a namespace that the engine creates there."""
    spaces = "/api/v1/namespaces"
    work = f"{name}-work"
    await sites[UPPER].create(spaces, {"metadata": {"name": work}})
    await sites[UPPER].until(f"{spaces}/{work}/serviceaccounts/default", bool)
    spec = {"nodeName": node, "tolerations": [TOLERATION], "containers": [{"name": "main", "image": "app:1"}]}
    await sites[UPPER].create(f"{spaces}/{work}/pods", {"metadata": {"name": "web"}, "spec": spec})
    await sites[UPPER].until(f"{spaces}/{work}/pods/web", is_ready, 40)
    assert await sites[A].read(f"{spaces}/{work}/pods/web")


async def seen_off(sites: dict[str, Site], found: Setup) -> None:
    """Delete everything as documented: first the pods, then the lowers in the topology."""
    work = f"/api/v1/namespaces/{found.namespace}-work"
    await sites[UPPER].delete(f"{work}/pods/web", 0)
    await sites[UPPER].gone(f"{work}/pods/web")
    await sites[UPPER].delete(work)
    await sites[UPPER].gone(work)
    await sites[A].gone(work, limit=60)
    empty = yaml.safe_load(found.text) | {"lowers": []}
    patch = {"data": {"topology.yaml": yaml.safe_dump(empty)}}
    await sites[UPPER].patch(f"/api/v1/namespaces/{found.namespace}/configmaps/topology", patch)
    await sites[UPPER].gone(*(f"/api/v1/nodes/{lower.node.name}" for lower in found.topology.lowers))


def contents(directory: Path) -> dict[str, bytes]:
    """Return the content of every file in a directory."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def test_the_engine_has_only_the_rendered_rights_in_a_lower_cluster(sandbox: Sandbox, tmp_path: Path) -> None:
    """The rights are checked with the kubeconfig that the printed commands created and put into the Secret.

    The commands run beside an administrator's kubeconfig of the same name. Nothing of that file gets into the Secret
    but the TLS server name, and no file in the directory changes.
    """
    hand = Kubectl(sandbox)
    async with namespaced(sandbox, UPPER, A) as (name, sites):
        found = setup(name, lowers=[{"name": A}])
        written(found, tmp_path, "topology.yaml")
        await hand.check_output("create", "namespace", name)
        commands = commands_in((tmp_path / "lowers" / A / "access.yaml").read_text())
        administrators = tmp_path / f"{A}.kubeconfig"
        whole = yaml.safe_load((sandbox.directory / f"{A}.kubeconfig").read_bytes())
        whole["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes"
        administrators.write_text(yaml.safe_dump(whole))
        before = contents(tmp_path)
        for _ in range(2):
            await hand.shell(tmp_path, commands, administrators)
            assert contents(tmp_path) == before
        secret = await sites[UPPER].read(f"/api/v1/namespaces/{name}/secrets/{A}")
        assert set(secret["data"]) == {"kubeconfig"}
        made = b64decode(secret["data"]["kubeconfig"])
        assert [set(one["user"]) for one in yaml.safe_load(made)["users"]] == [{"token"}]
        assert [one["cluster"]["tls-server-name"] for one in yaml.safe_load(made)["clusters"]] == ["kubernetes"]
        (tmp_path / "made").write_bytes(made)
        mine = str(tmp_path / "made")
        expected = {
            "create pods": "yes",
            "list secrets": "yes",
            "create deployments": "no",
            "* *": "no",
            "bind clusterroles": "no",
        }
        for question, answer in expected.items():
            done = await hand("--kubeconfig", mine, "auth", "can-i", *question.split(), "-A")
            assert done.out.strip() == answer, question
