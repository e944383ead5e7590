"""What keeps programs from being fetched or built, in one line that says what to do, out of what pip and Go say.

Both tell a machine without a network, or a full disk, in a page of lines of which one counts, and none of them says
what would help here. What is not known stays as it is: a compiler's words are for whoever mends the sources.
"""

import re
from typing import NamedTuple

LONGEST = 200
"""Characters of the line that counts."""
ASSETS = "$KUBEBUILDER_ASSETS names a folder that has the programs already"


class _Obstacle(NamedTuple):
    """What is said where it stands in the way, as a regular expression, and what helps."""

    said: re.Pattern[str]
    remedy: str


_FULL = _Obstacle(
    re.compile(r"no space left on device|disk quota exceeded|\[Errno 28\]", re.IGNORECASE),
    "make room for 5 GB there, or choose another place with $XDG_CACHE_HOME and $TMPDIR",
)
_KILLED = _Obstacle(
    re.compile(r"signal: killed|cannot allocate memory|out of memory|MemoryError", re.IGNORECASE),
    "building takes 2 GB of memory: make room, or build where there is more and copy the cache",
)
_WRITTEN = _Obstacle(
    re.compile(r"read-only file system|permission denied|creating work dir|could not create module cache"),
    "let it write there, or choose another place with $XDG_CACHE_HOME and $TMPDIR",
)
_AWAY = _Obstacle(
    re.compile(
        r"dial tcp|no such host|proxyconnect|i/o timeout|TLS handshake|x509: |connection re(?:set|fused)"
        r"|unexpected EOF|GOPROXY|cannot find module|toolchain not available|(?:502|503|504|403|407) [A-Z]"
    ),
    f"let Go reach a module proxy ($GOPROXY, $HTTPS_PROXY); elsewhere {ASSETS}",
)
_FILES = _Obstacle(
    re.compile(r"too many open files|no inotify watches|\[Errno 24\]", re.IGNORECASE),
    "end other programs that follow files, or raise fs.inotify.max_user_instances (sysctl) and `ulimit -n`",
)
_NO_PIP = _Obstacle(re.compile(r"No module named pip"), "install Go 1.21 or newer (https://go.dev/dl)")
_NO_INDEX = _Obstacle(
    re.compile(r"No matching distribution|Could not find a version|Could not install|ConnectionError|Max retries"),
    f"install Go 1.21 or newer (https://go.dev/dl), or let pip reach a package index; elsewhere {ASSETS}",
)
_OF_GO = (_FULL, _KILLED, _WRITTEN, _AWAY)
_OF_PROGRAMS = (_FULL, _KILLED, _FILES)
_OF_PIP = (_FULL, _KILLED, _NO_PIP, _NO_INDEX)


def of_go(output: str) -> str:
    """Give why `go` failed and what to do, "" where it is nothing that a person could change."""
    return _found(output, _OF_GO)


def of_pip(output: str) -> str:
    """Give why `pip` failed and what to do, "" likewise."""
    return _found(output, _OF_PIP)


def of_program(output: str) -> str:
    """Give what the machine does not let a program have, and what to do, "" likewise; logs are no text for a person."""
    found = ((obstacle.said.search(output), obstacle.remedy) for obstacle in _OF_PROGRAMS)
    return next((f"{said[0]}: {remedy}" for said, remedy in found if said), "")


def _found(output: str, obstacles: tuple[_Obstacle, ...]) -> str:
    """Look for the obstacles in the order in which they count: where a disk is full the network may look broken too."""
    for obstacle in obstacles:
        for line in output.splitlines():
            if obstacle.said.search(line):
                return f"{line.removeprefix('ERROR: ').strip()[:LONGEST]}: {obstacle.remedy}"
    return ""
