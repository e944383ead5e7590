"""The chunks of an HTTP/1.1 body, in and out: what a log that is followed consists of, thousands of times a second.

h11 looks at every line for everything that HTTP allows and makes an event of each part of a chunk. Behind a head that
it has read there are sizes and content only, so that is all that is looked for here. What came at once goes on as one
chunk, made anew: nothing but content is taken over from a lower's answer, no extension of a chunk and no trailer.
"""

import re

import h11

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_LINE_AT_MOST = 4096
_TRAILERS_AT_MOST = 100
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n")


class Chunks:
    """Takes a chunked body apart as it comes. `ended` says that all of it has come."""

    def __init__(self) -> None:
        self.ended = False
        self._held = b""
        self._left = 0
        self._within = False
        self._trailing = False
        self._trailers = 0

    def take(self, data: bytes) -> bytes:
        """Give the content among `data` and what was held back before; h11.RemoteProtocolError when it is no chunk.

        Content is never held back, not even of a chunk whose end is still to come. What comes after the end is dropped.
        """
        data, at, found = self._held + data, 0, []
        while not self.ended:
            if self._left:
                piece = data[at : at + self._left]
                found.append(piece)
                self._left -= len(piece)
                at += len(piece)
            end = 0 if self._left else self._line(data, at)
            if not end:
                break
            at = end
        self._held = data[at:]
        return found[0] if len(found) == 1 else b"".join(found)

    def _line(self, data: bytes, at: int) -> int:
        """Read what stands between contents, and give where that ends; 0 when not all of it has come."""
        if self._trailing:
            return self._trailer(data, at)
        if self._within:
            return self._mark(data, at)
        size = _SIZE.match(data, at)
        if size is None:
            _wait(data, at, _LINE_AT_MOST, "the size of a chunk")
            return 0
        self._left = int(size[1], 16)
        self._within = self._left > 0
        self._trailing = not self._within
        return size.end()

    def _mark(self, data: bytes, at: int) -> int:
        """Read what ends a chunk's content."""
        mark = data[at : at + 2]
        if mark == b"\r\n":
            self._within = False
            return at + 2
        if mark not in {b"", b"\r"}:
            raise h11.RemoteProtocolError("a chunk is longer than it says")
        return 0

    def _trailer(self, data: bytes, at: int) -> int:
        """Read a line behind the last chunk; an empty one is the body's end."""
        if data.startswith(b"\r\n", at):
            self.ended = True
            return at + 2
        line = _TRAILER.match(data, at)
        if line is None:
            _wait(data, at, _LINE_AT_MOST, "what follows the last chunk")
            return 0
        self._trailers += 1
        if self._trailers > _TRAILERS_AT_MOST:
            raise h11.RemoteProtocolError("too much follows the last chunk")
        return line.end()


def chunk(content: bytes) -> bytes:
    """Give content, at least a byte of it, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def _wait(data: bytes, at: int, most: int, what: str) -> None:
    """Let more come, unless it is clear that it cannot be what is waited for."""
    if len(data) - at > most or b"\n" in data[at:]:
        raise h11.RemoteProtocolError(f"{what} is not understood")
