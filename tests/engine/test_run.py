"""What `tensile run` logs when the engine is ready."""

import pytest

from tensile.engine.run import ready
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
