"""What makes the clusters of a sandbox complete: volumes in the lower clusters, and the metrics API in all of them.

One process serves all clusters of a sandbox, since each would take 60 MB. It reads their layouts from the sandbox's
state, and accesses them as an administrator. Each cluster's apiserver finds the metrics API at a port of its own, since
a request does not name its cluster. Only an apiserver can call it: the client certificate has to be its front proxy's.

The lists of metrics are computed when they are requested, from the pods that the apiserver lists for the same query. So
selectors need no code here. Only kubelets are read regularly, since usage is the difference of two readings.

Volumes are created, expanded and deleted as a storage driver's would be. A volume is a folder of the sandbox that only
the chosen node can use. Simulated nodes mount nothing and leave it empty; a real node creates it when the first pod
mounts it.
"""

import asyncio
import shutil
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

import aiohttp
import orjson
from aiohttp import web

from tensile.kubelet.stats.usage import NODE_METRICS, PodSample, Sample
from tensile.objects import Manifest, annotations, metadata, uid
from tensile.sandbox import metrics_api
from tensile.sandbox.apiserver import LOWER_PROVISIONER, STORAGE_CLASS
from tensile.sandbox.credentials import ADDONS
from tensile.sandbox.metrics_api import KubeletUsage
from tensile.sandbox.state import LOOPBACK, Layout, load

CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
RESOLUTION = 6.0
"""Seconds between two readings of a kubelet. A virtual node caches its usage for five seconds."""
PATIENCE = 10.0
WATCH_SECONDS = 300
RETRY = 1.0
CHANGES = ("ADDED", "MODIFIED", "DELETED")
LONGEST_LINE = 1 << 20
"""Bytes of a watch event: larger ones end the watch."""
MERGE = "application/merge-patch+json"
JSON = "application/json"
AWAY = (aiohttp.ClientError, OSError, ValueError)
"""Errors of an apiserver or kubelet that does not answer, or answers with something else."""
SIMULATED = ("kwok.x-k8s.io/node", "fake")
"""The annotation of nodes without a kubelet."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class VolumeRequest(NamedTuple):
    """A request to the apiserver; `body` is a merge patch for PATCH, None for DELETE."""

    method: str
    path: str
    body: Manifest | None = None


def volume_requests(claims: Iterable[Manifest], volumes: Iterable[Manifest], folder: str) -> Iterator[VolumeRequest]:
    """Yield what claims and volumes need; nothing when all is done.

    Args:
        claims: all PersistentVolumeClaims of a cluster.
        volumes: all its PersistentVolumes.
        folder: the absolute path of the folder for the contents of volumes.
    """
    provisioned = {
        metadata(one)["name"]: one for one in volumes if annotations(one).get(PROVISIONED_BY) == LOWER_PROVISIONER
    }
    for claim in claims:
        name = claim["spec"].get("volumeName", "")
        if not name and is_waiting(claim) and volume_name(claim) not in provisioned:
            yield VolumeRequest("POST", VOLUMES, volume(claim, folder))
        elif name in provisioned and claim.get("status", {}).get("phase") == "Bound":
            yield from _expansion(claim, provisioned[name])
    for name, manifest in provisioned.items():
        if _is_released(manifest):
            yield VolumeRequest("DELETE", f"{VOLUMES}/{name}")


def is_waiting(claim: Manifest) -> bool:
    """Report whether Kubernetes asks this provisioner for a volume, and the scheduler has chosen a node."""
    notes = annotations(claim)
    deleted = "deletionTimestamp" in metadata(claim)
    return notes.get(STORAGE_PROVISIONER) == LOWER_PROVISIONER and SELECTED_NODE in notes and not deleted


def volume_name(claim: Manifest) -> str:
    """Return the name of a claim's volume, which differs from that of a deleted claim of the same name."""
    return f"pvc-{uid(claim)}"


def volume(claim: Manifest, folder: str) -> Manifest:
    """Return the volume for a claim, which only the node that the scheduler chose can use."""
    meta, spec = metadata(claim), claim["spec"]
    name = volume_name(claim)
    node_selector = {"key": "kubernetes.io/hostname", "operator": "In", "values": [annotations(claim)[SELECTED_NODE]]}
    claim_reference = {field: meta[field] for field in ("namespace", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: LOWER_PROVISIONER}},
        "spec": {
            "capacity": {"storage": _size(spec)},
            "accessModes": spec["accessModes"],
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "storageClassName": spec.get("storageClassName", STORAGE_CLASS),
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim_reference},
            "hostPath": {"path": f"{folder}/{name}", "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node_selector]}]}},
        },
    }


def _expansion(claim: Manifest, found: Manifest) -> Iterator[VolumeRequest]:
    """Yield what makes a volume as large as its claim requests; Kubernetes refuses requests for less."""
    wanted = {"storage": _size(claim["spec"])}
    if found["spec"]["capacity"] != wanted:
        yield VolumeRequest("PATCH", f"{VOLUMES}/{metadata(found)['name']}", {"spec": {"capacity": wanted}})
    if claim["status"].get("capacity") != wanted:
        meta = metadata(claim)
        path = f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}/status"
        yield VolumeRequest("PATCH", path, {"status": {"capacity": wanted}})


def _is_released(manifest: Manifest) -> bool:
    """Report whether a volume has to be deleted, and is not yet."""
    policy = manifest["spec"].get("persistentVolumeReclaimPolicy")
    is_deleted = "deletionTimestamp" in metadata(manifest)
    return manifest.get("status", {}).get("phase") == "Released" and policy == "Delete" and not is_deleted


def _size(spec: Mapping[str, Manifest]) -> str:
    """Return the requested size."""
    return str(spec["resources"]["requests"]["storage"])


class RefusedError(Exception):
    """An apiserver denied a request."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body.decode(errors='replace')}")
        self.status = status
        self.body = body


class AddonCluster:
    """One cluster: requests to its apiserver and kubelets, and the usage of its nodes. Used with `async with`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.kubelets: dict[str, KubeletUsage] = {}
        self._simulated: set[str] = set()

    async def __aenter__(self) -> Self:
        tls = ssl.create_default_context(cafile=str(self.layout.pki / "ca.crt"))
        tls.load_cert_chain(self.layout.pki / f"{ADDONS}.crt", self.layout.pki / f"{ADDONS}.key")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            headers={"User-Agent": "sandbox-addons"},
            read_bufsize=LONGEST_LINE,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(
        self, method: str, path: str, body: Manifest | None = None, query: Mapping[str, str] | None = None
    ) -> bytes:
        """Send a request to the apiserver, and return the body of its answer. Raises RefusedError, or one of AWAY."""
        url = self.layout.server + path
        headers = {"Content-Type": MERGE if method == "PATCH" else JSON, "Accept": JSON}
        data = None if body is None else orjson.dumps(body)
        async with asyncio.timeout(PATIENCE):
            async with self._session.request(method, url, params=query, data=data, headers=headers) as answer:
                content = await answer.read()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise RefusedError(answer.status, content)
        return content

    async def items(self, path: str) -> list[Manifest]:
        """Return the objects of a list. Raises RefusedError, or one of AWAY."""
        found: list[Manifest] = orjson.loads(await self.call("GET", path))["items"]
        return found

    async def watch_objects(self, path: str) -> AsyncIterator[list[Manifest]]:
        """Yield the objects of a collection, and again after every change, until the watch ends."""
        listed = orjson.loads(await self.call("GET", path))
        objects: dict[str, Manifest] = {metadata(manifest)["uid"]: manifest for manifest in listed["items"]}
        yield list(objects.values())
        since = f"watch=1&timeoutSeconds={WATCH_SECONDS}&resourceVersion={listed['metadata']['resourceVersion']}"
        async with self._session.get(f"{self.layout.server}{path}?{since}") as stream:
            async for line in stream.content:
                event = orjson.loads(line)
                if event.get("type") not in CHANGES:  # an error, or a refusal in place of a watch
                    return
                manifest = event["object"]
                objects.pop(metadata(manifest)["uid"], None)
                if event["type"] != "DELETED":
                    objects[metadata(manifest)["uid"]] = manifest
                yield list(objects.values())

    async def read_kubelets(self) -> None:
        """Read the usage of all nodes that have a kubelet; a node that does not answer has none."""
        nodes = await self.items(NODES)
        key, value = SIMULATED
        self._simulated = {metadata(one)["name"] for one in nodes if annotations(one).get(key) == value}
        served = {metadata(one)["name"]: url for one in nodes if (url := _kubelet_url(one))}
        names = [name for name in served if name not in self._simulated]
        self.kubelets = {name: self.kubelets.get(name) or KubeletUsage() for name in names}
        texts = await asyncio.gather(*(self._exposition(served[name]) for name in names))
        for name, text in zip(names, texts, strict=True):
            with suppress(ValueError):
                self.kubelets[name].update(text)

    async def _exposition(self, url: str) -> str:
        """Return what a kubelet reports, "" if it does not."""
        try:
            async with asyncio.timeout(PATIENCE), self._session.get(f"{url}/metrics/resource") as answer:
                return await answer.text() if answer.status == HTTPStatus.OK else ""
        except AWAY:
            return ""

    def pod_sample(self, pod: Manifest, now: int) -> PodSample | None:
        """Return the usage of a pod at a time (ms since 1970), None while it is not known."""
        meta, node = metadata(pod), pod["spec"].get("nodeName", "")
        if node in self._simulated:
            return metrics_api.simulated_pod(pod, now)
        kubelet = self.kubelets.get(node)
        return kubelet.pods.get((meta["namespace"], meta["name"])) if kubelet else None

    async def node_samples(self, names: list[str], now: int) -> dict[str, Sample]:
        """Return the usage of those of the nodes of which it is known."""
        kubelet_samples = {name: one.node for name, one in self.kubelets.items()}
        found = {name: measured for name in names if (measured := kubelet_samples.get(name))}
        simulated = [name for name in names if name in self._simulated]
        pods: dict[str, list[PodSample]] = {name: [] for name in simulated}
        for pod in await self.items(PODS) if simulated else ():
            sample = self.pod_sample(pod, now)
            if sample and pod["spec"].get("nodeName") in pods:
                pods[pod["spec"]["nodeName"]].append(sample)
        return {**found, **{name: metrics_api.simulated_node(pods[name], now) for name in simulated}}


def _kubelet_url(node: Manifest) -> str:
    """Return the URL of a node's kubelet, "" for a node without one."""
    status = node.get("status", {})
    addresses = [one["address"] for one in status.get("addresses") or () if one["type"] == "InternalIP"]
    port = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
    return f"https://{addresses[0]}:{port}" if addresses and port else ""


class MetricsAPI:
    """The HTTP handlers of the metrics API of a cluster."""

    def __init__(self, cluster: AddonCluster) -> None:
        self._cluster = cluster

    def application(self) -> web.Application:
        """Return the routes: discovery, and both kinds as a list and by name."""
        root = f"/apis/{NODE_METRICS.api}"
        application_routes = web.Application(middlewares=[_answering])
        application_routes.router.add_get("/healthz", self._healthy)
        application_routes.router.add_get(root, self._resources)
        for path in ("/nodes", "/nodes/{name}"):
            application_routes.router.add_get(root + path, self._nodes)
        for path in ("/pods", "/namespaces/{namespace}/pods", "/namespaces/{namespace}/pods/{name}"):
            application_routes.router.add_get(root + path, self._pods)
        return application_routes

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _resources(self, _request: web.Request) -> web.Response:
        return _json(metrics_api.resources())

    async def _nodes(self, request: web.Request) -> web.Response:
        now = _now()
        nodes = await self._requested_objects(request, "/nodes")
        samples = await self._cluster.node_samples([metadata(one)["name"] for one in nodes], now)
        named = [(one, samples.get(metadata(one)["name"])) for one in nodes]
        found = [metrics_api.node_metrics(one, sample) for one, sample in named if sample]
        return _shown(request, "NodeMetrics", found)

    async def _pods(self, request: web.Request) -> web.Response:
        now = _now()
        namespace = request.match_info.get("namespace")
        pods = await self._requested_objects(request, f"/namespaces/{namespace}/pods" if namespace else "/pods")
        measured = [(one, self._cluster.pod_sample(one, now)) for one in pods]
        found = [metrics_api.pod_metrics(one, sample) for one, sample in measured if sample]
        return _shown(request, "PodMetrics", found)

    async def _requested_objects(self, request: web.Request, path: str) -> list[Manifest]:
        """Return the objects that a request is about, as the apiserver selects them."""
        name = request.match_info.get("name")
        path = f"/api/v1{path}/{name}" if name else f"/api/v1{path}"
        body = orjson.loads(await self._cluster.call("GET", path, query=request.query))
        return [body] if name else body["items"]


def _now() -> int:
    """Return the time in milliseconds since 1970, in whole seconds as the API has it."""
    return int(time.time()) * 1000


def _shown(request: web.Request, kind: str, items: list[Manifest]) -> web.Response:
    """Return a list, or the one object that was requested by its name."""
    name = request.match_info.get("name")
    if not name:
        return _json(metrics_api.metrics_list(kind, items))
    return _json(items[0]) if items else _json(metrics_api.absent(name), HTTPStatus.NOT_FOUND)


@web.middleware
async def _answering(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with the apiserver's own status where it denies a request, and with 503 where it does not answer."""
    try:
        return await handler(request)
    except RefusedError as error:
        return web.Response(status=error.status, body=error.body, content_type=JSON)
    except AWAY as error:
        return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"the apiserver does not answer: {error}")


def _json(body: Manifest, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type=JSON)


class Provisioner:
    """Serves the StorageClass of a lower cluster."""

    def __init__(self, cluster: AddonCluster) -> None:
        self._cluster = cluster
        self._folder = cluster.layout.directory / "volumes"
        self._objects: dict[str, list[Manifest]] = {}
        self._changed = asyncio.Event()

    async def run(self) -> NoReturn:
        """Follow claims and volumes, and do what they need."""
        async with asyncio.TaskGroup() as tasks:
            for path in (CLAIMS, VOLUMES):
                tasks.create_task(retried(lambda path=path: self._follow(path)))  # type: ignore[misc]
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._serve()

    async def _follow(self, path: str) -> None:
        async for objects in self._cluster.watch_objects(path):
            self._objects[path] = objects
            self._changed.set()

    async def _serve(self) -> None:
        """Do what is needed now, once both lists are known; after an error try again."""
        if len(self._objects) < len((CLAIMS, VOLUMES)):
            return
        claims, volumes = self._objects[CLAIMS], self._objects[VOLUMES]
        for request in volume_requests(claims, volumes, str(self._folder)):
            try:
                await self._cluster.call(*request)
            except RefusedError as error:
                if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                    _log(f"{self._cluster.layout.name}: {request.method} {request.path}: {error}")
            except AWAY as error:
                _log(f"{self._cluster.layout.name}: {request.method} {request.path}: {error!r}")
                await asyncio.sleep(RETRY)
                self._changed.set()
            else:
                if request.method == "DELETE":
                    shutil.rmtree(self._folder / Path(request.path).name, ignore_errors=True)


async def retried(action: Callable[[], Awaitable[object]], pause: float = RETRY) -> NoReturn:
    """Do work again and again, `pause` seconds after it ended or its cluster did not answer."""
    while True:
        with suppress(RefusedError, *AWAY):
            await action()
        await asyncio.sleep(pause)


async def serve(cluster: AddonCluster) -> web.AppRunner:
    """Start the metrics API of a cluster, and return what stops it."""
    pki = cluster.layout.pki
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "front-proxy-ca.crt"))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(pki / f"{ADDONS}.crt", pki / f"{ADDONS}.key")
    runner = web.AppRunner(MetricsAPI(cluster).application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, cluster.layout.ports.addons, ssl_context=tls).start()
    return runner


async def run(layouts: list[Layout]) -> None:
    """Serve all clusters until the process is killed."""
    clusters = [await AddonCluster(layout).__aenter__() for layout in layouts]
    async with asyncio.TaskGroup() as tasks:
        for cluster in reversed(clusters):
            await serve(cluster)
            tasks.create_task(retried(cluster.read_kubelets, RESOLUTION))
            if cluster.layout.place:
                tasks.create_task(Provisioner(cluster).run())
        await asyncio.Event().wait()


def _log(line: str) -> None:
    """Write a line to the process's output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main(directory: Path) -> None:
    """Serve the sandbox in a directory."""
    state = load(directory)
    if state is None:
        sys.exit(f"no sandbox in {directory}")
    try:
        asyncio.run(run([cluster.layout for cluster in state.clusters.values()]))
    except OSError as error:
        sys.exit(f"{ADDONS}: {error.strerror or error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
