"""Tests of how the endpoint lists and watches pods, with a scripted apiserver: pages, old versions, broken watches."""

import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scripted import (
    ScriptedApiserver,
    ServerAction,
    WatchStream,
    bookmark,
    event,
    listing,
    make_pod,
    refusal,
    running,
    status_body,
)

from tensile.sandbox import credentials, flags
from tensile.sandbox.processes import choose
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Layout, Ports

pytestmark = pytest.mark.real

STATUS = "/api/v1/namespaces/default/pods/web/status"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Return the layout of a lower cluster with credentials and free ports."""
    (run,) = choose([len(Ports.__struct_fields__)])
    made = Layout(str(tmp_path), "lower-a", 1, 1, Ports(*run))
    credentials.write(made, datetime.now(UTC))
    return made


@contextmanager
def endpoint(sandbox: Sandbox, layout: Layout) -> Iterator[None]:
    """Run the endpoint of a cluster."""
    binaries = sandbox.state().binaries
    assert binaries is not None
    with (layout.directory / "endpoint.log").open("wb") as output:
        process = subprocess.Popen(flags.endpoint(layout, binaries), stdout=output, stderr=output)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@asynccontextmanager
async def followed(sandbox: Sandbox, layout: Layout, **plays: list[ServerAction]) -> AsyncIterator[ScriptedApiserver]:
    """Run an apiserver that gives these answers, and an endpoint that watches it."""
    server = ScriptedApiserver()
    server.port = layout.ports.apiserver
    for sort, answers in plays.items():
        server.queue(sort, *answers)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(layout.pki / "ca.crt"))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(layout.pki / "apiserver.crt", layout.pki / "apiserver.key")
    async with running(server, tls):
        with endpoint(sandbox, layout):
            yield server


def file_of(layout: Layout, name: str) -> Path:
    """Create a file in the folder of a pod, and return its path."""
    path = layout.work / "default" / name / "main" / "file"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


async def test_pods_are_listed_in_pages(sandbox: Sandbox, layout: Layout) -> None:
    """Files of unknown pods are removed only after the last page, and the watch begins at the version of the list."""
    one, two, unknown = (file_of(layout, name) for name in ("one", "two", "unknown"))
    pages: list[ServerAction] = [listing(7, make_pod("one", 5), more="next"), listing(7, make_pod("two", 6))]
    async with followed(sandbox, layout, list=pages) as server:
        watch = await server.wait_for_request("watch")
        assert [request.query.get("continue") for request in server.requests_of("list")] == [None, "next"]
        assert (watch.query["resourceVersion"], watch.query["allowWatchBookmarks"]) == ("7", "true")
        assert [path.exists() for path in (one, two, unknown)] == [True, True, False]


async def test_an_ended_watch_is_resumed_without_a_list(sandbox: Sandbox, layout: Layout) -> None:
    """It resumes at the version of its last event or bookmark, after its events have been processed."""
    path = file_of(layout, "web")
    first = WatchStream().send(bookmark(9), event("MODIFIED", make_pod("web", 12))).end()
    second = WatchStream().send(event("DELETED", make_pod("web", 15)), bookmark(20)).end()
    async with followed(sandbox, layout, list=[listing(7, make_pod("web", 5))], watch=[first, second]) as server:
        assert (await server.wait_for_request("watch", 2)).query["resourceVersion"] == "12"
        assert (await server.wait_for_request("watch", 3)).query["resourceVersion"] == "20"
        assert not path.exists()
        assert len(server.requests_of("list")) == 1


BROKEN: dict[str, Callable[[], ServerAction]] = {
    "a version that is too old": lambda: WatchStream().send(event("ERROR", status_body(410, "Expired"))),
    "refused": lambda: refusal(410, "Expired"),
    "broken off": lambda: WatchStream().send(event("ADDED", make_pod("other", 8))).drop(),
    "ended at once": lambda: WatchStream().end(),
    "no JSON": lambda: WatchStream().raw(b"<html>\n"),
}


@pytest.mark.parametrize("watch", BROKEN.values(), ids=BROKEN)
async def test_pods_are_listed_again_after_every_other_end_of_a_watch(
    sandbox: Sandbox, layout: Layout, watch: Callable[[], ServerAction]
) -> None:
    """A pod that is missing in the new list was deleted in the meantime."""
    kept, deleted = file_of(layout, "kept"), file_of(layout, "deleted")
    lists: list[ServerAction] = [
        listing(7, make_pod("kept", 5), make_pod("deleted", 6)),
        listing(30, make_pod("kept", 5)),
    ]
    async with followed(sandbox, layout, list=lists, watch=[watch()]) as server:
        assert (await server.wait_for_request("watch", 2)).query["resourceVersion"] == "30"
        assert [path.exists() for path in (kept, deleted)] == [True, False]


async def test_a_refused_list_is_retried(sandbox: Sandbox, layout: Layout) -> None:
    """The refusal of a later page restarts the list too, and no file is removed until the list is complete."""
    path = file_of(layout, "two")
    one, two = make_pod("one", 5), make_pod("two", 6)
    lists: list[ServerAction] = [refusal(503, "Unavailable"), listing(7, one, more="next"), refusal(410, "Expired")]
    async with followed(sandbox, layout, list=[*lists, listing(8, one, two)]) as server:
        assert (await server.wait_for_request("watch")).query["resourceVersion"] == "8"
        assert path.exists()


async def test_another_pod_of_the_same_name_does_not_get_the_files(sandbox: Sandbox, layout: Layout) -> None:
    """The UID decides, because the endpoint may have missed the first pod's deletion."""
    path = file_of(layout, "web")
    again = WatchStream().send(event("MODIFIED", make_pod("web", 9, uid="other"))).end()
    async with followed(sandbox, layout, list=[listing(7, make_pod("web", 5))], watch=[again]) as server:
        await server.wait_for_request("watch", 2)
        assert not path.exists()


def status(name: str, **more: Any) -> dict[str, Any]:
    """Return the status of a running container."""
    state = {"running": {"startedAt": "2031-01-01T00:00:00Z"}}
    fixed = {"name": name, "image": "none", "imageID": "none", "containerID": f"sandbox://{name}", "ready": True}
    return {**fixed, "started": True, "restartCount": 0, "state": state, "lastState": {}, **more}


async def test_the_status_of_a_process_is_written_for_its_pod_only(sandbox: Sandbox, layout: Layout) -> None:
    """The patch has the pod's UID, and the statuses of its other containers unchanged."""
    other = status("other", restartCount=3, lastState={"terminated": {"exitCode": 4, "reason": "Error"}})
    web = make_pod(
        "web",
        5,
        spec={
            "restartPolicy": "Never",
            "containers": [{"name": "main", "command": ["sh", "-c", "exit 7"]}, {"name": "other"}],
        },
        status={"phase": "Running", "containerStatuses": [status("main"), other]},
    )
    web["metadata"]["annotations"]["sandbox.tensile-kube.io/run"] = "command"
    async with followed(sandbox, layout, list=[listing(7, web)]) as server:
        begun, ended = await server.wait_for_request("write"), await server.wait_for_request("write", 2)
    assert {(request.method, request.path, request.headers["content-type"]) for request in (begun, ended)} == {
        ("PATCH", STATUS, "application/strategic-merge-patch+json")
    }
    assert begun.json()["metadata"] == ended.json()["metadata"] == {"uid": "uid-web"}
    assert "running" in begun.json()["status"]["containerStatuses"][0]["state"]
    main, untouched = ended.json()["status"]["containerStatuses"]
    assert (main["state"]["terminated"]["exitCode"], main["ready"], main["started"]) == (7, False, False)
    assert untouched == other
    assert "phase" not in ended.json()["status"]
