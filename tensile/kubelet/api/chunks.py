"""The chunks of an HTTP/1.1 body, in and out: what a log that is followed consists of, thousands of times a second.

h11 makes an event of each part of a chunk in Python; llhttp, by httptools, takes a tenth of that. What came at once
goes on as one chunk, made anew: nothing but content is taken over from a lower's answer, no extension of a chunk and no
trailer.
"""

import h11
import httptools

_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_SILENT_AT_MOST = 4096
"""Bytes without content that may come in a row: sizes and extensions of chunks, trailers. llhttp keeps none of them."""


class Chunks:
    """Takes a chunked body apart as it comes. `ended` says that all of it has come."""

    def __init__(self) -> None:
        self.ended = False
        self._found: list[bytes] = []
        self._silent = 0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(_HEAD)

    def take(self, data: bytes) -> bytes:
        """Return the content among `data`; raises h11.RemoteProtocolError when it is no chunk.

        Content is never held back, not even of a chunk whose end is still to come. What comes after the end is dropped.
        """
        if self.ended:
            return b""
        self._found.clear()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.ended:
                raise h11.RemoteProtocolError(f"its body is no chunks: {error}") from None
        content = self._found[0] if len(self._found) == 1 else b"".join(self._found)
        self._silent = 0 if content else self._silent + len(data)
        if self._silent > _SILENT_AT_MOST:
            raise h11.RemoteProtocolError("too much stands between chunks, or follows the last one")
        return content

    def on_body(self, content: bytes) -> None:
        """Note content for httptools; of an answer that follows the body there is none."""
        if not self.ended:
            self._found.append(content)

    def on_message_complete(self) -> None:
        """Note the end for httptools."""
        self.ended = True


def chunk(content: bytes) -> bytes:
    """Give content, at least a byte of it, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(content), content)
