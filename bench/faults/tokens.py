"""A pod in a lower cluster calls the upper cluster with its mounted token, for longer than two token lifetimes.

    .venv/bin/python -m bench.faults.tokens --pods 2 --rounds 1

Tokens of ten minutes, the shortest lifetime that exists, are read every few seconds from where the pod's containers
find them: on a real node through `kubectl exec`, otherwise from the Secret in the lower cluster that holds them. Each
token has to allow listing upper pods at that moment. At the end the pods are deleted, and their last tokens have to be
refused soon.
"""

import asyncio
import os
import ssl
import sys
import tempfile
import time
from argparse import Namespace
from base64 import b64decode
from pathlib import Path
from typing import Any

import aiohttp

from bench.kit.sites import NODES, PODS, until
from bench.kit.trial import NAMESPACE, Trial, run
from tensile.sandbox import real_node
from tensile.sandbox.binaries import cache_directory
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

ROBOT = "robot"
LOWER = "lower-a"
SECONDS = 600
RENEWALS = 2
STEP = 5.0
REFUSED_WITHIN = 15.0
LIMIT = RENEWALS * SECONDS + 300.0
IMAGE = "busybox"
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
PLACE = "/var/run/upper"


def pod(name: str) -> dict[str, Any]:
    """Return a pod of the robot account with a token of ten minutes, on the first lower cluster."""
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": SECONDS}}
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "100000"],
        "volumeMounts": [{"name": "upper", "mountPath": PLACE}],
    }
    spec = {
        "nodeName": LOWER,
        "serviceAccountName": ROBOT,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "upper", "projected": {"sources": [token]}}],
    }
    return {"metadata": {"name": name}, "spec": spec}


class Caller:
    """Calls the upper cluster with the tokens of one pod, and records the results."""

    def __init__(self, trial: Trial, made: dict[str, Any], *, is_real: bool) -> None:
        self.name = str(made["metadata"]["name"])
        self._uid = made["metadata"]["uid"]
        self._trial = trial
        self._is_real = is_real
        self.tokens: list[str] = []
        self.calls = 0
        self.broken: list[str] = []

    async def look(self) -> None:
        """Read the token and list pods with it."""
        token = await self._token()
        if token not in self.tokens:
            self.tokens.append(token)
        status = await self.listed(token)
        self.calls += 1
        if status != 200:  # noqa: PLR2004
            self.broken.append(f"{self.name}: token {len(self.tokens)} was answered with {status}")

    async def listed(self, token: str) -> int:
        """List upper pods with a token, and return the status."""
        cluster = self._trial.sandbox.clusters[UPPER]
        tls = ssl.create_default_context(cafile=str(cluster.audit_log.parent / "pki" / "ca.crt"))
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=headers) as session,
            session.get(cluster.server + PODS.format(NAMESPACE)) as answer,
        ):
            return answer.status

    async def _token(self) -> str:
        if not self._is_real:
            secret = await self._trial.lowers[LOWER].call("GET", f"{CORE}/secrets/upper-token-{self._uid}")
            return b64decode(secret["data"]["token"]).decode()
        command = ("-n", NAMESPACE, "exec", self.name, "--", "cat", f"{PLACE}/token")
        done = await asyncio.to_thread(self._trial.sandbox.kubectl, *command, cluster=UPPER)
        return str(done.stdout)


async def called(trial: Trial, args: Namespace, *, is_real: bool) -> dict[str, Any]:
    """Let pods call the upper cluster across token renewals, delete them, and return the result with the failures."""
    topology = trial.sandbox.directory / "topology.yaml"
    topology.write_text(topology.read_text() + "serviceAccounts: {identity: upper}\n")
    await trial.start_engine_and_nodes()
    await robot(trial)
    made = [await trial.upper.call("POST", PODS.format(NAMESPACE), pod(f"p{number}")) for number in range(args.pods)]
    await trial.wait_until_settled(args.pods)
    callers = [Caller(trial, one, is_real=is_real) for one in made]
    begin = time.monotonic()
    while any(len(one.tokens) <= RENEWALS for one in callers) and time.monotonic() - begin < LIMIT:
        await asyncio.gather(*(one.look() for one in callers))
        await asyncio.sleep(STEP)
    took = time.monotonic() - begin
    for one in made:
        await trial.upper.delete(f"{PODS.format(NAMESPACE)}/{one['metadata']['name']}")
    await trial.wait_until_settled(0)
    gone = await refused(trial, callers)
    broken = [failure for one in callers for failure in one.broken]
    broken += [f"{one.name}: {len(one.tokens) - 1} renewals" for one in callers if len(one.tokens) <= RENEWALS]
    broken += [f"a token or its Secret was there {gone:.1f} s after the pods"] if gone > REFUSED_WITHIN else []
    return {
        "read_in": "the container" if is_real else "the Secret",
        "token_s": SECONDS,
        "renewals": [len(one.tokens) - 1 for one in callers],
        "calls": sum(one.calls for one in callers),
        "took_s": round(took, 1),
        "refused_after_s": round(gone, 1),
        "broken": broken,
    }


async def robot(trial: Trial) -> None:
    """Create an upper service account that may list pods."""
    subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": ROBOT}
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROBOT}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    name = {"metadata": {"name": ROBOT}}
    await trial.upper.call("POST", f"{CORE}/serviceaccounts", name)
    await trial.upper.call("POST", f"{RBAC}/roles", {**name, "rules": rules})
    await trial.upper.call("POST", f"{RBAC}/rolebindings", {**name, "roleRef": role_ref, "subjects": [subject]})


async def refused(trial: Trial, callers: list[Caller]) -> float:
    """Return the seconds until no last token is accepted and no Secret of this topology is in the lower cluster."""
    begin = time.monotonic()

    async def holds() -> bool:
        """Report whether every last token is refused and no Secret is left."""
        statuses = [await one.listed(one.tokens[-1]) for one in callers]
        left = await trial.lowers[LOWER].items(f"{CORE}/secrets?labelSelector=tensile-kube.io/owner={trial.mark}")
        return not left and all(status == 401 for status in statuses)  # noqa: PLR2004

    await until(holds, "the tokens are refused", 4 * REFUSED_WITHIN)
    return time.monotonic() - begin


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Run with the arguments of the command line."""
    runs = []
    for _ in range(args.rounds):
        async with Trial(sandbox) as trial:
            nodes = await trial.lowers[LOWER].items(NODES)
            is_real = any("containerd" in one["status"]["nodeInfo"]["containerRuntimeVersion"] for one in nodes)
            runs.append(await called(trial, args, is_real=is_real))
        print(" ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
    return {"runs": runs, "broken": [failure for one in runs for failure in one["broken"]]}


def options() -> Options:
    """Return options with a real node if the machine allows one."""
    with tempfile.TemporaryDirectory() as scratch:
        why = real_node.obstacle((Path(scratch), cache_directory(os.environ)), os.environ)
    print(f"nodes in name only: {why}" if why else "a real node", flush=True)
    return Options(nodes=1, real_node=not why)


if __name__ == "__main__":
    sys.exit(run("tokens", scenario, options(), pods=2, rounds=1, doc=__doc__ or ""))
