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

from bench.faults.hostile.front import Behind, Front, ReceivedRequest, serving
from bench.faults.hostile.ways import WAYS
from bench.kit.faultproxy.keys import Keys, User

NICENESS = 10
"""The process that produces endless answers may wait: the others use the machine too."""
_ADMINISTRATOR = User("kubernetes-admin", ("system:masters",))


def told(heard: ReceivedRequest) -> dict[str, Any]:
    """Return a request in the form that is sent to the bench."""
    fields = {name: value for name, value in heard.fields.items() if name in ("authorization", "cookie", "user-agent")}
    body = heard.body.decode("latin-1") if heard.asked.is_write or heard.body else ""
    return {"sort": heard.sort, "method": heard.method, "path": heard.path, "fields": fields, "body": body}


async def serve(pki: Path, address: str) -> None:
    """Serve until standard input ends."""
    host, _, port = address.rpartition(":")
    with TemporaryDirectory() as directory:
        keys = Keys(pki, Path(directory))
        front = Front(Behind(host, int(port), keys.client(_ADMINISTRATOR)))
        async with serving(front, keys.server()):
            _say({"port": front.port})
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                name = orjson.loads(line)
                if name is True:
                    _say({"met": front.met})
                    continue
                _say({"met": front.met, "sent": front.sent, "heard": [told(one) for one in front.heard]})
                front.heard.clear()
                front.turn(WAYS[name] if name else None)


def _say(what: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(what) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    os.nice(NICENESS)
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
