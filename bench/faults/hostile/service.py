"""The hostile server as a separate process, so that its work does not block the event loops that are measured.

    python -m bench.faults.hostile.service PKI HOST:PORT

It serves in front of the apiserver of the cluster whose keys are in PKI. Standard input has one JSON value per line:
the way in which it answers from now on (null: as it should). To each it writes, likewise, the result of the last way;
to true it only writes how often the current way was applied.
"""

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from bench.faults.hostile.behaviors import BEHAVIORS
from bench.faults.hostile.server import HostileServer, RealCluster, ReceivedRequest, serving
from bench.kit.faultproxy.tls import TLSContexts, User

NICENESS = 10
"""The process that produces endless answers may wait: the others use the machine too."""
_ADMINISTRATOR = User("kubernetes-admin", ("system:masters",))


def summary(received: ReceivedRequest) -> dict[str, Any]:
    """Return a request in the form that is sent to the bench."""
    fields = {
        name: value for name, value in received.fields.items() if name in ("authorization", "cookie", "user-agent")
    }
    body = received.body.decode("latin-1") if received.parsed.is_write or received.body else ""
    return {"sort": received.sort, "method": received.method, "path": received.path, "fields": fields, "body": body}


async def serve(pki: Path, address: str) -> None:
    """Serve until standard input ends."""
    host, _, port = address.rpartition(":")
    with TemporaryDirectory() as directory:
        contexts = TLSContexts(pki, Path(directory))
        server = HostileServer(RealCluster(host, int(port), contexts.client_context(_ADMINISTRATOR)))
        async with serving(server, contexts.server_context()):
            _write_json({"port": server.port})
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                name = orjson.loads(line)
                if name is True:
                    _write_json({"met": server.applied_count})
                    continue
                _write_json(
                    {
                        "met": server.applied_count,
                        "sent": server.sent,
                        "heard": [summary(one) for one in server.requests],
                    }
                )
                server.requests.clear()
                server.set_behavior(BEHAVIORS[name] if name else None)


def _write_json(what: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(what) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    os.nice(NICENESS)
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
