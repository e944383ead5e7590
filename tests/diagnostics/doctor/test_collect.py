"""Tests of collecting facts over real sockets: a query that a cluster refuses does not affect the other queries.

The test server implements the part of an apiserver that doctor queries; the end-to-end tests use real apiservers.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from certkit import CertificateSet, inline, kubeconfig
from doctorkit import LOWER, node, topology

from bench.kit.spareports import spare_port
from tensile.diagnostics.doctor.collect import gather_facts, required_upper_rights, topology_at
from tensile.diagnostics.doctor.facts import HOOK_CALL, PODS_BY_NAMESPACE, Facts, Level, Stage, port_of
from tensile.diagnostics.doctor.lowers import check_kubelet
from tensile.diagnostics.doctor.run import as_text, run_checks
from tensile.engine.lower import ClusterAccess
from tensile.engine.topology_reader import ConfigMapKey
from tensile.errors import TensileError
from tensile.names import OWNER
from tensile.objects import UPPER, Manifest

ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"
REFUSED = (
    403,
    {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no reviews for you"},
)


def now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateSet:
    """Certificates of two CAs, created once for the module."""
    return CertificateSet(tmp_path_factory.mktemp("papers"))


class CannedApiserver:
    """A server that responds by path with status and body; `requests` are the requests as (path, request body)."""

    def __init__(self, name: str, **answers: tuple[int, Any]) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.answers: dict[str, tuple[int, Any]] = {
            "/version": (200, {"gitVersion": "v1.36.3"}),
            "/api/v1/namespaces/kube-system": (200, {"metadata": {"name": "kube-system", "uid": f"uid-of-{name}"}}),
            WHO: (201, {"status": {"userInfo": {"username": "engine"}}}),
            ACCESS: (201, {"status": {"allowed": True}}),
            **answers,
        }

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Return the response; an unknown path has an empty list."""
        sent = await request.read()
        self.requests.append((request.path, orjson.loads(sent) if sent else None))
        empty = {"metadata": {"resourceVersion": "1"}, "items": []}
        status, body = self.answers.get(request.path, (200, empty))
        return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")

    def reviews(self, resource: str, subresource: str) -> int:
        """Count the access reviews for a resource and subresource."""
        sent = [body["spec"]["resourceAttributes"] for path, body in self.requests if path == ACCESS]
        return sum((one["resource"], one["subresource"]) == (resource, subresource) for one in sent)


def write(path: Path, certificates: CertificateSet, url: str) -> None:
    """Write a kubeconfig."""
    trusted = {"certificate-authority-data": inline(certificates.authority.pem)}
    path.write_text(kubeconfig({"token": "a-token"}, trusted, server=url))


@asynccontextmanager
async def serving(
    certificates: CertificateSet, kubeconfig_file: Path, apiserver: CannedApiserver
) -> AsyncIterator[None]:
    """Serve an apiserver by TLS, and write a kubeconfig for it."""
    front = web.Server(apiserver.answer, access_log=None)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(front, "127.0.0.1", 0, ssl=certificates.server_context())
    write(kubeconfig_file, certificates, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield
    finally:
        server.close()
        await front.shutdown(0.0)


async def found(
    certificates: CertificateSet, directory: Path, upper: CannedApiserver, *lowers: CannedApiserver, **fields: Any
) -> Facts:
    """Return the facts about clusters; lowers are named lower-a and lower-b, and `fields` are more of the topology."""
    names = [f"lower-{letter}" for letter in "ab"[: len(lowers)]]
    lowers_of = [{"name": name, "kubeconfig": name} for name in names]
    spec = topology(upper={"kubeconfig": "upper"}, lowers=lowers_of, **fields)
    async with AsyncExitStack() as stack:
        for name, apiserver in zip(["upper", *names], [upper, *lowers], strict=True):
            await stack.enter_async_context(serving(certificates, directory / name, apiserver))
        return await gather_facts(spec, ClusterAccess(directory), now)


def kept(*names: str, **where: Any) -> dict[str, tuple[int, Manifest]]:
    """Return responses with Nodes of these names, at an address and a port, whose leases are renewed."""
    nodes = {"metadata": {"resourceVersion": "1"}, "items": [node(name, **where) for name in names]}
    renewed = {"spec": {"renewTime": now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
    return {"/api/v1/nodes": (200, nodes), **{LEASES + name: (200, renewed) for name in names}}


def levels_of(known: Facts, cluster: str, check: str) -> list[Level]:
    """Return the levels of one check of one cluster."""
    return [one.level for one in run_checks(known) if (one.cluster, one.check) == (cluster, check)]


def listing(*found: Manifest) -> tuple[int, Manifest]:
    """Return a response with a list of objects."""
    return 200, {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": one} for one in found]}


async def test_pods_are_listed_only_in_lower_namespaces_that_upper_namespaces_map_to(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """Pods in other namespaces are not listed; of each pod only its namespace and its owner are kept."""
    spaces = "/api/v1/namespaces"
    upper = CannedApiserver("upper", **{spaces: listing({"name": "shop"}, {"name": "kube-system"}, {"name": "new"})})
    pods = listing({"name": "theirs", "namespace": "shop"}, {"name": "o", "namespace": "shop", "labels": {OWNER: "m"}})
    below = listing({"name": "shop"}, {"name": "kube-system"}, {"name": "other"})
    lower = CannedApiserver(LOWER, **{spaces: below, f"{spaces}/shop/pods": pods})
    known = await found(certificates, tmp_path, upper, lower)
    assert known.lowers[LOWER].value(PODS_BY_NAMESPACE) == [("shop", ""), ("shop", "m")]
    assert {path for path, _ in lower.requests if path.endswith("/pods")} == {f"{spaces}/shop/pods"}
    assert levels_of(known, LOWER, "tenants") == [Level.WARN]


async def test_a_refused_login_to_the_upper_does_not_block_the_lowers(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The tenants check is skipped, because the namespaces of the upper cluster are unknown."""
    upper = CannedApiserver("upper", **{"/version": (401, {})})
    known = await found(certificates, tmp_path, upper, CannedApiserver(LOWER))
    assert levels_of(known, LOWER, "tenants") == [Level.SKIP]
    assert levels_of(known, LOWER, "login") == [Level.OK]


async def test_refused_access_reviews_affect_only_checks_that_need_them(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The rights of the upper cluster and the kubelet check are unknown; the other checks are complete."""
    upper = CannedApiserver("upper", **{**kept("lower-a", "lower-b"), ACCESS: REFUSED})
    known = await found(certificates, tmp_path, upper, CannedApiserver("a"), CannedApiserver("b"))
    assert (known.upper.access_error, known.upper.is_accessible) == ("", True)
    assert levels_of(known, UPPER, "rights") == [Level.WARN]
    assert levels_of(known, LOWER, "kubelet") == [Level.SKIP]
    assert levels_of(known, "lower-b", "rights") == [Level.OK]


async def test_the_right_to_call_nodes_is_reviewed_once_for_all_nodes(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """Afterwards each node is called by the upper apiserver."""
    upper = CannedApiserver("upper", **kept("lower-a", "lower-b"))
    known = await found(certificates, tmp_path, upper, CannedApiserver("a"), CannedApiserver("b"))
    assert upper.reviews("nodes", "proxy") == 1
    assert [known.upper.answers[port_of(name)].value for name in known.lowers] == [True, True]
    assert [path for path, _ in upper.requests if path.endswith("/proxy/healthz")]


async def test_nodes_on_loopback_are_called_directly(certificates: CertificateSet, tmp_path: Path) -> None:
    """Doctor needs no right for that, and reports a refused connection because no process listens at the port."""
    upper = CannedApiserver("upper", **kept(LOWER, address="127.0.0.1", port=spare_port()))
    known = await found(certificates, tmp_path, upper, CannedApiserver("a"))
    assert upper.reviews("nodes", "proxy") == 0
    assert known.upper.answers[port_of(LOWER)].value.stage == Stage.CONNECTION
    assert [one.level for one in check_kubelet(known.lowers[LOWER], known)] == [Level.FAIL]


HOOKED = {"enabled": True, "service": {"namespace": "ops", "name": "hooks"}}
HOOK_PATH = "/api/v1/namespaces/ops/services/https:hooks:443/proxy/healthz"


async def test_the_webhook_service_is_called_through_the_apiserver_proxy(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The access review is for the same Service proxy name as the call."""
    upper = CannedApiserver(
        "upper", **{HOOK_PATH: (503, {"message": "error trying to reach service: no route to host"})}
    )
    known = await found(certificates, tmp_path, upper, webhook=HOOKED)
    assert known.upper.answers[HOOK_CALL] == (False, "error trying to reach service: no route to host", 503)
    sent = [body["spec"]["resourceAttributes"] for path, body in upper.requests if path == ACCESS]
    (query,) = (one for one in sent if (one["resource"], one["subresource"]) == ("services", "proxy"))
    assert (query["verb"], query["namespace"], query["name"]) == ("get", "ops", "https:hooks:443")


async def test_the_webhook_service_is_not_called_without_the_right(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The facts have no answer for that call."""
    upper = CannedApiserver("upper", **{ACCESS: (201, {"status": {"allowed": False}})})
    known = await found(certificates, tmp_path, upper, webhook=HOOKED)
    assert HOOK_CALL not in known.upper.answers
    assert HOOK_PATH not in [path for path, _ in upper.requests]


async def test_an_invalid_response_of_a_lower_fails_only_that_lower(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The error is a finding on that cluster, and the findings on the other clusters are complete."""
    odd = CannedApiserver("a", **{WHO: (201, {"status": "well"})})
    known = await found(certificates, tmp_path, CannedApiserver("upper"), odd, CannedApiserver("b"))
    assert "TypeError" in known.lowers[LOWER].access_error
    assert levels_of(known, LOWER, "reach") == [Level.FAIL]
    assert levels_of(known, "lower-b", "rights") == levels_of(known, UPPER, "rights") == [Level.OK]
    assert "report this" in as_text(known, run_checks(known), colour=False)


async def test_an_invalid_response_of_the_upper_fails_only_the_upper(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The findings on the lower cluster are complete."""
    odd = CannedApiserver("upper", **{WHO: (201, {"status": "well"})})
    known = await found(certificates, tmp_path, odd, CannedApiserver("a"))
    assert levels_of(known, UPPER, "reach") == [Level.FAIL]
    assert levels_of(known, LOWER, "reach") == [Level.OK]


# A topology in a ConfigMap.

PLACE = ConfigMapKey("ops", "topology", "a.yaml")
MAP = "/api/v1/namespaces/ops/configmaps/topology"
TEXT = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n"


def config_map(**data: str) -> tuple[int, Manifest]:
    """Return a response with a ConfigMap."""
    return 200, {"metadata": {"name": "topology", "namespace": "ops", "uid": "u", "resourceVersion": "1"}, "data": data}


async def test_a_topology_in_a_configmap_is_read_with_the_given_kubeconfig(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The upper cluster is checked with the same kubeconfig, including the rights on that ConfigMap's namespace."""
    upper = CannedApiserver("upper", **{MAP: config_map(**{"a.yaml": TEXT})})
    async with serving(certificates, tmp_path / "above", upper):
        cluster_access = ClusterAccess(tmp_path, upper_kubeconfig="above")
        spec = await topology_at(PLACE, cluster_access)
        known = await gather_facts(spec, cluster_access, now, PLACE)
    assert (spec.name, known.upper.is_accessible, known.upper.missing, known.in_configmap) == ("demo", True, [], True)
    sent = [body["spec"]["resourceAttributes"] for path, body in upper.requests if path == ACCESS]
    assert {one["verb"] for one in sent if (one["namespace"], one["resource"]) == ("ops", "configmaps")} == {
        "create",
        "patch",
        "delete",
    }


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (404, {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "message": "gone"}),
            "the ConfigMap does not exist",
        ),
        (config_map(other=TEXT), "has no key a.yaml (keys: other)"),
        (config_map(**{"a.yaml": "kind: Topology\n["}), "configmap/ops/topology/a.yaml:"),
        ((403, REFUSED[1]), "no reviews for you"),
    ],
)
async def test_a_configmap_without_a_valid_topology_raises_an_error(
    certificates: CertificateSet, tmp_path: Path, answer: tuple[int, Any], message: str
) -> None:
    """Without a topology doctor has nothing to check, so the error names the cause."""
    async with serving(certificates, tmp_path / "above", CannedApiserver("upper", **{MAP: answer})):
        with pytest.raises(TensileError, match=re.escape(message)):
            await topology_at(PLACE, ClusterAccess(tmp_path, upper_kubeconfig="above"))


def test_the_required_upper_rights_depend_on_the_engines_namespace_and_the_configmap() -> None:
    """Those on the leader election Lease are in one namespace, and absent if the engine runs in no cluster."""
    spec = topology()
    for configmap_key, maps in ((None, set()), (PLACE, {"ops"})):
        rights = required_upper_rights(spec, configmap_key, "own")
        assert {one.namespace for one in rights if one.purpose.startswith("leader election")} == {"kube-system"}
        assert {one.namespace for one in rights if "status ConfigMap" in one.purpose} == maps
        assert {one.namespace for one in rights if one.name.startswith("tensile-webhook")} == {"own"}
    assert not [one for one in required_upper_rights(spec, PLACE, "") if one.purpose.startswith("leader election")]


async def test_a_refused_kubeconfig_is_reported_with_its_own_advice(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The advice is complete, although it contains a colon."""
    spec = topology(upper={"kubeconfig": "upper"}, lowers=[{"name": LOWER, "kubeconfig": "open"}])
    (tmp_path / "open").write_text(kubeconfig({"token": "t"}, {"insecure-skip-tls-verify": True}))
    async with serving(certificates, tmp_path / "upper", CannedApiserver("upper")):
        known = await gather_facts(spec, ClusterAccess(tmp_path), now)
    side = known.lowers[LOWER]
    assert side.access_error.endswith("insecure-skip-tls-verify is refused")
    assert side.remedy == "give certificate-authority-data instead: without it any server can impersonate the cluster"


async def test_an_unreadable_kubeconfig_secret_is_reported_with_advice(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The cause is the apiserver's message, and the advice is doctor's own."""
    secret = {"namespace": "tensile", "name": LOWER}
    spec = topology(upper={"kubeconfig": "upper"}, lowers=[{"name": LOWER, "kubeconfigSecret": secret}])
    refused = {"/api/v1/namespaces/tensile/secrets": REFUSED}
    async with serving(certificates, tmp_path / "upper", CannedApiserver("upper", **refused)):
        known = await gather_facts(spec, ClusterAccess(tmp_path), now)
    (finding,) = [one for one in run_checks(known) if (one.cluster, one.check) == (LOWER, "reach")]
    assert finding.what.endswith("no reviews for you")
    assert finding.advice.startswith("let the account that asks list that Secret")
