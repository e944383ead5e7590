"""The contents of objects by number, the same on real control planes and in memory."""

from bench.kit.oracles import Manifest
from bench.model.sequences.model import LABEL
from tensile.objects import Kind

DRIFTED = 999
"""A number that no action has: the content that another client writes to the lower cluster."""


def content(kind: Kind, number: int) -> Manifest:
    """Return a change of an object's content, as a merge patch."""
    match kind.name:
        case "Service":
            return {"spec": {"ports": [{"name": "http", "port": 8000 + number, "protocol": "TCP"}]}}
        case "EndpointSlice":
            return {"endpoints": endpoints(number)}
        case "ServiceAccount":
            return {"automountServiceAccountToken": bool(number % 2)}
        case "Pod":
            return {"metadata": {"labels": {LABEL: str(number)}}}
        case "Secret":
            return {"data": {"k": "Mw==" if number % 2 else "NA=="}}
    return {"data": {"k": str(number)}}


def endpoints(number: int) -> list[Manifest]:
    """Return the one endpoint of a Service, ready or not."""
    return [{"addresses": [f"10.1.0.{1 + number % 250}"], "conditions": {"ready": bool(number % 2)}}]
