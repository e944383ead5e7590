"""The streams that the program talks by, as whoever starts it left them: closed, of another encoding, or a terminal."""

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO


def prepare() -> None:
    """Have both streams take every word: UTF-8 as kubectl's, whatever the locale, and a closed one leads nowhere.

    Objects in YAML and JSON are UTF-8, and what follows them in a pipe reads them so. A stream that stayed closed would
    be the next file or connection that is opened.
    """
    sys.stdout, sys.stderr = (_taking(stream) for stream in (sys.stdout, sys.stderr))


def takes_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether colours help there: a terminal of somebody who has not said no (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR")


def _taking(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    return stream
