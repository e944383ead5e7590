"""Helpers that apply the output of `tensile manifests` to a sandbox's clusters by kubectl, under names of each test."""

import os
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from enginekit import UPPER, CommandResult, run_command
from sitekit import Manifest, Site

from tensile.deploy.manifests import STORAGE, RenderOptions, rendering
from tensile.deploy.setup import WEBHOOK, Setup
from tensile.engine.leader_election import lease_ref
from tensile.sandbox.sandbox import Sandbox

ENFORCE = "pod-security.kubernetes.io/enforce"
WARN = {"pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/warn-version": "latest"}
CLUSTER_WIDE = ("clusterroles", "clusterrolebindings")


def setup(name: str, **fields: Any) -> Setup:
    """Make a setup of a topology, in a namespace of the same name; with two lowers unless `lowers` is given.

    Each lower has its kubeconfig in a Secret of that namespace, and an enabled webhook has its Service there.
    """
    lowers = fields.get("lowers", [{"name": "lower-a"}, {"name": "lower-b"}])
    file = {
        "apiVersion": "tensile-kube.io/v1alpha1",
        "kind": "Topology",
        **fields,
        "name": name,
        "lowers": [{**lower, "kubeconfigSecret": {"namespace": name, "name": lower["name"]}} for lower in lowers],
    }
    if fields.get("webhook", {}).get("enabled"):
        file["webhook"] = {**fields["webhook"], "service": {"namespace": name, "name": WEBHOOK}}
    return rendering(yaml.safe_dump(file).encode(), "topology.yaml", RenderOptions(name, None))


class Kubectl:
    """The kubectl of an administrator, for the clusters of a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def __call__(self, *arguments: str, cluster: str = UPPER, stdin: str = "") -> CommandResult:
        """Run kubectl until it ends."""
        return await run_command(self.sandbox.kubectl_command(*arguments, cluster=cluster), stdin=stdin)

    async def check_output(self, *arguments: str, cluster: str = UPPER, stdin: str = "") -> str:
        """Run kubectl, require that it succeeds without a warning, and return its output."""
        done = await self(*arguments, cluster=cluster, stdin=stdin)
        assert (done.code, done.err) == (0, ""), done
        return done.out

    async def shell(self, directory: Path, commands: Sequence[str], lower: Path) -> None:
        """Run commands in a shell, with the upper's kubeconfig as $UPPER and the lower's (`lower`) as $LOWER."""
        program = Path(self.sandbox.kubectl_command()[0]).parent
        configs = self.sandbox.directory
        variables = {
            "PATH": f"{program}:{os.environ['PATH']}",
            "UPPER": f"{configs / UPPER}.kubeconfig",
            "LOWER": str(lower),
        }
        script = "\n".join((f"cd {shlex.quote(str(directory))}", *commands))
        done = await run_command(["env", *(f"{key}={value}" for key, value in variables.items()), "sh", "-euc", script])
        assert (done.code, done.err) == (0, ""), done


@asynccontextmanager
async def namespaced(sandbox: Sandbox, *clusters: str, name: str = "") -> AsyncIterator[tuple[str, dict[str, Site]]]:
    """Yield a name and an administrator's connection to each cluster; remove the objects of that name at the end."""
    name = name or f"set-up-{uuid4().hex[:8]}"
    sites = {cluster: Site(sandbox.clusters[cluster]) for cluster in clusters}
    try:
        yield name, sites
    finally:
        for site in sites.values():
            await remove_setup(site, name)
            await site.close()


async def remove_setup(site: Site, name: str) -> None:
    """Remove from a cluster the namespace of a setup, and its roles and its Lease outside of the namespace."""
    group = "/apis/rbac.authorization.k8s.io/v1"
    for kind in CLUSTER_WIDE:
        found = await site.read(f"{group}/{kind}?labelSelector=app.kubernetes.io/name=tensile")
        for one in found["items"]:
            if one["metadata"]["name"].startswith(f"tensile:{name}:"):
                await site.delete(f"{group}/{kind}/{one['metadata']['name']}")
    for namespace, kind in product(("kube-node-lease", "kube-system"), ("roles", "rolebindings")):
        elsewhere = f"{group}/namespaces/{namespace}/{kind}"
        for one in (await site.read(elsewhere))["items"]:
            if one["metadata"]["name"].startswith(f"tensile:{name}:"):
                await site.delete(f"{elsewhere}/{one['metadata']['name']}")
    await site.delete(lease_ref(name).path())
    await site.delete(f"/api/v1/namespaces/{name}")
    await site.gone(f"/api/v1/namespaces/{name}", limit=60)


def commands_in(text: str) -> list[str]:
    """Return the commands in the head comment of a manifest, including documents that they embed."""
    return [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]


def overlay(directory: Path, base: Path) -> Path:
    """Make a kustomization that includes `base` without its storage class, which all tests share."""
    storage: Manifest = yaml.safe_load((base / STORAGE).read_text())
    patch = {"$patch": "delete", **{key: storage[key] for key in ("apiVersion", "kind", "metadata")}}
    body = {"resources": [os.path.relpath(base, directory)], "patches": [{"patch": yaml.safe_dump(patch)}]}
    directory.mkdir()
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(body))
    return directory
