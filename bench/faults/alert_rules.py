"""Test with a real Prometheus that every alert of manifests/monitoring fires for its cause, and clears after it.

    .venv/bin/python -m bench.faults.alert_rules

The rules are those that ship, with shorter times: one second between two evaluations, `for: 2s` and windows of 20
seconds. A rule whose alert is not caused here counts as broken, so that no rule ships without having fired once. Each
lower cluster has its own causes, one after the other; edits of the topology are a third sequence beside them.

A bug in a rule of the engine is planted in a copy of the engine: the rule fails for Services of one name.
"""

import argparse
import asyncio
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import yaml

from bench.faults.credential_faults import put
from bench.kit import topologies
from bench.kit.child_processes import ROOT, Child, after
from bench.kit.clusters import on_clusters
from bench.kit.faultproxy.faults import Fault, Hung, Passed, Refused
from bench.kit.faultproxy.proxy import PassThrough
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.faultproxy.tls import signer_of
from bench.kit.oracles import is_ready
from bench.kit.prometheus import PrometheusProcess, program, running
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import AWAY, DEPLOYMENTS, MERGE, Manifest
from bench.kit.spareports import spare_ports
from bench.kit.workload import deployment, pod_spec
from bench.mutation.bugs.__main__ import planted
from bench.mutation.bugs.table import Bug
from tensile.names import FIELD_MANAGER, OWNER, OWNER_NAME, UPPER_UID
from tensile.sandbox.credentials import VALIDITY, kubelet_pair
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import LOOPBACK, UPPER

NAME = "faults-alerts"
RULES = ROOT / "manifests" / "monitoring" / "rules.yaml"
JOB = "tensile-metrics"
"""The name of the Service with which the ServiceMonitor selects the engines; the rules select by it."""
A, B = LOWERS
FOR, WINDOW = "2s", "20s"
LIMIT = 120.0
"""Seconds in which an alert has to fire, and to clear."""
LOOK = 0.25
LONG = 33.0
"""Seconds that a pod has to wait to count as slow; the threshold of the rule is 30."""
STUCK = ("> 300", "> 5")
"""The only threshold that is shortened: a request without an answer ends after 30 seconds, and is sent again."""
ENDS_IN = timedelta(days=1)
FAILS = "fails"
BUG = Bug(
    "the rule of Services fails for one name",
    "tensile/reconcile/rules/services.py",
    "    manifest = _wanted(pair)\n    if manifest is None:\n        return gone(pair)\n    ref, copy,",
    f"    manifest = _wanted(pair)\n    if manifest is None:\n        return gone(pair)\n"
    f'    if pair.key.name == "{FAILS}":\n        raise LookupError("a bug")\n    ref, copy,',
    (),
)
_DURATION = re.compile(r"(?<=\[)\w+(?=\])|(?<=offset )\w+")


def shortened(rules: Manifest) -> Manifest:
    """Return the groups of a PrometheusRule as Prometheus reads them, with shorter times."""
    groups = []
    for group in rules["spec"]["groups"]:
        own = [_shortened(rule) for rule in group["rules"]]
        groups.append({"name": group["name"], "rules": own})
    return {"groups": groups}


def _shortened(rule: Manifest) -> Manifest:
    expression = _DURATION.sub(WINDOW, rule["expr"]).replace(*STUCK)
    return {**rule, "expr": expression, **({"for": FOR} if "for" in rule else {})}


class AlertWatcher:
    """Follows the alerts in Prometheus.

    `fired` and `cleared` are the seconds from a cause, and from its end. `tried` are the alerts that were awaited.
    """

    def __init__(self, prometheus: PrometheusProcess) -> None:
        self._prometheus = prometheus
        self.firing: set[str] = set()
        self.tried: set[str] = set()
        self.fired: dict[str, float] = {}
        self.cleared: dict[str, float] = {}
        self.broken: list[str] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator["AlertWatcher"]:
        """Follow the alerts inside the block."""
        task = asyncio.create_task(self._poll())
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _poll(self) -> None:
        while True:
            with suppress(*AWAY):
                found = (await self._prometheus.get("alerts"))["alerts"]
                self.firing = {one["labels"]["alertname"] for one in found if one["state"] == "firing"}
            await asyncio.sleep(LOOK)

    async def wait_until_firing(self, alert: str) -> None:
        """Wait until an alert fires."""
        self.tried.add(alert)
        await self._until(alert, self.fired, firing=True)

    async def wait_until_cleared(self, alert: str) -> None:
        """Wait until an alert has cleared; one that never fired was reported before."""
        if alert in self.fired:
            await self._until(alert, self.cleared, firing=False)
            print(f"{alert}: fired {self.fired[alert]} s, cleared {self.cleared.get(alert)} s", flush=True)

    async def _until(self, alert: str, times: dict[str, float], *, firing: bool) -> None:
        begin = time.monotonic()
        while (alert in self.firing) != firing:
            if time.monotonic() - begin > LIMIT:
                self.broken.append(f"{alert} {'does not fire' if firing else 'does not clear'} within {LIMIT:g} s")
                return
            await asyncio.sleep(LOOK)
        times[alert] = round(time.monotonic() - begin, 1)

    async def ends(self) -> None:
        """Wait until no alert fires: a cause may trigger other alerts beside its own, which have to clear too."""
        begin = time.monotonic()
        while self.firing:
            if time.monotonic() - begin > LIMIT:
                self.broken += [f"{alert} still fires {LIMIT:g} s after all causes" for alert in sorted(self.firing)]
                return
            await asyncio.sleep(LOOK)

    async def within(
        self, alert: str, cause: Callable[[], Awaitable[object]], end: Callable[[], Awaitable[object]]
    ) -> None:
        """Start a cause and wait until the alert fires, then end the cause and wait until the alert clears."""
        await cause()
        await self.wait_until_firing(alert)
        await end()
        await self.wait_until_cleared(alert)


class FaultForMatching(PassThrough):
    """A director that applies one fault to the requests that match."""

    def __init__(self, fault: Fault, concerns: Callable[[ProxiedRequest], bool]) -> None:
        self._fault, self._concerns = fault, concerns

    async def fault_for(self, request: ProxiedRequest) -> Fault:
        """Return the fault, or let the request pass."""
        return self._fault if self._concerns(request) else Passed()


class Causes:
    """The causes of all alerts, on a rig; `engine` is the directory of the program with the bug.

    `other` are the ports of a second engine.
    """

    def __init__(self, rig: Rig, watcher: AlertWatcher, engine: Path, other: list[int]) -> None:
        self.rig, self.watcher, self._engine, self._other = rig, watcher, engine, other
        self.namespace = f"{rig.name}-shop"

    # The engines.

    def start(self, file: str, *options: str) -> Child:
        """Start an engine on a topology file of the rig."""
        topology = str(self.rig.directory / file)
        command = ["tensile", "run", "-f", topology, "--log-format", "json", *options]
        log = self.rig.log if options else self.rig.log.with_name("other.log")
        return Child(command, self.rig.sandbox, log, after(f"cd {self._engine}"))

    async def engines(self) -> None:
        """Run no engine, then one without the lease, then two leaders; at the end one engine leads."""
        rig, watcher = self.rig, self.watcher
        await watcher.wait_until_firing("TensileDown")
        rig.proxies[UPPER].director = FaultForMatching(Refused(403), _is_election)
        rig.child = self.start("topology.yaml", "--leader-elect")
        await watcher.wait_until_cleared("TensileDown")
        await watcher.wait_until_firing("TensileNoLeader")
        rig.set_director()
        await watcher.wait_until_cleared("TensileNoLeader")
        second = self.start(self._second())
        try:
            await watcher.wait_until_firing("TensileSeveralLeaders")
        finally:
            second.stop()
        await watcher.wait_until_cleared("TensileSeveralLeaders")
        await rig.wait_until_usable()

    def _second(self) -> str:
        """Write the topology for a second engine, with other ports, and return the file's name."""
        found = orjson.loads((self.rig.directory / "topology.yaml").read_bytes())
        for lower, port in zip(found["lowers"], self._other, strict=False):
            lower["node"]["kubeletPort"] = port
        found["kubelet"]["port"], found["telemetry"]["port"] = self._other[-2:]
        (self.rig.directory / "second.yaml").write_bytes(orjson.dumps(found))
        return "second.yaml"

    # The causes in one lower cluster.

    async def objects(self) -> None:
        """Cause the alerts of objects: another client, a bug, a quota, and an apiserver that does not answer."""
        await self._drift()
        await self._strays()
        await self._bug()
        await self._blocked()
        await self._stuck()

    async def run(self, name: str) -> Manifest:
        """Create a pod on the node of the first lower, with a ConfigMap."""
        spec = pod_spec()
        spec["nodeName"] = self.rig.nodes[A]
        spec["containers"][0]["envFrom"] = [{"configMapRef": {"name": "settings"}}]
        return await self.rig.upper.create(self.path("pods"), {"metadata": {"name": name}, "spec": spec})

    def path(self, plural: str, name: str = "") -> str:
        """Return the path of a collection in the namespace, or of an object."""
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def prepared(self) -> None:
        """Run a first pod fast enough not to count as slow, and a pod of a Deployment, which a drain would move."""
        upper = self.rig.upper
        await upper.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        await upper.until(self.path("serviceaccounts", "default"), bool)
        await upper.create(self.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"color": "blue"}})
        await self.run("first")
        await upper.until(self.path("pods", "first"), is_ready)
        await upper.create(DEPLOYMENTS.format(self.namespace), deployment("web", 1, A))
        await upper.until_all(
            f"{self.path('pods')}?labelSelector=app=web", lambda found: any(map(is_ready, found.values()))
        )

    async def _drift(self) -> None:
        """Let another client change a copy once; the alert clears by itself."""
        change = {"data": {"color": "red"}}
        await self.watcher.within(
            "TensileDrift",
            lambda: self.rig.sites[A].call("PATCH", self.path("configmaps", "settings"), change, MERGE),
            _nothing,
        )

    async def _strays(self) -> None:
        """Let a user of the lower cluster forge our marks in a namespace that the upper cluster does not have."""
        below, namespace = self.rig.sites[A], f"{self.rig.name}-stray"
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        marks = {"labels": {OWNER: self.rig.mark}, "annotations": {OWNER_NAME: self.rig.name, UPPER_UID: "nobody"}}
        await below.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        await self.watcher.within(
            "TensileStrayObjects",
            lambda: below.create(f"{path}?fieldManager={FIELD_MANAGER}", {"metadata": {"name": "stray", **marks}}),
            lambda: below.delete(f"{path}/stray"),
        )
        await below.delete(f"/api/v1/namespaces/{namespace}")

    async def _bug(self) -> None:
        """Make the rule of Services fail as long as the Service exists."""
        service = {"metadata": {"name": FAILS}, "spec": {"ports": [{"port": 80}]}}
        await self.watcher.within(
            "TensileReconcilePanics",
            lambda: self.rig.upper.create(self.path("services"), service),
            lambda: self.rig.upper.delete(self.path("services", FAILS)),
        )

    async def _blocked(self) -> None:
        """Block further pods with a quota of the lower cluster, for long enough that their creation counts as slow."""
        below, begin = self.rig.sites[A], time.monotonic()
        quota = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "1"}}}
        await below.create(self.path("resourcequotas"), quota)
        await below.until(self.path("resourcequotas", "full"), lambda found: found["status"]["hard"])
        await self.run("second")
        await self.watcher.wait_until_firing("TensileObjectsBlocked")
        await asyncio.sleep(max(0.0, begin + LONG - time.monotonic()))
        await below.delete(self.path("resourcequotas", "full"))
        await self.watcher.wait_until_cleared("TensileObjectsBlocked")
        await self.watcher.wait_until_firing("TensilePodCreationSlow")
        await self.watcher.wait_until_cleared("TensilePodCreationSlow")

    async def _stuck(self) -> None:
        """Let the lower apiserver not answer the creation of a pod."""
        proxy = self.rig.proxies[A]
        proxy.director = FaultForMatching(Hung(), lambda request: (request.verb, request.kind) == ("create", "pods"))
        await self.run("third")
        await self.watcher.wait_until_firing("TensileReconcileStuck")
        proxy.director = PassThrough()
        await self.watcher.wait_until_cleared("TensileReconcileStuck")

    # The causes in the other lower cluster.

    async def away(self) -> None:
        """Let the other lower cluster return errors, and then no answers at all."""
        proxy = self.rig.proxies[B]
        proxy.director = FaultForMatching(Refused(503), lambda _request: True)
        proxy.reset_connections()
        await self.watcher.wait_until_firing("TensileApiserverErrors")
        proxy.director = PassThrough()
        await self.watcher.wait_until_cleared("TensileApiserverErrors")
        proxy.freeze()
        await self.watcher.wait_until_firing("TensileLowerUnreachable")
        proxy.thaw()
        await self.watcher.wait_until_cleared("TensileLowerUnreachable")

    # The causes in files.

    async def edits(self) -> None:
        """Write an invalid topology, one that requires approval, and a certificate that expires soon."""
        rig, watcher = self.rig, self.watcher
        put(rig.directory / "topology.yaml", b"kind: Nothing\n")
        await watcher.wait_until_firing("TensileTopologyRejected")
        rig.save()
        await watcher.wait_until_cleared("TensileTopologyRejected")
        found = orjson.loads((rig.directory / "topology.yaml").read_bytes())
        found["lowers"][0]["maintenance"] = "drain"
        topologies.save(found, rig.directory)
        await watcher.wait_until_firing("TensileApprovalPending")
        rig.save()
        await watcher.wait_until_cleared("TensileApprovalPending")
        self._certificate(VALIDITY - ENDS_IN)
        await watcher.wait_until_firing("TensileCertificateExpires")
        self._certificate(timedelta())
        await watcher.wait_until_cleared("TensileCertificateExpires")

    def _certificate(self, ago: timedelta) -> None:
        """Write a serving certificate for the virtual nodes, issued so long ago."""
        signer = signer_of(self.rig.sandbox.clusters[UPPER].audit_log.parent / "pki")
        pair = kubelet_pair(replace(signer, now=signer.now - ago))
        put(self.rig.directory / "kubelet.key", pair.key)
        put(self.rig.directory / "kubelet.crt", pair.certificate)


async def _nothing() -> None:
    """Do nothing; the cause ends by itself."""


def _is_election(request: ProxiedRequest) -> bool:
    return (request.resource, request.namespace) == ("leases", "kube-system")


def with_bug(directory: Path) -> Path:
    """Copy the program, plant the bug, and return the directory to run it in."""
    shutil.copytree(ROOT / "tensile", directory / "tensile", ignore=shutil.ignore_patterns("__pycache__"))
    file = directory / BUG.path
    file.write_text(planted(file.read_text(), BUG))
    return directory


async def campaign(prometheus: str, sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
    """Cause every alert, and return when each fired and cleared."""
    rules = shortened(yaml.safe_load(RULES.read_text()))
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    for folder in ("rig", "engine", "prometheus"):
        (scratch / folder).mkdir()
    async with Rig(sandbox, scratch / "rig") as rig:
        rig.extra_fields = {"guard": {"approveOver": 0}}
        rig.save()
        other = spare_ports(len(LOWERS) + 2)
        targets = [f"{LOOPBACK}:{port}" for port in (rig.ports[-1], other[-1])]
        scrape = {"job_name": JOB, "static_configs": [{"targets": targets}]}
        async with (
            running(prometheus, scratch / "prometheus", [scrape], rules) as started,
            AlertWatcher(started).watching() as watcher,
        ):
            causes = Causes(rig, watcher, with_bug(scratch / "engine"), other)
            await causes.engines()
            await causes.prepared()
            await asyncio.gather(causes.objects(), causes.away(), causes.edits())
            await watcher.ends()
    never = [f"{name} is brought about by nothing here" for name in names if name not in watcher.tried]
    times = {name: {"fired_s": watcher.fired.get(name), "cleared_s": watcher.cleared.get(name)} for name in names}
    return {"alerts": times, "broken": [*watcher.broken, *never]}


def main() -> int:
    """Run the campaign, unless Prometheus is not installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sandbox", type=Path, help="the directory of a running sandbox; default: start one")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    prometheus = program()
    if prometheus is None:
        print("alerts: skipped: no prometheus is on the PATH (Debian: package prometheus)")
        return 0
    kubernetes, result = on_clusters(lambda sandbox, scratch: campaign(prometheus, sandbox, scratch), args.sandbox)
    path = keep(args.results, NAME, kubernetes, result)
    return verdict("alerts", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
