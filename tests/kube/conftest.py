"""Fixtures of the tests of cluster access: a scripted apiserver, certificates and kubeconfigs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from certkit import CertificateSet
from scripted import ScriptedApiserver, access_to, running

from tensile.kube.client import HttpCluster


@pytest.fixture
async def apiserver() -> AsyncIterator[ScriptedApiserver]:
    """A healthy, quiet apiserver that speaks plain HTTP."""
    async with running(ScriptedApiserver()) as server:
        yield server


@pytest.fixture
async def cluster(apiserver: ScriptedApiserver) -> AsyncIterator[HttpCluster]:
    """A client of that apiserver, with the name `a` and short timeouts."""
    client = HttpCluster("a", access_to(apiserver.port), timeout=5.0, margin=0.2)
    yield client
    await client.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateSet:
    """Certificates of two certificate authorities, created once per session."""
    return CertificateSet(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A temporary directory for the kubeconfigs of one test."""
    return tmp_path
