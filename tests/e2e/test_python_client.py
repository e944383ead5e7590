"""Tests of virtual pods with the Python client of Kubernetes, which job schedulers, notebooks and operators use.

Its requests differ from those of kubectl: it streams by WebSocket with protocol v4, and does not retry if the server
refuses.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import pytest
import pytest_asyncio
from enginekit import UPPER, A, running_engine
from kubernetes import config, watch
from kubernetes.client import ApiException, CoreV1Api
from kubernetes.stream import portforward, stream
from sitekit import is_ready
from streamkit import PATIENCE, StreamHarness, page

from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

T = TypeVar("T")
CLUSTERS = pytest.mark.parametrize("cluster", [UPPER, A], ids=["through", "direct"])


class Client(NamedTuple):
    """The client for each cluster, and the pods that it uses."""

    stage: StreamHarness
    apis: dict[str, CoreV1Api]

    async def did(self, cluster: str, work: Callable[[CoreV1Api, str], T]) -> T:
        """Call the client, which blocks, in a thread, with its API and the namespace."""
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(work, self.apis[cluster], self.stage.harness.namespace)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Start an engine with a pod that writes two lines and one that only sleeps, and load the client's kubeconfigs."""
    directory = tmp_path_factory.mktemp("python")
    async with running_engine(sandbox, directory) as harness:
        streams = StreamHarness(harness, is_real=False)
        await streams.run_pod("plain", "sleep 100000")
        await streams.run_pod("says", "echo one; echo two; sleep 100000")
        apis = {}
        for name in (UPPER, A):
            file = directory / f"{name}.admin"
            file.write_text(harness.kubeconfig(name, "admin"))
            apis[name] = CoreV1Api(config.new_client_from_config(str(file)))
        yield Client(streams, apis)
        for api in apis.values():
            api.api_client.close()


@CLUSTERS
async def test_a_log_is_read_and_followed(client: Client, cluster: str) -> None:
    """The client reads the whole log, its last line, and each line while the log is open."""

    def read(api: CoreV1Api, namespace: str) -> tuple[str, str]:
        """Read the log twice."""
        whole = api.read_namespaced_pod_log("says", namespace)
        return whole, api.read_namespaced_pod_log("says", namespace, tail_lines=1)

    def follow(api: CoreV1Api, namespace: str) -> list[bytes]:
        """Follow the log for two lines."""
        with closing(api.read_namespaced_pod_log("says", namespace, follow=True, _preload_content=False)) as following:
            return [following.readline() for _ in range(2)]

    assert await client.did(cluster, read) == ("one\ntwo\n", "two\n")
    assert await client.did(cluster, follow) == [b"one\n", b"two\n"]


@CLUSTERS
async def test_a_command_runs_with_input_separate_outputs_and_an_exit_code(client: Client, cluster: str) -> None:
    """The client sends input, receives both outputs separately, and gets the exit code."""
    script = "read word; echo got $word; echo oh >&2; exit 3"

    def run(api: CoreV1Api, namespace: str) -> tuple[str, str, int]:
        """Run the command and wait for its end."""
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
        opened.sock.shutdown()  # the client leaves it open after the server has closed
        return opened.read_stdout(), opened.read_stderr(), opened.returncode

    assert await client.did(cluster, run) == ("got this\n", "oh\n", 3)


@CLUSTERS
async def test_a_port_is_forwarded(client: Client, cluster: str) -> None:
    """A socket of the client is connected to a port in the pod."""

    def fetch(port: int) -> Callable[[CoreV1Api, str], bytes]:
        """Return a function that requests a page at a port."""

        def work(api: CoreV1Api, namespace: str) -> bytes:
            """Request the page until the server has sent all of it."""
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

    async with client.stage.serve_pages("serves") as ports:
        assert await client.did(cluster, fetch(ports[0])) == page(ports[0])
        await client.stage.harness.upper.delete(client.stage.harness.pod_path("serves"))
        await client.stage.harness.upper.gone(client.stage.harness.pod_path("serves"))


async def test_the_log_of_a_missing_container_is_refused_as_by_a_kubelet(client: Client) -> None:
    """Status, reason and the name in the message are the same through the upper cluster and directly."""

    def ask(api: CoreV1Api, namespace: str) -> Any:
        """Request its log."""
        with pytest.raises(ApiException) as refused:
            api.read_namespaced_pod_log("plain", namespace, container="gone")
        return refused.value

    found, wanted = [await client.did(cluster, ask) for cluster in (UPPER, A)]
    assert (found.status, found.reason) == (wanted.status, wanted.reason)
    assert "gone" in found.body


async def test_a_pod_is_created_watched_and_deleted(client: Client) -> None:
    """An operator of jobs does this; only the node selector and the toleration are specific to virtual nodes."""
    harness = client.stage.harness
    body = {
        "metadata": {"name": "job"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": harness.nodes[A]},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "app:1"}],
        },
    }

    def run(api: CoreV1Api, namespace: str) -> str:
        """Create the pod, wait until it runs, and delete it."""
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

    assert await client.did(UPPER, run) == harness.nodes[A]
    await harness.upper.gone(harness.pod_path("job"))
    await harness.sites[A].gone(harness.pod_path("job"))
    assert is_ready(await harness.upper.read(harness.pod_path("plain")))
