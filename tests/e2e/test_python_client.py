"""Virtual pods by the Python client of Kubernetes, with which schedulers of jobs, notebooks and operators speak.

It asks otherwise than kubectl does: streams by WebSocket of the protocol v4, and no retry where the server says no.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import pytest
import pytest_asyncio
from enginekit import UPPER, A, standing
from kubernetes import config, watch
from kubernetes.client import ApiException, CoreV1Api
from kubernetes.stream import portforward, stream
from sitekit import is_ready
from streamkit import PATIENCE, Stage, page

from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

T = TypeVar("T")
CLUSTERS = pytest.mark.parametrize("cluster", [UPPER, A], ids=["through", "direct"])


class Client(NamedTuple):
    """The client for each cluster, and the pods that it is to meet."""

    stage: Stage
    apis: dict[str, CoreV1Api]

    async def did(self, cluster: str, work: Callable[[CoreV1Api, str], T]) -> T:
        """Call the client, which blocks, in a thread; given are its API and the namespace."""
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(work, self.apis[cluster], self.stage.ground.namespace)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """An engine with a pod that writes two lines and one that does nothing, and a client that opens kubeconfigs."""
    directory = tmp_path_factory.mktemp("python")
    async with standing(sandbox, directory) as ground:
        stage = Stage(ground, is_real=False)
        await stage.pod("plain", "sleep 100000")
        await stage.pod("says", "echo one; echo two; sleep 100000")
        apis = {}
        for name in (UPPER, A):
            file = directory / f"{name}.admin"
            file.write_text(ground.kubeconfig(name, "admin"))
            apis[name] = CoreV1Api(config.new_client_from_config(str(file)))
        yield Client(stage, apis)
        for api in apis.values():
            api.api_client.close()


@CLUSTERS
async def test_a_log_is_read_and_followed(client: Client, cluster: str) -> None:
    """Whole, by its last line, and line by line while it is open."""

    def read(api: CoreV1Api, namespace: str) -> tuple[str, str]:
        """Read it twice."""
        whole = api.read_namespaced_pod_log("says", namespace)
        return whole, api.read_namespaced_pod_log("says", namespace, tail_lines=1)

    def follow(api: CoreV1Api, namespace: str) -> list[bytes]:
        """Follow it for two lines."""
        with closing(api.read_namespaced_pod_log("says", namespace, follow=True, _preload_content=False)) as following:
            return [following.readline() for _ in range(2)]

    assert await client.did(cluster, read) == ("one\ntwo\n", "two\n")
    assert await client.did(cluster, follow) == [b"one\n", b"two\n"]


@CLUSTERS
async def test_a_command_is_run(client: Client, cluster: str) -> None:
    """Its input goes in, its outputs come apart, and its exit code is told."""
    script = "read word; echo got $word; echo oh >&2; exit 3"

    def run(api: CoreV1Api, namespace: str) -> tuple[str, str, int]:
        """Run it and wait for its end."""
        opened = stream(
            api.connect_get_namespaced_pod_exec,
            "plain",
            namespace,
            command=["sh", "-c", script],
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,
        )
        opened.write_stdin("this\n")
        opened.run_forever(timeout=PATIENCE)
        opened.sock.shutdown()  # the client leaves it open where the server has closed
        return opened.read_stdout(), opened.read_stderr(), opened.returncode

    assert await client.did(cluster, run) == ("got this\n", "oh\n", 3)


@CLUSTERS
async def test_a_port_is_forwarded(client: Client, cluster: str) -> None:
    """A socket of the client's own leads to a port in the pod."""

    def fetch(port: int) -> Callable[[CoreV1Api, str], bytes]:
        """Make what asks there for a page."""

        def work(api: CoreV1Api, namespace: str) -> bytes:
            """Ask until the server has said all."""
            opened = portforward(api.connect_get_namespaced_pod_portforward, "serves", namespace, ports=str(port))
            with closing(opened.socket(port)) as there:
                there.settimeout(PATIENCE)
                there.sendall(b"GET / HTTP/1.0\r\n\r\n")
                found = b"".join(iter(lambda: there.recv(1 << 16), b""))
            for one in threading.enumerate():
                if one.name.startswith("Kubernetes port forward proxy"):
                    one.join(PATIENCE)
            opened.websocket.shutdown()
            assert opened.error(port) is None
            return found.partition(b"\r\n\r\n")[2]

        return work

    async with client.stage.pages("serves") as ports:
        assert await client.did(cluster, fetch(ports[0])) == page(ports[0])
        await client.stage.ground.upper.delete(client.stage.ground.pod_path("serves"))
        await client.stage.ground.upper.gone(client.stage.ground.pod_path("serves"))


async def test_what_is_not_there_is_an_answer(client: Client) -> None:
    """As from a kubelet: 400 for a container that the pod has not, with words."""

    def ask(api: CoreV1Api, namespace: str) -> Any:
        """Ask for its log."""
        with pytest.raises(ApiException) as refused:
            api.read_namespaced_pod_log("plain", namespace, container="gone")
        return refused.value

    found, wanted = [await client.did(cluster, ask) for cluster in (UPPER, A)]
    assert (found.status, found.reason) == (wanted.status, wanted.reason)
    assert "gone" in found.body


async def test_a_pod_is_made_watched_and_deleted(client: Client) -> None:
    """As an operator of jobs does: no word of virtual nodes is in it but the selector and the toleration."""
    ground = client.stage.ground
    body = {
        "metadata": {"name": "job"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": ground.nodes[A]},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "app:1"}],
        },
    }

    def run(api: CoreV1Api, namespace: str) -> str:
        """Make it, wait until it runs, and delete it."""
        api.create_namespaced_pod(namespace, body)
        watching = watch.Watch()
        for event in watching.stream(
            api.list_namespaced_pod, namespace, field_selector="metadata.name=job", timeout_seconds=int(PATIENCE)
        ):
            if event["object"].status.phase == "Running":
                watching.stop()
        there = api.read_namespaced_pod("job", namespace)
        api.delete_namespaced_pod("job", namespace)
        return str(there.spec.node_name)

    assert await client.did(UPPER, run) == ground.nodes[A]
    await ground.upper.gone(ground.pod_path("job"))
    await ground.sites[A].gone(ground.pod_path("job"))
    assert is_ready(await ground.upper.read(ground.pod_path("plain")))
