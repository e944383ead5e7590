"""Fixtures that the sandbox's own tests share: data of clusters that never start."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tensile.sandbox.state import Binaries, Layout, Ports

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    """Return a fixed moment that is not the current one."""
    return NOW


@pytest.fixture
def upper(tmp_path: Path) -> Layout:
    """Return the layout of an upper cluster that is never started."""
    return Layout(str(tmp_path), "upper", 0, 0, Ports(20001, 20002, 20003, 20004, 20005, 20006, 20007))


@pytest.fixture
def lower(tmp_path: Path) -> Layout:
    """Return the layout of a lower cluster of two nodes that is never started."""
    return Layout(str(tmp_path), "lower-a", 1, 2, Ports(21001, 21002, 21003, 21004, 21005, 21006, 21007))


@pytest.fixture
def binaries() -> Binaries:
    """Return paths of programs that do not exist."""
    return Binaries(
        etcd="/bin/etcd",
        apiserver="/bin/kube-apiserver",
        controller_manager="/bin/kube-controller-manager",
        scheduler="/bin/kube-scheduler",
        kubectl="/bin/kubectl",
        kwok="/bin/kwok",
        endpoint="/bin/tensile-endpoint",
    )
