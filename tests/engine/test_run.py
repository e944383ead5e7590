"""What `tensile run` logs when the engine is ready, and its status page before that."""

from pathlib import Path

import pytest

from tensile.engine.clusters import utc_now
from tensile.engine.engine import Engine
from tensile.engine.lower import ClusterAccess
from tensile.engine.run import page_source, ready
from tensile.engine.status.page import RecentChanges, ResourceUsage, page
from tensile.engine.status.report import EngineStatus
from tensile.kube.fleet import Fleet
from tensile.reconcile.report import Recorder
from tensile.topology import parse

TOPOLOGY = """\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
lowers: []
telemetry: {bind: BIND, port: 9100}
"""


@pytest.mark.parametrize(("bind", "host"), [("127.0.0.1", "127.0.0.1"), ('"::1"', "[::1]")])
def test_the_line_says_where_what_is_served_and_what_is_watched(bind: str, host: str) -> None:
    """As addresses that can be opened."""
    assert ready(parse(TOPOLOGY.replace("BIND", bind)), "/etc/tensile/topology.yaml") == {
        "topology": "demo",
        "watching": "/etc/tensile/topology.yaml",
        "metrics": f"http://{host}:9100/metrics",
        "healthz": f"http://{host}:9100/healthz",
        "status": f"http://{host}:9100/status",
    }


async def test_the_status_page_is_there_before_the_engine_runs(tmp_path: Path) -> None:
    """It says what the engine waits for; there is no world and nothing blocked, and nothing changes by looking."""
    topology = parse("apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\n")
    engine = Engine(topology, ClusterAccess(tmp_path), Recorder(), Fleet(chance=float))
    standing = EngineStatus(utc_now)
    standing.waits = lambda: "the upper cluster has not responded yet"
    source = page_source(engine, standing, RecentChanges(utc_now), in_configmap=True)
    shown = page(source.view(ResourceUsage()))
    assert "Not ready: the upper cluster has not responded yet" in shown
    assert "waits to lead" in shown
    assert (source.world(), source.held(), source.in_configmap) == (None, {}, True)
    assert list(source.events("lower-a", "default", "uid")) == []
    before = source.stamp()
    assert source.stamp() == before
    standing.waits = lambda: ""
    assert source.stamp() != before
