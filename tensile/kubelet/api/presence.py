"""Work that is worth doing only while the caller is there to have it.

A log that is followed can be silent for days; without this, a caller that left would be noticed with the next line.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tensile.kubelet.api.wire import Wire

Result = TypeVar("Result")


class Departed(Exception):
    """The caller left: there is nobody to answer."""


async def while_present(wire: Wire, work: Coroutine[Any, Any, Result], *, dropping: bool = False) -> Result:
    """Do the work and give its result; raises Departed, with the work stopped, when the caller leaves before.

    What the caller sends meanwhile is kept, or dropped where nothing more of it is wanted.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(wire.left(dropping=dropping))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
    if working.cancelled():
        raise Departed
    return working.result()
