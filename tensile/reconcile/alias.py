"""The Service by which pods below find the upper cluster's apiserver.

Every cluster has a Service `kubernetes` of its own, so this one has another name. An IP address becomes the endpoint
of a slice; a DNS name cannot stand in one, so the Service is then another name for it. An address that means another
machine everywhere, such as 127.0.0.1, leads nowhere, and there is no such Service. The upper's certificate has to be
valid for the name that a client uses: the alias is a convenience.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from tensile.names import Owner
from tensile.objects import ENDPOINT_SLICE, Manifest
from tensile.reconcile.servicefacts import MANAGED_BY, MANAGER, SERVICE_NAME
from tensile.reconcile.servicespec import EXTERNAL_NAME, marked
from tensile.world import UpperServer

_HTTPS = 443
_PORT_NAME = "https"
_LOCAL_NAME = "localhost"


def server_of(advertised: str | None, address: tuple[str, int] | None) -> UpperServer | None:
    """Say where pods below reach the upper's apiserver: as advertised, else at the `address` that we use, if any.

    `advertised` is a URL, https://HOST:PORT.
    """
    if advertised is not None:
        parts = urlsplit(advertised)
        return UpperServer(parts.hostname or "", parts.port or _HTTPS)
    return None if address is None else UpperServer(*address)


def form(server: UpperServer) -> str:
    """Say how a server is told below: "IPv4" or "IPv6" as an endpoint, "name", or "" where it cannot be."""
    try:
        address = ip_address(server.host)
    except ValueError:
        is_local = server.host == _LOCAL_NAME or server.host.endswith(f".{_LOCAL_NAME}")
        return "" if is_local or not server.host else "name"
    if address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast:
        return ""
    return f"IPv{address.version}"


def alias_service(server: UpperServer, name: str, owner: Owner, namespace: str) -> Manifest | None:
    """Give the Service below, marked as made for the upper cluster itself; None where there can be none."""
    kind = form(server)
    port = {"name": _PORT_NAME, "protocol": "TCP"}
    if not kind:
        return None
    if kind == "name":
        spec: Manifest = {"type": EXTERNAL_NAME, "externalName": server.host.lower(), "sessionAffinity": "None"}
        spec["ports"] = [{**port, "port": server.port, "targetPort": server.port}]
    else:
        spec = {"type": "ClusterIP", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None"}
        spec |= {"ipFamilyPolicy": "PreferDualStack"}
        spec["ports"] = [{**port, "port": _HTTPS, "targetPort": server.port}]
    return marked({"name": name, "namespace": namespace, "labels": {}}, owner.upper, spec, owner)


def alias_slice(server: UpperServer, name: str) -> Manifest | None:
    """Give the slice with the server as its endpoint, as one above would be kept; None where there can be none."""
    kind = form(server)
    if kind in ("", "name"):
        return None
    return {
        "metadata": {"name": name, "labels": {SERVICE_NAME: name, MANAGED_BY: MANAGER}},
        "addressType": kind,
        "endpoints": [{"addresses": [server.host], "conditions": {"ready": True}}],
        "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": server.port}],
    }


def marked_slice(found: Manifest, upper_uid: str, owner: Owner, namespace: str, holder: Manifest) -> Manifest:
    """Give the slice below for what is kept of one above; it goes with `holder`, the Service below."""
    meta = {
        "name": found["metadata"]["name"],
        "namespace": namespace,
        "labels": found["metadata"]["labels"] | owner.label,
        "annotations": owner.signed(upper_uid),
        "ownerReferences": [holder],
    }
    content = {field: found[field] for field in ("addressType", "endpoints", "ports")}
    return {"apiVersion": ENDPOINT_SLICE.api, "kind": ENDPOINT_SLICE.name, "metadata": meta, **content}
