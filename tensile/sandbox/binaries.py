"""Finds the binaries of a sandbox, or downloads or builds them once.

They come in sets: the control plane, kwok, and the kubelet endpoint; for a real node also the kubelet and the program
that runs it. A location counts only if it has a whole set. The first hit wins: $KUBEBUILDER_ASSETS, $PATH, the user's
cache directory. What is nowhere is downloaded into the cache as its project released it. If that fails, and for the
programs of this package, it is built there. Folder names in the cache contain a hash of the sources or addresses, so
that a new version of this package never runs the binaries of an old one.

The sources pin one release of Kubernetes. $TENSILE_KUBERNETES_VERSION names another one, which is always taken from the
cache: what version the programs of another location have is not known.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensile.sandbox import go_build, real_node
from tensile.sandbox.download import (
    ARCHITECTURES,
    DownloadError,
    ReleasedFile,
    control_plane,
    download,
    kubelet,
    kwok,
    release_hosts,
)
from tensile.sandbox.state import Binaries, NodePrograms, Runtime, SandboxError
from tensile.text import Progress, Updates

SOURCES = Path(__file__).parent / "controlplane"
KUBERNETES = "v1.36.3"
"""The release of Kubernetes that the sources pin."""
VERSION_VARIABLE = "TENSILE_KUBERNETES_VERSION"
_RELEASE = re.compile(r"v1\.[0-9]+\.[0-9]+")
HASH_LENGTH = 12
LOCK = "lock"


def version_flags(version: str) -> str:
    """Return the linker flags that make programs of Kubernetes report a release, which is like "v1.36.3"."""
    major, minor, _ = version.removeprefix("v").split(".")
    reported = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return "-s -w" + "".join(f" -X k8s.io/component-base/version.{key}={value}" for key, value in reported.items())


VERSION_FLAGS = version_flags(KUBERNETES)


@dataclass(frozen=True)
class ProgramSet:
    """Binaries that are downloaded or built together.

    Attributes:
        name: the folder of the sources.
        version: the version that is built.
        programs: the file names; if there are several, one built binary serves under all of them.
        package: the package for `go build`.
        flags: the linker flags.
        effort: how long the build takes, for people.
        released: returns the released files of a version for an architecture; None if the set is not released.
    """

    name: str
    version: str
    programs: tuple[str, ...]
    package: str
    flags: str
    effort: str
    released: Callable[[str, str], tuple[ReleasedFile, ...]] | None = None


CONTROL_PLANE = ProgramSet(
    "kubernetes",
    KUBERNETES,
    ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    ".",
    VERSION_FLAGS,
    "about 4 minutes on 2 cores",
    control_plane,
)
KWOK = ProgramSet("kwok", "v0.8.0", ("kwok",), "sigs.k8s.io/kwok/cmd/kwok", "-s -w", "up to a minute", kwok)
KUBELET = ProgramSet("kubelet", KUBERNETES, ("kubelet",), ".", VERSION_FLAGS, "about a minute", kubelet)
METRICS = ProgramSet(
    "metrics-server",
    "v0.9.0",
    ("metrics-server",),
    "sigs.k8s.io/metrics-server/cmd/metrics-server",
    "-s -w",
    "about 2 minutes on 2 cores",
)
NODE = ProgramSet("node", "v1", ("tensile-node",), ".", "-s -w", "a few seconds")
ENDPOINT = ProgramSet("endpoint", "v1", ("tensile-endpoint",), ".", "-s -w", "about 15 seconds on 2 cores")
OF_KUBERNETES = (CONTROL_PLANE.name, KUBELET.name)
"""The sets that exist in other releases of Kubernetes."""
PROGRAM_OF = {
    "apiserver": "kube-apiserver",
    "controller_manager": "kube-controller-manager",
    "scheduler": "kube-scheduler",
    "endpoint": "tensile-endpoint",
}


@dataclass(frozen=True)
class Finder:
    """Where to look for binaries, and what to build them from.

    Attributes:
        environ: the variables that name locations of binaries and caches.
        progress: called with lines for a person.
        extra: variables for the build processes.
        sources: the folder with a folder of sources for each set.
    """

    environ: Mapping[str, str]
    progress: Progress
    extra: Mapping[str, str] = field(default_factory=dict)
    sources: Path = SOURCES
    _reported: set[str] = field(default_factory=set)

    def find(self, wanted: ProgramSet) -> Path:
        """Return the folder that contains a set; downloads or builds the set if none does.

        Raises:
            SandboxError: it could not be built.
        """
        versioned = of_version(wanted, self.environ)
        return (
            self._cached(versioned) if versioned != wanted else existing(wanted, self.environ) or self._cached(wanted)
        )

    def runtime(self) -> Runtime:
        """Return the container runtime, and fetch it if it is missing.

        Concurrent callers wait for the one that fetches it.

        Raises:
            SandboxError: it could not be fetched.
        """
        cache = cache_directory(self.environ)
        cache.mkdir(parents=True, exist_ok=True)
        with self._locked(cache):
            return real_node.find_runtime(cache, self.environ, self.progress)

    def clear(self) -> None:
        """Delete what is kept between two builds, once all wanted sets exist."""
        cache = cache_directory(self.environ)
        if (cache / go_build.WORK).exists():
            with self._locked(cache):
                go_build.clear(cache)

    def _cached(self, wanted: ProgramSet) -> Path:
        """Return a set's folder in the cache; downloads or builds the set if it is missing.

        Concurrent callers wait for the one that does it.
        """
        cache = cache_directory(self.environ)
        built, downloaded = (cache / name for name in cache_names(wanted, self.sources))
        try:
            if found := _first_folder(built, downloaded):
                return found
            cache.mkdir(parents=True, exist_ok=True)
            with self._locked(cache):
                return _first_folder(built, downloaded) or self._create(wanted, built, downloaded)
        except OSError as error:
            path = error.filename or cache
            raise SandboxError(f"{path}: {error.strerror}; set $XDG_CACHE_HOME to use another cache") from error

    @contextmanager
    def _locked(self, cache: Path) -> Iterator[None]:
        """Hold the lock of the cache inside the block; report once that another process holds it."""
        with (cache / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = waiting_message(cache, holder(_kernel_locks(), os.fstat(lock.fileno())))
                if message not in self._reported:
                    self._reported.add(message)
                    self.progress(message)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _create(self, wanted: ProgramSet, built: Path, downloaded: Path) -> Path:
        """Download a set, or build it if that fails, and return its folder."""
        start_time = time.monotonic()
        folder = downloaded if self._download(wanted, downloaded) else self._build(wanted, built)
        self.progress(f"done in {time.monotonic() - start_time:.0f} s")
        return folder

    def _download(self, wanted: ProgramSet, folder: Path) -> bool:
        """Download a set, and return whether all of it came and runs on this machine."""
        files = released_files(wanted)
        hosts = release_hosts(self.environ)
        if not files or hosts is None:
            return False
        self.progress(f"downloading {wanted.name} {wanted.version} (once) into {folder}")
        try:
            with _new_folder(folder) as new, Updates(self.progress) as updates:
                download(files, new, hosts, updates)
                _check(new, wanted)
        except DownloadError as error:
            self.progress(f"{error}: {wanted.name} is built instead")
            return False
        return True

    def _build(self, wanted: ProgramSet, folder: Path) -> Path:
        """Build a set, and return its folder."""
        self.progress(f"building {wanted.name} {wanted.version} (once, {wanted.effort}) into {folder}")
        program, *links = wanted.programs
        with _new_folder(folder) as new:
            self._compile(wanted, folder.parent, new / program)
            for link in links:
                (new / link).symlink_to(program)
        return folder

    def _compile(self, wanted: ProgramSet, cache: Path, program: Path) -> None:
        go = go_build.find_go(cache, self.progress, self.environ.get("PATH", ""), self.extra)
        source, arguments = self.sources / wanted.name, ("-ldflags", wanted.flags, wanted.package)
        extra = {**self.extra, **go_build.variables(go, cache)}
        if wanted.name not in OF_KUBERNETES or wanted.version == KUBERNETES:
            go_build.build([go, *arguments], source, program, progress=self.progress, extra=extra)
            return
        with go_build.ported(go, source, wanted.version, extra) as copy:
            go_build.build([go, "-mod=mod", *arguments], copy, program, progress=self.progress, extra=extra)


def find_or_build(progress: Progress, extra: Mapping[str, str] | None = None, version: str = "") -> Binaries:
    """Return all binaries; downloads or builds missing ones, and reports that to `progress`.

    Args:
        progress: called with lines for a person.
        extra: variables for the build processes.
        version: the release of Kubernetes; "" for that of the environment, else the pinned one.

    Raises:
        SandboxError: a set could not be built.
    """
    finder = Finder(_with_version(version), progress, extra or {})
    found: dict[str, str] = {}
    for wanted in (CONTROL_PLANE, KWOK, ENDPOINT):
        folder = finder.find(wanted)
        found |= {program: str(folder / program) for program in wanted.programs}
    finder.clear()
    return Binaries(**{name: found[PROGRAM_OF.get(name, name)] for name in Binaries.__struct_fields__})


def find_or_build_node(progress: Progress, extra: Mapping[str, str] | None = None, version: str = "") -> NodePrograms:
    """Return the binaries of a real node; downloads or builds missing ones, and reports that to `progress`.

    `version` is as in `find_or_build`.

    Raises:
        SandboxError: a set could not be built or fetched.
    """
    finder = Finder(_with_version(version), progress, extra or {})
    kubelet, node = (finder.find(wanted) / wanted.programs[0] for wanted in (KUBELET, NODE))
    finder.clear()
    return NodePrograms(str(kubelet), str(node), finder.runtime())


def _with_version(version: str) -> Mapping[str, str]:
    """Return the environment, with a release of Kubernetes if one is given."""
    return {**os.environ, VERSION_VARIABLE: version} if version else os.environ


def of_version(wanted: ProgramSet, environ: Mapping[str, str]) -> ProgramSet:
    """Return a set of the release of Kubernetes that the environment names; the same set if it names none.

    Raises:
        SandboxError: that is no release.
    """
    version = environ.get(VERSION_VARIABLE, "")
    if not version or wanted.name not in OF_KUBERNETES:
        return wanted
    if not _RELEASE.fullmatch(version):
        raise SandboxError(
            f"${VERSION_VARIABLE}: {version!r} is not a release of Kubernetes; use one such as {KUBERNETES}"
        )
    return replace(wanted, version=version, flags=version_flags(version))


def is_cached(wanted: ProgramSet, environ: Mapping[str, str]) -> bool:
    """Report whether a set is in the cache."""
    return any((cache_directory(environ) / name).is_dir() for name in cache_names(wanted))


def existing(wanted: ProgramSet, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of $KUBEBUILDER_ASSETS or $PATH that contains the whole set, None if none does."""
    assets = environ.get("KUBEBUILDER_ASSETS", "")
    for folder in [assets, *environ.get("PATH", "").split(os.pathsep)]:
        if folder and all(runs(Path(folder).absolute() / program) for program in wanted.programs):
            return Path(folder).absolute()
    return None


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of downloaded and built binaries: tensile-kube in $XDG_CACHE_HOME, else in ~/.cache."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else _home() / ".cache") / "tensile-kube"


def _home() -> Path:
    """Return the user's home directory; a user that is only a number, as in containers, may have none."""
    try:
        return Path.home()
    except RuntimeError:
        raise SandboxError(
            "this user has no home directory: set $XDG_CACHE_HOME to a directory for built programs"
        ) from None


def cache_names(wanted: ProgramSet, sources: Path = SOURCES) -> tuple[str, str]:
    """Return the names of a set's folders: if it is built, and if it is downloaded."""
    digest = hashlib.sha256(repr(released_files(wanted)).encode()).hexdigest()
    return cache_name(wanted, sources), f"{wanted.name}-{wanted.version}-released-{digest[:HASH_LENGTH]}"


def released_files(wanted: ProgramSet) -> tuple[ReleasedFile, ...]:
    """Return the released files of a set for this machine, nothing if there are none."""
    architecture = ARCHITECTURES.get(platform.machine())
    return wanted.released(wanted.version, architecture) if wanted.released and architecture else ()


def cache_name(wanted: ProgramSet, sources: Path = SOURCES) -> str:
    """Return the name of a built set's folder; it depends on each byte of the sources and on the architecture."""
    recipe = (wanted.programs, wanted.package, wanted.flags, platform.machine())
    digest = hashlib.sha256(repr(recipe).encode())
    for path in sorted((sources / wanted.name).iterdir()):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return f"{wanted.name}-{wanted.version}-{digest.hexdigest()[:HASH_LENGTH]}"


def runs(program: Path) -> bool:
    """Report whether a binary starts: on some machines the kubectl on the search path always fails."""
    if not os.access(program, os.X_OK):
        return False
    arguments = ["version", "--client"] if program.name == "kubectl" else ["--help"]
    try:
        result = subprocess.run([program, *arguments], capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def _check(folder: Path, wanted: ProgramSet) -> None:
    """Raise DownloadError if a program of a downloaded set does not run: not every machine has its C library."""
    for program in wanted.programs:
        if not runs(folder / program):
            raise DownloadError(f"the released {program} {wanted.version} does not run on this machine")


def _first_folder(*folders: Path) -> Path | None:
    """Return the first of the folders that exists."""
    return next((folder for folder in folders if folder.is_dir()), None)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which gets its name at the end, so that an existing folder is always complete."""
    new = folder.with_name("new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    new.rename(folder)


def waiting_message(cache: Path, pid: int) -> str:
    """Return that another process holds the lock of the cache; pid 0: it is not known which one."""
    process_text = f" (pid {pid})" if pid else ""
    return f"another process{process_text} downloads or builds programs in {cache}: waiting until it is done"


def _kernel_locks() -> str:
    """Return the text of /proc/locks, "" if this machine has none."""
    try:
        return Path("/proc/locks").read_text()
    except OSError:
        return ""


def holder(locks: str, file: os.stat_result) -> int:
    """Return the pid of the process that holds the lock of a file, 0 if it is not known.

    A process of another pid namespace has no pid here. On some filesystems the kernel names another device.

    Args:
        locks: the text of /proc/locks, with lines such as "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF".
        file: the status of the file.
    """
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    rows = (line.split() for line in locks.splitlines())
    return next((int(row[4]) for row in rows if row[1:2] == ["FLOCK"] and row[5] == name and int(row[4]) > 0), 0)
