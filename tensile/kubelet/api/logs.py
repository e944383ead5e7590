"""`kubectl logs`: a lower's log, passed on line by line as it comes, and left alone when nobody reads it any more."""

from http import HTTPStatus

from tensile.kubelet.api.dialogue import PLAIN, Caller
from tensile.kubelet.api.lower import LowerCall
from tensile.kubelet.api.presence import while_present


async def follow(caller: Caller, call: LowerCall) -> None:
    """Answer with the lower's log; Refused when it gives none, an error of the wire when it breaks off."""
    async with call:
        await while_present(caller.wire, _relay(caller, call), dropping=True)


async def _relay(caller: Caller, call: LowerCall) -> None:
    await call.answer(HTTPStatus.OK)
    await caller.begin(HTTPStatus.OK, (("content-type", PLAIN), ("transfer-encoding", "chunked")))
    async for piece in call.pieces():
        await caller.piece(piece)
    await caller.end()
