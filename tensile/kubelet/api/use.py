"""`kubectl top` and autoscaling: what a virtual node uses, in the two forms of a kubelet.

metrics-server logs nothing of an answer but its status line. So where nothing can be measured, the reason stands there,
too, and whoever looks for missing figures finds it in the log where he looks first.
"""

import asyncio
from http import HTTPStatus

from tensile.kubelet.api import routes
from tensile.kubelet.api.dialogue import PLAIN, Caller
from tensile.kubelet.api.meter import Meter
from tensile.kubelet.api.presence import while_present
from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.routes import Call
from tensile.kubelet.usage.exposition import MEDIA, exposition
from tensile.kubelet.usage.picture import Picture
from tensile.kubelet.usage.summary import summary

_JSON = "application/json"
_REASON_AT_MOST = 400


async def show(caller: Caller, call: Call, meter: Meter | None) -> None:
    """Answer with the use of a node and its pods, or with why it is not known."""
    try:
        found = await while_present(caller.wire, _picture(meter))
    except Refused as refused:
        await caller.reply(refused.status, f"{refused.message}\n".encode(), PLAIN, reason(refused.message))
        return
    if call.area == routes.STATS:
        await caller.reply(HTTPStatus.OK, await asyncio.to_thread(summary, found), _JSON)
    else:
        await caller.reply(HTTPStatus.OK, await asyncio.to_thread(exposition, found), MEDIA)


async def _picture(meter: Meter | None) -> Picture:
    if meter is None:
        raise Refused(HTTPStatus.NOT_FOUND, "nothing is known of this node yet")
    return await meter.picture()


def reason(message: str) -> str:
    """Give words that can stand in a status line: printable ASCII, and not too many."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in message[:_REASON_AT_MOST])
