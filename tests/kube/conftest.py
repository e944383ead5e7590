"""What the tests of cluster access share: a scripted apiserver, certificates, kubeconfigs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from papers import Papers
from scripted import Apiserver, access_to, running

from tensile.kube.client import HttpCluster


@pytest.fixture
async def apiserver() -> AsyncIterator[Apiserver]:
    """A healthy, quiet apiserver that speaks plain HTTP."""
    async with running(Apiserver()) as server:
        yield server


@pytest.fixture
async def cluster(apiserver: Apiserver) -> AsyncIterator[HttpCluster]:
    """A client of that apiserver, called `a`, that waits in no time."""
    client = HttpCluster("a", access_to(apiserver.port), timeout=5.0, margin=0.2)
    yield client
    await client.close()


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates of two authorities, made once."""
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory of the test's own for kubeconfigs."""
    return tmp_path
