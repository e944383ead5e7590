"""Tests that a real Prometheus scrapes virtual nodes as manifests/monitoring/kubelet and the docs configure it."""

from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
import yaml
from enginekit import UPPER, EngineHarness
from fences import ROOT, fences

from bench.kit.prometheus import program, running
from bench.kit.rbac import path_of
from bench.kit.sites import Manifest

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

KUBELET = ROOT / "manifests" / "monitoring" / "kubelet"
PAGE = "docs/howto/kube-prometheus.md"
PATHS = {"/metrics", "/metrics/cadvisor"}
SERVICE_MONITOR = ("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/slis")
"""The paths that kube-prometheus' ServiceMonitor scrapes of each kubelet."""
DISCOVERY = b"prometheus/discovery/kubernetes."
"""What a build with this discovery contains: the names of its functions."""


class Account(NamedTuple):
    """The address of the upper cluster, and the token of the account that the manifests create."""

    server: str
    ca: str
    token: str

    def discovery(self, label: str) -> Manifest:
        """Return a discovery of the nodes with a label; `role: node` is Prometheus' spelling."""
        return {
            "role": "node",
            "api_server": self.server,
            "authorization": {"credentials": self.token},
            "tls_config": {"ca_file": self.ca},
            "selectors": [{"role": "node", "label": label}],
        }


@pytest.fixture(scope="module")
def prometheus() -> str:
    """Return the path of a Prometheus that can discover nodes, unlike Debian's build."""
    found = program()
    if found is None or DISCOVERY not in Path(found).read_bytes():
        pytest.skip("no prometheus with the discovery of Kubernetes is installed")
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def account(harness: EngineHarness) -> AsyncIterator[Account]:
    """Apply access.yaml under names of this test, and wait for the token."""
    objects = list(yaml.safe_load_all((KUBELET / "access.yaml").read_text()))
    text = yaml.safe_dump_all(objects).replace("tensile-kubelet-metrics", harness.user)
    made = list(yaml.safe_load_all(text.replace("namespace: tensile", f"namespace: {harness.namespace}")))
    for one in made:
        await harness.upper.create(object_path(harness, one).rpartition("/")[0], one)
    secret = await harness.upper.until(harness.path("secrets", harness.user), lambda one: one["data"]["token"])
    cluster = harness.sandbox.clusters[UPPER]
    ca = cluster.audit_log.parent / "pki" / "ca.crt"
    yield Account(cluster.server, str(ca), b64decode(secret["data"]["token"]).decode())
    for one in made:
        await harness.upper.delete(object_path(harness, one))


def object_path(harness: EngineHarness, one: Manifest) -> str:
    """Return the path of an object of access.yaml."""
    kind, name = one["kind"], one["metadata"]["name"]
    return path_of(one) if kind.startswith("Cluster") else harness.path(f"{kind.lower()}s", name)


def translated(config: Manifest, account: Account, mark: str) -> Manifest:
    """Return a ScrapeConfig as the operator writes it into Prometheus' configuration, for the nodes of one engine."""
    spec = config["spec"]
    (nodes,) = spec["kubernetesSDConfigs"]
    (selector,) = nodes["selectors"]
    assert (nodes["role"], selector["role"], spec["scheme"]) == ("Node", "Node", "HTTPS")
    relabelings = [{_snake(key): value for key, value in one.items()} for one in spec["relabelings"]]
    return {
        "job_name": f"scrapeConfig/tensile/{config['metadata']['name']}",
        "metrics_path": spec["metricsPath"],
        "scheme": "https",
        "honor_labels": spec["honorLabels"],
        "authorization": {"credentials": account.token},
        "tls_config": {_snake(key): value for key, value in spec["tlsConfig"].items()},
        "kubernetes_sd_configs": [account.discovery(f"{selector['label']},e2e={mark}")],
        "relabel_configs": [{"target_label": "job", "replacement": spec["jobName"]}, *relabelings],
    }


def _snake(key: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in key)


async def ports(harness: EngineHarness) -> dict[str, int]:
    """Return the port that each virtual node publishes."""
    nodes = [await harness.upper.read(f"/api/v1/nodes/{name}") for name in harness.nodes.values()]
    return {one["metadata"]["name"]: one["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] for one in nodes}


async def test_the_scrape_configs_find_every_virtual_node_at_its_own_port(
    harness: EngineHarness, account: Account, prometheus: str, tmp_path: Path
) -> None:
    """Every target is up, with the labels that rules and dashboards of kube-prometheus select and join by."""
    pod = await harness.run_pod("scraped")
    shipped = list(yaml.safe_load_all((KUBELET / "scrapeconfigs.yaml").read_text()))
    published = await ports(harness)
    assert len(set(published.values())) == len(harness.lowers)
    async with running(prometheus, tmp_path, [translated(one, account, harness.mark) for one in shipped]) as found:
        targets = await found.targets(len(harness.lowers) * len(PATHS))
        assert {(one["health"], one["lastError"]) for one in targets} == {("up", "")}
        assert {one["scrapeUrl"] for one in targets} == {
            f"https://127.0.0.1:{port}{path}" for port in published.values() for path in PATHS
        }
        assert [
            {"job": "kubelet", "namespace": "kube-system", "service": "kubelet", "endpoint": "https-metrics"}
            | {"node": name, "instance": name, "metrics_path": path}
            for name in sorted(published)
            for path in sorted(PATHS)
        ] == sorted((one["labels"] for one in targets), key=lambda one: (one["node"], one["metrics_path"]))
        node = pod["spec"]["nodeName"]
        query = f'kubelet_running_pods{{job="kubelet", metrics_path="/metrics", node="{node}"}}'
        (value,) = await found.values(query, lambda samples: bool(samples) and samples[0]["value"][1] == "1")
        assert value["metric"]["instance"] == node


async def test_the_documented_configuration_finds_every_virtual_node(
    harness: EngineHarness, account: Account, prometheus: str, tmp_path: Path
) -> None:
    """Prometheus runs outside of the cluster here, so the test adds the apiserver's address and credentials."""
    (text,) = [one.text for one in fences(PAGE, (ROOT / PAGE).read_text()) if one.text.startswith("scrape_configs:")]
    (job,) = yaml.safe_load(text)["scrape_configs"]
    (nodes,) = job["kubernetes_sd_configs"]
    (selector,) = nodes["selectors"]
    discovery = account.discovery(f"{selector['label']},e2e={harness.mark}")
    assert nodes["role"] == discovery["role"]
    job |= {"authorization": {"credentials": account.token}, "kubernetes_sd_configs": [discovery]}
    async with running(prometheus, tmp_path, [job]) as found:
        targets = await found.targets(len(harness.lowers))
        assert {(one["health"], one["lastError"]) for one in targets} == {("up", "")}
        assert {(one["labels"]["job"], one["labels"]["metrics_path"]) for one in targets} == {
            ("kubelet", "/metrics/cadvisor")
        }
        assert {one["labels"]["node"] for one in targets} == set(harness.nodes.values())


async def test_every_path_that_kube_prometheus_scrapes_is_up(
    harness: EngineHarness, account: Account, prometheus: str, tmp_path: Path
) -> None:
    """If its kubelet Service fits, as with `node.kubeletPort: 10250`, each missing path would be a failing target."""
    jobs = [
        {
            "job_name": path,
            "metrics_path": path,
            "scheme": "https",
            "authorization": {"credentials": account.token},
            "tls_config": {"insecure_skip_verify": True},
            "kubernetes_sd_configs": [account.discovery(f"type=virtual-kubelet,e2e={harness.mark}")],
        }
        for path in SERVICE_MONITOR
    ]
    async with running(prometheus, tmp_path, jobs) as found:
        targets = await found.targets(len(harness.lowers) * len(SERVICE_MONITOR))
        assert {(one["health"], one["lastError"]) for one in targets} == {("up", "")}


async def test_the_account_may_only_get_node_metrics(harness: EngineHarness, account: Account) -> None:
    """Its token is sent to every node, so a false node could obtain it."""
    user = f"system:serviceaccount:{harness.namespace}:{harness.user}"
    allowed = []
    for verb, resource, subresource in (
        ("get", "nodes", "metrics"), ("get", "nodes", "proxy"), ("list", "pods", ""), ("get", "secrets", ""),
        ("create", "nodes", "metrics"),
    ):  # fmt: skip
        attributes = {"verb": verb, "resource": resource, "subresource": subresource, "namespace": harness.namespace}
        review = {"spec": {"user": user, "resourceAttributes": attributes}}
        answer = await harness.upper.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        allowed.append(answer["status"]["allowed"])
    assert allowed == [True, *[False] * 4]
