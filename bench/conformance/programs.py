"""Finds or builds the programs of the suite: its tests, Ginkgo, which runs them, and those in the images.

All are built from the same Go module as the sandbox's own programs, and are kept in the user's cache like those. The
shell is a package of the distribution, because busybox's shell may not pass on a variable whose name has a dash, which
some tests use.
"""

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tensile.sandbox import real_node
from tensile.sandbox.binaries import VERSION_FLAGS, Finder, ProgramSet, cache_directory
from tensile.sandbox.state import SandboxError
from tensile.text import Progress

VERSION = "v1.36.3"
SOURCES = Path(__file__).parent / "sources"
GINKGO = ProgramSet("e2e", VERSION, ("ginkgo-2.28",), "github.com/onsi/ginkgo/v2/ginkgo", "-s -w", "about a minute")
AGNHOST = ProgramSet("e2e", VERSION, ("agnhost",), "k8s.io/kubernetes/test/images/agnhost", "-s -w", "about a minute")
NNP = ProgramSet("e2e", VERSION, ("nnp",), "k8s.io/kubernetes/test/images/nonewprivs", "-s -w", "a few seconds")
SUITE = ProgramSet("e2e", VERSION, ("e2e-1.36.test",), ".", VERSION_FLAGS, "about 5 minutes on 2 cores")
"""The name has the version, so that a suite of another version on the search path is never used instead."""
SHELL = "bash-static"


class Programs(NamedTuple):
    """The path of each program."""

    suite: Path
    ginkgo: Path
    agnhost: Path
    nnp: Path
    shell: Path


def found(progress: Progress, environ: Mapping[str, str] = os.environ) -> Programs:
    """Return the programs; those that are missing are built or fetched, which is reported to `progress`.

    Raises:
        SandboxError: something could not be built or fetched.
    """
    finder = Finder(environ, progress, sources=SOURCES)
    ginkgo, agnhost, nnp, suite = (finder.find(one) / one.programs[0] for one in (GINKGO, AGNHOST, NNP, SUITE))
    finder.clear()
    return Programs(suite, ginkgo, agnhost, nnp, shell(cache_directory(environ), environ, progress))


def shell(cache: Path, environ: Mapping[str, str], progress: Progress) -> Path:
    """Return a static shell that passes on every variable: from the search path, the cache, or a new download.

    Raises:
        SandboxError: it cannot be fetched.
    """
    search = environ.get("PATH", "")
    if at_hand := shutil.which(SHELL, path=search):
        return Path(at_hand)
    folder = cache / f"{SHELL}-{platform.machine()}"
    if not folder.is_dir():
        progress(f"fetching package {SHELL} (once) into {folder}")
        real_node.fetch_packages(folder, (SHELL,), search, _unpacked)
    return _unpacked(folder)


def _unpacked(folder: Path) -> Path:
    """Return the shell in a folder that its package was unpacked into."""
    for part in ("bin", "usr/bin"):
        if (folder / part / SHELL).exists():
            return folder / part / SHELL
    raise SandboxError(f"{folder} holds no {SHELL}; remove it to fetch it again")
