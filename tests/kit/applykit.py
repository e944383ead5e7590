"""What `tensile manifests` gives, applied to a sandbox's clusters by kubectl, by names of a test's own."""

import os
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from enginekit import UPPER, Done, ran
from sitekit import Manifest, Site

from tensile.deploy.manifests import STORAGE, RenderOptions, rendering
from tensile.deploy.setup import WEBHOOK, Setup
from tensile.engine.leader_election import lease_ref
from tensile.sandbox.sandbox import Sandbox

ENFORCE = "pod-security.kubernetes.io/enforce"
WARN = {"pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/warn-version": "latest"}
CLUSTER_WIDE = ("clusterroles", "clusterrolebindings")


def setup(name: str, **fields: Any) -> Setup:
    """Make a set-up of a topology of that name, in a namespace of that name; of two lowers unless others are given.

    Each lower has its kubeconfig in a Secret there, and the webhook has its Service.
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


class Hand:
    """An administrator's kubectl, at the clusters of a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def __call__(self, *arguments: str, cluster: str = UPPER, stdin: str = "") -> Done:
        """Run it to its end."""
        return await ran(self.sandbox.kubectl_command(*arguments, cluster=cluster), stdin=stdin)

    async def well(self, *arguments: str, cluster: str = UPPER, stdin: str = "") -> str:
        """Run it where it has to end well and without a warning, and return what it prints."""
        done = await self(*arguments, cluster=cluster, stdin=stdin)
        assert (done.code, done.err) == (0, ""), done
        return done.out

    async def shell(self, directory: Path, commands: Sequence[str], lower: Path) -> None:
        """Run commands as a person pastes them into a shell, with kubeconfigs of the upper and (`lower`) of a lower."""
        program = Path(self.sandbox.kubectl_command()[0]).parent
        configs = self.sandbox.directory
        variables = {
            "PATH": f"{program}:{os.environ['PATH']}",
            "UPPER": f"{configs / UPPER}.kubeconfig",
            "LOWER": str(lower),
        }
        script = "\n".join((f"cd {shlex.quote(str(directory))}", *commands))
        done = await ran(["env", *(f"{key}={value}" for key, value in variables.items()), "sh", "-euc", script])
        assert (done.code, done.err) == (0, ""), done


@asynccontextmanager
async def namespaced(sandbox: Sandbox, *clusters: str, name: str = "") -> AsyncIterator[tuple[str, dict[str, Site]]]:
    """Yield a name and an administrator's connection to each cluster; objects of that name are removed at the end."""
    name = name or f"set-up-{uuid4().hex[:8]}"
    sites = {cluster: Site(sandbox.clusters[cluster]) for cluster in clusters}
    try:
        yield name, sites
    finally:
        for site in sites.values():
            await cleared(site, name)
            await site.close()


async def cleared(site: Site, name: str) -> None:
    """Remove the namespace of a set-up from a cluster, and the roles and the Lease that are outside of it."""
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
    """Return the commands that a head comment holds, with the document among them."""
    return [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]


def overlay(directory: Path, base: Path) -> Path:
    """Make a kustomization of one's own beside another: all of it but the storage class, which all tests share."""
    storage: Manifest = yaml.safe_load((base / STORAGE).read_text())
    patch = {"$patch": "delete", **{key: storage[key] for key in ("apiVersion", "kind", "metadata")}}
    body = {"resources": [os.path.relpath(base, directory)], "patches": [{"patch": yaml.safe_dump(patch)}]}
    directory.mkdir()
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(body))
    return directory
