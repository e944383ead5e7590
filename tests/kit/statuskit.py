"""Shared parts of the status tests: topology texts, updates, and a topology status."""

from datetime import UTC, datetime, timedelta

from tensile.engine.status.configmap import status_owner
from tensile.engine.status.report import LowerRow, PendingApproval, TopologyStatus
from tensile.engine.topology_reader import ConfigMapKey, TopologyText, TopologyUpdate
from tensile.errors import TensileError
from tensile.names import Owner
from tensile.topology import parse

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
PLACE = ConfigMapKey("ops", "topo")
OWNER: Owner = status_owner("11111111-upper", PLACE)
TOPOLOGY = parse("apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n")


def text(sha: str = "aa", version: str = "7", uid: str = "map-1") -> TopologyText:
    """Make a text that is identified by its hash."""
    return TopologyText(10, sha, version, uid)


def valid_update(sha: str = "aa", version: str = "7", *, changed: bool = True) -> TopologyUpdate:
    """Make the update of a valid text."""
    return TopologyUpdate(text(sha, version), TOPOLOGY, changed=changed)


def invalid_update(error: str = "topo:3:5: lowerz: unknown key", sha: str = "bb", version: str = "8") -> TopologyUpdate:
    """Make the update of an invalid text."""
    return TopologyUpdate(text(sha, version), error=TensileError(error))


def accepted(*readings: TopologyUpdate) -> TopologyStatus:
    """Return the status after a valid text, and after later updates."""
    verdict = TopologyStatus().after(valid_update(), NOW)
    for reading in readings:
        verdict = verdict.after(reading, LATER)
    return verdict


def pending_edit(sha: str = "dd", version: str = "9") -> PendingApproval:
    """Make an edit that waits for approval."""
    changes = ("lowers[lower-a].maintenance: none -> drain",)
    named = ("shop/web-0 (lower-a)", "shop/web-1 (lower-a)")
    command = "tensile approve dd --configmap ops/topo"
    return PendingApproval(text(sha, version), LATER, 3, 1, changes, named, command)


def row(name: str = "lower-a", **fields: object) -> LowerRow:
    """Make the row of a healthy lower."""
    whole = {"cpu": "96", "memory": "768Gi", "pods": "1500"}
    found = LowerRow(name, f"node-{name}", True, "", 3, 0, {**whole, "cpu": "90"}, whole)
    found = found._replace(version="v1.36.3", nodes={"ready": 3, "total": 4})
    return found._replace(**fields)  # type: ignore[arg-type]
