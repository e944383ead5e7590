"""Shared fixtures of the kubelet API tests: certificates, the engine's event loop, and a harness that detects leaks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest
import uvloop
from kubelet_lab import KubeletApiHarness, leak_watch
from kubelet_pki import Pki
from kubelet_twins import TwinPods

if TYPE_CHECKING:
    from tensile.sandbox.sandbox import Sandbox


def pytest_asyncio_loop_factories(
    config: pytest.Config,
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every asynchronous test here on uvloop, as the engine does, because its TLS code is not asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Create the certificate authorities and identities once for the whole run."""
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
async def kubelet_api(pki: Pki) -> AsyncIterator[KubeletApiHarness]:
    """Serve one virtual node with a scripted lower cluster; afterwards no task and no file descriptor may be left."""
    async with leak_watch():
        laboratory = KubeletApiHarness(pki)
        async with laboratory:
            yield laboratory


@pytest.fixture(scope="module")
def twins(sandbox: "Sandbox") -> Iterator[TwinPods]:
    """Create two upper pods and their lower pods, in clusters whose apiservers verify kubelets."""
    made = TwinPods(sandbox)
    made.create()
    yield made
    made.delete()
