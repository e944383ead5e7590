"""Sources of refusals in a lower cluster beside its own rules: a webhook, and a user with limited rights."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from bench.kit.faultproxy.tls import signer_of
from bench.kit.sites import Site

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
_MADE = ("namespaces", "configmaps", "secrets", "serviceaccounts", "services", "events", "persistentvolumeclaims")
_LATE = 30.0
_NO = {
    "no": {"code": 422, "reason": "Invalid", "message": "no such thing here"},
    "not-now": {"code": 503, "reason": "ServiceUnavailable", "message": "not now"},
}


class Webhook:
    """A validating webhook; used with `async with`, on a loopback address.

    It has four ways: "no" and "not-now" refuse, with 422 and 503; "fails" itself returns 500; "late" does not answer in
    time.
    """

    def __init__(self, pki: Path, directory: Path, address: str) -> None:
        self._address = address
        self._authority = (pki / "ca.crt").read_bytes()
        pair = signer_of(pki).issue("webhook", addresses=(address,))
        (directory / "webhook.crt").write_bytes(pair.certificate)
        (directory / "webhook.key").write_bytes(pair.key)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(directory / "webhook.crt", directory / "webhook.key")

    async def __aenter__(self) -> "Self":
        self._front = web.Server(self._serve, handler_cancellation=True, access_log=None)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._front, self._address, 0, ssl=self._tls)
        self._url = f"https://{self._address}:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self._listener.close()
        await self._front.shutdown(0.0)

    async def ask(self, site: Site, namespace: str, way: str) -> Callable[[], Awaitable[object]]:
        """Register it as a webhook for new pods of a namespace, and return a function that unregisters it."""
        name = f"{namespace}.example.com"
        rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
        hook = {
            "name": name,
            "clientConfig": {"url": f"{self._url}/{way}", "caBundle": b64encode(self._authority).decode()},
            "rules": rules,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "failurePolicy": "Fail",
            "timeoutSeconds": 1,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        await site.call("POST", HOOKS, {"metadata": {"name": name}, "webhooks": [hook]})
        return lambda: site.delete(f"{HOOKS}/{name}")

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        way = request.path.strip("/")
        if way == "fails":
            return web.Response(status=500, text="it broke")
        if way == "late":
            await asyncio.sleep(_LATE)
        review: dict[str, Any] = await request.json()
        answer = {"uid": review["request"]["uid"], "allowed": False, "status": _NO.get(way, {})}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})


@asynccontextmanager
async def limited_user(site: Site, user: str) -> AsyncIterator[None]:
    """Grant a user all rights that an engine needs in a cluster, except the creation of pods."""
    changes = ["get", "list", "watch", "patch", "update", "delete"]
    rules: list[dict[str, Any]] = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": changes},
        {"apiGroups": [""], "resources": list(_MADE), "verbs": ["create"]},
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices", "endpointslices/restricted"],
            "verbs": ["create"],
        },
    ]
    await site.call("POST", f"{RBAC}/clusterroles", {"metadata": {"name": user}, "rules": rules})
    await site.call("POST", f"{RBAC}/clusterrolebindings", _binding("ClusterRole", user, user))
    try:
        yield
    finally:
        await site.delete(f"{RBAC}/clusterrolebindings/{user}")
        await site.delete(f"{RBAC}/clusterroles/{user}")


async def grant(site: Site, namespace: str, user: str) -> None:
    """Allow that user to create pods in a namespace."""
    path = f"{RBAC}/namespaces/{namespace}"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]
    await site.call("POST", f"{path}/roles", {"metadata": {"name": "maker"}, "rules": rules})
    await site.call("POST", f"{path}/rolebindings", _binding("Role", "maker", user))


def _binding(kind: str, role: str, user: str) -> dict[str, Any]:
    return {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    }
