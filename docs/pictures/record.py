"""Records a run of `tensile demo` on a terminal, with times, in demo.cast (asciicast v2).

    .venv/bin/python -m docs.pictures.record

It takes as long as the demo: about a minute on an idle machine. `docs/pictures/demo.py` draws the picture from the
recording. The recording is kept, so that the picture can be drawn again without clusters, and so that anybody can
compare it with what the demo prints.
"""

import codecs
import contextlib
import fcntl
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from docs.pictures.demo import CAST
from tensile.sandbox import binaries

COLUMNS, ROWS = 80, 28
LAST_WORDS = "reloads it at once."
"""The end of what the demo prints before it waits for Ctrl-C."""
CTRL_C = b"\x03"
Event = tuple[float, str]
"""Seconds since the start, and what was written then."""


def started(kubectl: Path) -> tuple[int, int]:
    """Start the demo on a terminal, with kubectl and tensile in $PATH; return its process id and the terminal."""
    process, terminal = pty.fork()
    if process == 0:
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(sys.stdout.fileno(), termios.TIOCSWINSZ, size)
        path = os.pathsep.join((str(kubectl.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
        os.execve(sys.executable, [sys.executable, "-m", "tensile", "demo", "--no-pause"], {**os.environ, "PATH": path})
    return process, terminal


def recorded(terminal: int) -> Iterator[Event]:
    """Yield what is written to a terminal until it closes; press Ctrl-C after the last words of the tour."""
    begun = time.monotonic()
    decoder = codecs.getincrementaldecoder("utf-8")()
    written = ""
    with contextlib.suppress(OSError):  # Linux reports with EIO that the last writer has closed it
        while block := os.read(terminal, 65536):
            text = decoder.decode(block)
            yield round(time.monotonic() - begun, 3), text
            was_over, written = LAST_WORDS in written, written + text
            if LAST_WORDS in written and not was_over:
                os.write(terminal, CTRL_C)


def main() -> int:
    """Record the demo, and return its exit code; if it fails, print it and leave the last recording."""
    with tempfile.TemporaryDirectory() as folder:
        kubectl = Path(folder, "kubectl")
        kubectl.symlink_to(binaries.find_or_build(print).kubectl)
        process, terminal = started(kubectl)
        events = list(recorded(terminal))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        sys.stderr.write("".join(text for _, text in events))
        return code
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "tensile demo"}
    lines = [head, *([at, "o", text] for at, text in events)]
    CAST.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
