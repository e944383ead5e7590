"""Takes connections on a listening socket, each through a door, for servers that have to choose whom they serve."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from tensile.door import Door, Guest

_OUT_OF_RESOURCES_SECONDS = 0.2
_AT_ONCE = 64
"""Connections that are taken in one turn of the event loop: at one a turn, a flood leaves no place in the row."""

Serve = Callable[[socket.socket, Guest], object]
"""Begins to serve a connection, and closes it in the end; sets the guest's `drop`, and has the guest leave."""


async def accept(listening: socket.socket, door: Door, serve: Serve, failed: Callable[[OSError], object]) -> None:
    """Take connections until it is cancelled.

    Those that get no place are closed. `failed` hears of connections that cannot be taken, as for want of descriptors:
    then a guest that is late makes room.
    """
    while True:
        try:
            await _take_in(await asyncio.get_running_loop().sock_accept(listening), door, serve)
            await _take_in_more(listening, door, serve)
        except OSError as error:
            door.displace()
            failed(error)
            await asyncio.sleep(_OUT_OF_RESOURCES_SECONDS)


async def _take_in_more(listening: socket.socket, door: Door, serve: Serve) -> None:
    """Take the connections that are there besides."""
    for _ in range(_AT_ONCE):
        try:
            accepted = listening.accept()
        except BlockingIOError:
            return
        accepted[0].setblocking(False)
        await _take_in(accepted, door, serve)


async def _take_in(accepted: tuple[socket.socket, tuple[str, int]], door: Door, serve: Serve) -> None:
    """Have a connection served as soon as there is room for it, or close it."""
    connection, (host, *_) = accepted
    guest = None
    try:
        guest = await door.enter(host)
    finally:
        if guest is None:
            connection.close()
    if guest is not None:
        serve(connection, guest)


async def take_over(connection: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.Transport:
    """Have the event loop speak a protocol on a connection that was accepted.

    Whoever cancels this has the connection closed: uvloop would leave it open, in the one turn that it takes.
    """
    taking = asyncio.ensure_future(asyncio.get_running_loop().connect_accepted_socket(protocol, connection))
    try:
        transport, _ = await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_abort)
        raise
    return transport


def _abort(taken: asyncio.Future[tuple[asyncio.Transport, Any]]) -> None:
    if not taken.cancelled() and taken.exception() is None:
        taken.result()[0].abort()
