"""Finds the binaries of a sandbox, or builds them once.

They come in sets: the control plane, kwok, and the kubelet endpoint; for a real node also the kubelet and the program
that runs it. A location counts only if it has a whole set. The first hit wins: $KUBEBUILDER_ASSETS, $PATH, the user's
cache directory. Folder names in the cache contain a hash of the sources, so that a new version of this package never
runs the binaries of an old one.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensile.sandbox import container_runtime, go_build
from tensile.sandbox.container_runtime import Runtime
from tensile.sandbox.go_build import Progress
from tensile.sandbox.layout import SandboxError
from tensile.sandbox.state import Binaries, NodePrograms

SOURCES = Path(__file__).parent / "controlplane"
KUBERNETES = "v1.36.3"
"""The release of Kubernetes that the sources pin."""
VERSION_VARIABLE = "TENSILE_KUBERNETES_VERSION"
_RELEASE = re.compile(r"v1\.[0-9]+\.[0-9]+")
HASH_LENGTH = 12


def version_flags(version: str) -> str:
    """Return the linker flags that make programs of Kubernetes report a release, which is like "v1.36.3"."""
    major, minor, _ = version.removeprefix("v").split(".")
    reported = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return "-s -w" + "".join(f" -X k8s.io/component-base/version.{key}={value}" for key, value in reported.items())


VERSION_FLAGS = version_flags(KUBERNETES)


@dataclass(frozen=True)
class ProgramSet:
    """Binaries that are built together.

    Attributes:
        name: the folder of the sources.
        version: the version that is built.
        programs: the file names; if there are several, one binary serves under all of them.
        package: the package for `go build`.
        flags: the linker flags.
        effort: how long the build takes, for people.
    """

    name: str
    version: str
    programs: tuple[str, ...]
    package: str
    flags: str
    effort: str


CONTROL_PLANE = ProgramSet(
    "kubernetes",
    KUBERNETES,
    ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    ".",
    VERSION_FLAGS,
    "about 5 minutes on 2 cores",
)
KWOK = ProgramSet("kwok", "v0.8.0", ("kwok",), "sigs.k8s.io/kwok/cmd/kwok", "-s -w", "about a minute")
KUBELET = ProgramSet("kubelet", KUBERNETES, ("kubelet",), ".", VERSION_FLAGS, "about a minute")
METRICS = ProgramSet(
    "metrics-server",
    "v0.9.0",
    ("metrics-server",),
    "sigs.k8s.io/metrics-server/cmd/metrics-server",
    "-s -w",
    "about 2 minutes on 2 cores",
)
NODE = ProgramSet("node", "v1", ("tensile-node",), ".", "-s -w", "a few seconds")
ENDPOINT = ProgramSet("endpoint", "v1", ("tensile-endpoint",), ".", "-s -w", "a few seconds")
OF_KUBERNETES = (CONTROL_PLANE.name, KUBELET.name)
"""The sets that can be built from another release of Kubernetes."""
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

    def find(self, wanted: ProgramSet) -> Path:
        """Return the folder that contains a set, and build the set if none does.

        Raises:
            SandboxError: it could not be built.
        """
        asked = of_version(wanted, self.environ)
        return self._cached(asked) if asked != wanted else existing(wanted, self.environ) or self._cached(wanted)

    def runtime(self) -> Runtime:
        """Return the container runtime, and fetch it if it is missing.

        Concurrent callers wait for the one that fetches it.

        Raises:
            SandboxError: it could not be fetched.
        """
        cache = cache_directory(self.environ)
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "lock"):
            return container_runtime.find(cache, self.environ, self.progress)

    def clear(self) -> None:
        """Delete what is kept between two builds, once all wanted sets exist."""
        cache = cache_directory(self.environ)
        if (cache / go_build.WORK).exists():
            with _locked(cache / "lock"):
                go_build.clear(cache)

    def _cached(self, wanted: ProgramSet) -> Path:
        """Return a set's folder in the cache, and build it if it is missing.

        Concurrent callers wait for the one that builds it.
        """
        cache = cache_directory(self.environ)
        folder = cache / cache_name(wanted, self.sources)
        if folder.is_dir():
            return folder
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with _locked(cache / "lock"):
                if not folder.is_dir():
                    self._build(wanted, cache, folder)
        except OSError as error:
            where = error.filename or cache
            raise SandboxError(f"{where}: {error.strerror}; set $XDG_CACHE_HOME to use another cache") from error
        return folder

    def _build(self, wanted: ProgramSet, cache: Path, folder: Path) -> None:
        """Build in a temporary folder and rename it, so that an existing folder is always complete."""
        self.progress(f"building {wanted.name} {wanted.version} (once, {wanted.effort}) into {folder}")
        new = cache / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            self._compile(wanted, cache, new / wanted.programs[0])
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        program, *links = wanted.programs
        for link in links:
            (new / link).symlink_to(program)
        new.rename(folder)

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
    """Return all binaries; builds missing ones, and reports that to `progress`.

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
    """Return the binaries of a real node; builds or fetches missing ones, and reports that to `progress`.

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
    """Report whether a set was built before, into the cache."""
    return (cache_directory(environ) / cache_name(wanted)).is_dir()


def existing(wanted: ProgramSet, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of $KUBEBUILDER_ASSETS or $PATH that contains the whole set, None if none does."""
    assets = environ.get("KUBEBUILDER_ASSETS", "")
    for folder in [assets, *environ.get("PATH", "").split(os.pathsep)]:
        if folder and all(runs(Path(folder).absolute() / program) for program in wanted.programs):
            return Path(folder).absolute()
    return None


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of built binaries: tensile-kube in $XDG_CACHE_HOME, else in ~/.cache."""
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


def cache_name(wanted: ProgramSet, sources: Path = SOURCES) -> str:
    """Return the name of a set's folder; it depends on every byte of the sources and on the machine's architecture."""
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
        done = subprocess.run([program, *arguments], capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the cache inside the block."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
