"""What doctor says: one finding for each thing that was looked at."""

from enum import StrEnum
from typing import NamedTuple

CHECKS = (
    "reach",
    "login",
    "version",
    "clock",
    "certificates",
    "identity",
    "rights",
    "node",
    "kubelet",
    "metrics",
    "storage",
    "network",
    "webhook",
    "ports",
    "tenants",
)
"""Everything that is looked at, in the order in which it is told."""


class Level(StrEnum):
    """How a thing is; `SKIP`: it was not looked at."""

    OK = "ok"
    SKIP = "-"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(NamedTuple):
    """How one thing is in one cluster: what was found, and what to do (lines, the last ones commands; "": nothing).

    `cluster` is UPPER or a lower's name, `check` one of CHECKS.
    """

    cluster: str
    check: str
    level: Level
    what: str
    advice: str = ""
