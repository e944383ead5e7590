"""What the sandbox's own tests share: data of clusters that never start."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tensile.sandbox.state import Binaries, Layout, Ports

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    """A moment that is not this one."""
    return NOW


@pytest.fixture
def upper(tmp_path: Path) -> Layout:
    """An upper cluster that exists on paper."""
    return Layout(str(tmp_path), "upper", 0, 0, Ports(20001, 20002, 20003, 20004, 20005, 20006, 20007))


@pytest.fixture
def lower(tmp_path: Path) -> Layout:
    """A lower cluster of two nodes that exists on paper."""
    return Layout(str(tmp_path), "lower-a", 1, 2, Ports(21001, 21002, 21003, 21004, 21005, 21006, 21007))


@pytest.fixture
def binaries() -> Binaries:
    """Programs that are nowhere."""
    return Binaries(
        etcd="/bin/etcd",
        apiserver="/bin/kube-apiserver",
        controller_manager="/bin/kube-controller-manager",
        scheduler="/bin/kube-scheduler",
        kubectl="/bin/kubectl",
        kwok="/bin/kwok",
        endpoint="/bin/tensile-endpoint",
    )
