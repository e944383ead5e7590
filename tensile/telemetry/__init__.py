"""What the engine says of itself: logs, metrics, and the server that health checks and Prometheus ask.

Nothing is decided from any of it, so nothing in it may fail loudly: a full disk costs log lines, never pods.
"""

from tensile.telemetry.logs import configure
from tensile.telemetry.metrics import Metrics, Readings
from tensile.telemetry.seldom import Ration, Seldom
from tensile.telemetry.server import ProbeServer, TelemetryServer

__all__ = [
    "Metrics",
    "ProbeServer",
    "Ration",
    "Readings",
    "Seldom",
    "TelemetryServer",
    "configure",
]
