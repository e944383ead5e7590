"""Sixty-two edits of a topology, each with the workload that runs and the number of entries its plan should have.

To exclude accidental agreement, the plan is not only compared with what happens: a case also states how many entries
each part of the plan's cost has, none if the edit costs nothing.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from bench.conformance.costs.setup import (
    ACCOUNTS,
    BUDGETS,
    CLAIMS,
    DAEMON_SETS,
    JOBS,
    SERVICES,
    STATEFUL_SETS,
    A,
    B,
    CostClusters,
    Document,
    Edit,
    of,
    template,
)
from bench.kit.sites import DEPLOYMENTS, PODS, Manifest, phase_of
from bench.kit.spareports import spare_port
from tensile.names import VIRTUAL_POD

Load = Callable[[CostClusters], Awaitable[None]]
"""Creates a workload in the latest namespace of a case."""
CONFIG_MAPS, SECRETS = "/api/v1/namespaces/{}/configmaps", "/api/v1/namespaces/{}/secrets"
RUNS_ON = {"sandbox.tensile-kube.io/outcome": "run"}
TAINT = {"key": "example.com/repair", "value": "now", "effect": "NoExecute"}


class Case(NamedTuple):
    """An edit: its kind, the workload, the edits in force before, the edits to apply, and the expected plan.

    `says` is the number of entries of each part of the cost.
    """

    kind: str
    loads: tuple[Load, ...]
    edits: tuple[Edit, ...]
    says: Mapping[str, int] = {}
    before: tuple[Edit, ...] = ()


# Workloads.


def deployed(app: str = "web", lower: str = A, replicas: int = 2, **spec: Any) -> Load:
    """Return a load: a Deployment behind a Service, with a ConfigMap and a Secret that its pods use."""

    async def load(clusters: CostClusters) -> None:
        """Create the objects, and wait until the pods run."""
        env = [{"configMapRef": {"name": app}}, {"secretRef": {"name": app}}]
        await clusters.make(CONFIG_MAPS, app, {"data": {"level": "info"}})
        await clusters.make(SECRETS, app, {"stringData": {"key": "value"}})
        await clusters.make(SERVICES, app, {"spec": {"selector": {"app": app}, "ports": [{"port": 80}]}})
        pods = template(app, **{"container": {"envFrom": env}, **spec})
        body = {"spec": {"replicas": replicas, "selector": of(app), "template": pods}}
        await clusters.run_in(lower, app, replicas, clusters.make(DEPLOYMENTS, app, body))

    return load


def with_budget(app: str, unavailable: int) -> Load:
    """Return a load: a PodDisruptionBudget for an app that runs."""

    async def load(clusters: CostClusters) -> None:
        """Create the budget, and wait until Kubernetes has counted its pods."""
        await clusters.make(BUDGETS, app, {"spec": {"maxUnavailable": unavailable, "selector": of(app)}})
        await clusters.until_counted(app, unavailable)

    return load


def pinned(lower: str = A) -> dict[str, Any]:
    """Return the fields that keep a pod on the node of one lower."""
    return {"nodeSelector": {"clusterID": lower}}


async def bare(clusters: CostClusters) -> None:
    """Run a pod without a controller, which nothing creates again."""
    await clusters.run_in(A, "alone", 1, clusters.make(PODS, "alone", template("alone")))


async def stateful(clusters: CostClusters) -> None:
    """Run a StatefulSet of one replica, with a claim of its own."""
    claims = [{"metadata": {"name": "data"}, "spec": _claim()}]
    body = {
        "serviceName": "db",
        "replicas": 1,
        "selector": of("db"),
        "template": template("db", container=_mounted("data")),
        "volumeClaimTemplates": claims,
    }
    await clusters.run_in(A, "db", 1, clusters.make(STATEFUL_SETS, "db", {"spec": body}))


async def claimed(clusters: CostClusters) -> None:
    """Run a pod of a Deployment that uses a claim."""
    await clusters.make(CLAIMS, "files", {"spec": _claim()})
    volumes = [{"name": "files", "persistentVolumeClaim": {"claimName": "files"}}]
    await deployed("filer", replicas=1, container=_mounted("files"), volumes=volumes)(clusters)


async def daemon(clusters: CostClusters) -> None:
    """Run a DaemonSet on every virtual node, whose pods are mirrored because of their label."""
    pods = template("agent", metadata={"labels": {"app": "agent", VIRTUAL_POD: "true"}})
    await clusters.run_in(
        A, "agent", 2, clusters.make(DAEMON_SETS, "agent", {"spec": {"selector": of("agent"), "template": pods}})
    )


async def job(clusters: CostClusters) -> None:
    """Run a Job that does not complete."""
    pods = template("once", metadata={"labels": {"app": "once"}, "annotations": RUNS_ON}, restartPolicy="Never")
    await clusters.run_in(A, "once", 1, clusters.make(JOBS, "once", {"spec": {"template": pods}}))


async def completed(clusters: CostClusters) -> None:
    """Run a Job until it succeeds: its pod stays."""
    pods = template("done", restartPolicy="Never")
    body = {"spec": {"template": pods}}
    await clusters.run_in(A, "done", 1, clusters.make(JOBS, "done", body), lambda pod: phase_of(pod) == "Succeeded")


async def waiting(clusters: CostClusters) -> None:
    """Bind a pod for which its lower has no node."""
    pods = template("late", nodeName=A, nodeSelector={"disk": "ssd"})
    await clusters.run_in(A, "late", 1, clusters.make(PODS, "late", pods), lambda pod: phase_of(pod) == "Pending")


async def with_account(clusters: CostClusters) -> None:
    """Run pods that have a ServiceAccount of their own."""
    await clusters.make(ACCOUNTS, "robot", {})
    await deployed("bot", serviceAccountName="robot")(clusters)


async def another_namespace(clusters: CostClusters) -> None:
    """Use a second namespace from now on."""
    await clusters.add_namespace()


def _claim() -> Manifest:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def _mounted(name: str) -> Manifest:
    return {"volumeMounts": [{"name": name, "mountPath": f"/{name}"}]}


# Edits.


def lower(name: str, /, **fields: Any) -> Edit:
    """Return an edit that sets fields of a lower; the fields of a section are merged into the existing ones."""

    def edit(topology: Document, _namespaces: list[str]) -> None:
        """Set the fields of the lower with that name."""
        found = next(one for one in topology["lowers"] if one["name"] == name)
        for key, value in fields.items():
            found[key] = {**found.get(key, {}), **value} if isinstance(value, dict) else value

    return edit


def top(**fields: Any) -> Edit:
    """Return an edit that sets fields of the topology."""

    def edit(topology: Document, _namespaces: list[str]) -> None:
        """Merge the fields into the existing ones."""
        for key, value in fields.items():
            topology[key] = {**topology.get(key, {}), **value} if isinstance(value, dict) else value

    return edit


def without(*names: str) -> Edit:
    """Return an edit that removes lowers."""

    def edit(topology: Document, _namespaces: list[str]) -> None:
        """Keep only the other lowers."""
        topology["lowers"] = [one for one in topology["lowers"] if one["name"] not in names]

    return edit


def excluded(topology: Document, namespaces: list[str]) -> None:
    """Exclude the first namespace of the case."""
    topology["excludeNamespaces"] = ["kube-system", namespaces[0]]


def drained(*names: str) -> tuple[Edit, ...]:
    """Return edits that drain lowers."""
    return tuple(lower(name, maintenance="drain") for name in names)


def cordoned(*names: str) -> tuple[Edit, ...]:
    """Return edits that cordon lowers."""
    return tuple(lower(name, maintenance="cordon") for name in names)


ROOM = top(descheduler={"enabled": True, "interval": "10m", "pendingLongerThan": "10m"})
"""Makes the engine watch the real nodes, so that a plan knows where pods fit."""
ALSO_BARE = top(descheduler={"recreateBarePods": True})
ALL = ["PV", "Service", "ServiceAccount"]


def node(name: str, /, **fields: Any) -> Edit:
    """Return an edit that sets fields of a lower's virtual node."""
    return lower(name, node=fields)


def at_another_port(name: str) -> Edit:
    """Return an edit that moves the kubelet API of a lower's node to another port."""

    def edit(topology: Document, namespaces: list[str]) -> None:
        """Set a port that is free now."""
        node(name, kubeletPort=spare_port())(topology, namespaces)

    return edit


def tolerant(seconds: int | None = None) -> dict[str, Any]:
    """Return the toleration of TAINT for a pod, without a limit or for some seconds."""
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    return {"tolerations": [{"key": TAINT["key"], "operator": "Exists", "effect": "NoExecute", **limit}]}


WEB, DB = deployed(), stateful
PROVIDER_TAINT = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
MOVED, EVICTED = {"moved": 2, "endpoints": 1}, {"evicted": 2, "endpoints": 1}
CASES: Mapping[str, Case] = {
    "remove-web": Case("remove", (WEB,), (without(A),)),
    "remove-empty": Case("remove", (WEB,), (without(B),)),
    "remove-stateful": Case("remove", (DB,), (without(A),)),
    "remove-bare": Case("remove", (bare, completed), (without(A),)),
    "remove-two": Case("remove", (WEB, deployed("api", B)), (without(A, B),)),
    "cordon-web": Case("cordon", (WEB,), cordoned(A)),
    "cordon-bare": Case("cordon", (bare, completed), cordoned(A)),
    "cordon-stateful": Case("cordon", (DB,), cordoned(A)),
    "cordon-all": Case("cordon", (WEB, deployed("api", B)), cordoned(A, B)),
    "drain-web": Case("drain", (WEB,), drained(A), MOVED, (ROOM,)),
    "drain-unknown": Case("drain", (WEB,), drained(A), EVICTED),
    "drain-pinned": Case("drain", (deployed(**pinned()),), drained(A), {"stranded": 2, "endpoints": 1}, (ROOM,)),
    "drain-budget": Case("drain", (WEB, with_budget("web", 1)), drained(A), {**MOVED, "budgets": 1}, (ROOM,)),
    "drain-blocked": Case("drain", (WEB, with_budget("web", 0)), drained(A), {**MOVED, "budgets": 1}, (ROOM,)),
    "drain-bare-stays": Case("drain", (bare,), drained(A), {}, (ROOM,)),
    "drain-bare-moves": Case("drain", (bare,), drained(A), {"moved": 1}, (ROOM, ALSO_BARE)),
    "drain-stateful": Case("drain", (DB,), drained(A), {"stranded": 1}, (ROOM,)),
    "drain-daemon": Case("drain", (daemon,), drained(A), {}, (ROOM,)),
    "drain-job": Case("drain", (job, completed), drained(A), {"moved": 1}, (ROOM,)),
    "drain-two": Case("drain", (WEB, deployed("api", B)), drained(A, B), {"stranded": 4, "endpoints": 2}, (ROOM,)),
    "drain-empty": Case("drain", (WEB,), drained(B), {}, (ROOM,)),
    "drain-waiting": Case("drain", (waiting,), drained(A), {}, (ROOM,)),
    "drain-outside-window": Case(
        "drain", (WEB,), (*drained(A), top(windows=[{"schedule": "0 0 29 2 *", "duration": "1m"}])), {}, (ROOM,)
    ),
    "rename-web": Case("rename", (WEB,), (node(A, name="renamed"),)),
    "rename-stateful": Case("rename", (DB,), (node(A, name="renamed"),)),
    "rename-empty": Case("rename", (WEB,), (node(B, name="renamed"),)),
    "mapping-web": Case("mapping", (WEB,), (lower(A, namespaces={"mapping": "prefix"}),)),
    "mapping-claim": Case("mapping", (claimed,), (lower(A, namespaces={"mapping": "prefix"}),)),
    "mapping-empty": Case("mapping", (WEB,), (lower(B, namespaces={"mapping": "prefix"}),)),
    "mapping-back": Case(
        "mapping",
        (WEB,),
        (lower(A, namespaces={"mapping": "same"}),),
        before=(lower(A, namespaces={"mapping": "prefix"}),),
    ),
    "controllers-no-service": Case("controllers", (WEB,), (top(controllers=["PV", "ServiceAccount"]),)),
    "controllers-no-service-in-one": Case(
        "controllers", (WEB, deployed("api", B)), (lower(A, controllers=["PV", "ServiceAccount"]),)
    ),
    "controllers-no-volume": Case("controllers", (claimed,), (top(controllers=["Service", "ServiceAccount"]),)),
    "controllers-no-account": Case("controllers", (with_account,), (top(controllers=["PV", "Service"]),)),
    "controllers-none": Case("controllers", (WEB, claimed), (top(controllers=[]),)),
    "controllers-rbac": Case("controllers", (with_account,), (top(controllers=[*ALL, "RBAC"]),)),
    "ignore-label": Case("ignoreLabels", (WEB,), (top(ignoreLabels=["team"]),)),
    "ignore-label-in-one": Case("ignoreLabels", (WEB, deployed("api", B)), (lower(A, ignoreLabels=["team"]),)),
    "ignore-nothing": Case("ignoreLabels", (WEB,), (top(ignoreLabels=[]),), before=(top(ignoreLabels=["team"]),)),
    "node-labels": Case("node", (WEB,), (node(A, labels={"tier": "gold"}, annotations={"note": "seen"}),)),
    "node-cluster-id": Case("node", (deployed(**pinned()),), (node(A, labels={"clusterID": "other"}),)),
    "taint-no-schedule": Case("taints", (WEB,), (node(A, taints=[PROVIDER_TAINT, {**TAINT, "effect": "NoSchedule"}]),)),
    "taint-none": Case("taints", (WEB,), (node(A, taints=[]),)),
    "taint-no-execute": Case(
        "taints", (WEB,), (node(A, taints=[PROVIDER_TAINT, TAINT]),), {"ended": 2, "endpoints": 1}
    ),
    "taint-tolerated": Case("taints", (deployed(**tolerant()),), (node(A, taints=[PROVIDER_TAINT, TAINT]),)),
    "taint-tolerated-for-seconds": Case(
        "taints", (deployed(**tolerant(3)),), (node(A, taints=[PROVIDER_TAINT, TAINT]),), {"ended": 2, "endpoints": 1}
    ),
    "capacity-limit": Case("capacity", (WEB,), (lower(A, capacity={"limit": {"pods": "1"}}),)),
    "capacity-nothing": Case("capacity", (WEB,), (lower(A, capacity={"limit": {"cpu": "0", "memory": "0"}}),)),
    "capacity-reserve": Case("capacity", (WEB,), (lower(A, capacity={"reserve": {"cpu": "60"}}),)),
    "exclude-web": Case("excludeNamespaces", (WEB,), (excluded,)),
    "exclude-one-of-two": Case("excludeNamespaces", (claimed, another_namespace, WEB), (excluded,)),
    "identity-none": Case("serviceAccounts", (with_account,), (top(serviceAccounts={"identity": "none"}),)),
    "identity-upper": Case("serviceAccounts", (with_account,), (top(serviceAccounts={"identity": "upper"}),)),
    "identity-lower": Case(
        "serviceAccounts",
        (with_account,),
        (top(serviceAccounts={"identity": "lower"}),),
        before=(top(serviceAccounts={"identity": "upper"}),),
    ),
    "add-lower": Case("add", (WEB,), (lambda topology, _: topology["lowers"].append(SECOND),), before=(without(B),)),
    "classes": Case("storageClasses", (claimed, DB), (lower(A, storageClasses={"standard": "fast"}),)),
    "port-web": Case("kubeletPort", (WEB,), (at_another_port(A),), {"streams": 1}),
    "port-empty": Case("kubeletPort", (WEB,), (at_another_port(B),)),
    "port-both": Case(
        "kubeletPort",
        (WEB, deployed("api", B)),
        (at_another_port(A), at_another_port(B)),
        {"streams": 2},
    ),
    "rate": Case("other", (WEB,), (lower(A, qps=100, burst=200),)),
    "conflict": Case("other", (WEB,), (top(onConflict="adopt", guard={"maxDeletes": 5}),)),
    "alias": Case("other", (WEB,), (top(services={"upperAlias": "above"}),)),
}
SECOND = {"name": B, "kubeconfig": f"{B}.kubeconfig"}
