"""The container runtime of a real node: containerd, runc, CNI plugins, and a static busybox for the images.

Programs on the machine's search path are used if they are complete. Otherwise all of them come from the distribution's
packages, so that the versions fit each other. The packages are unpacked into the cache and not installed, so the
machine is not changed.
"""

import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from tensile.sandbox.layout import SandboxError
from tensile.sandbox.progress import Progress

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")
PLUGINS = ("bridge", "host-local", "loopback")
PLUGIN_FOLDERS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
PACKAGES = ("containerd", "runc", "containernetworking-plugins", "busybox-static")
UNPACKED_PROGRAMS = ("usr/bin", "usr/sbin", "bin")
UNPACKED_PLUGINS = "usr/lib/cni"
FETCHERS = ("apt-get", "dpkg")
LOADER = b"/ld-"
"""The bytes near the beginning of a dynamically linked program; an image has no loader."""
BEGINNING = 4096


class Runtime(msgspec.Struct, frozen=True):
    """The locations of the parts.

    Attributes:
        path: the search path of containerd, its shim, ctr and runc.
        plugins: the folder of CNI plugins.
        busybox: the static program that the images are made of.
    """

    path: str
    plugins: str
    busybox: str


def find(cache: Path, environ: Mapping[str, str], progress: Progress) -> Runtime:
    """Return the runtime: the machine's, the cache's, or one that is fetched now.

    Args:
        cache: the folder to unpack packages into; it exists.
        environ: the variables with the search path.
        progress: called with lines for a person.

    Raises:
        SandboxError: the packages cannot be fetched.
    """
    search = environ.get("PATH", "")
    found = installed(search)
    if found is not None:
        return found
    folder = cache / f"runtime-{platform.machine()}"
    if not folder.is_dir():
        progress(f"fetching packages {', '.join(PACKAGES)} (once) into {folder}")
        fetch(folder, PACKAGES, search, unpacked)
    return unpacked(folder)


def obstacle(environ: Mapping[str, str]) -> str:
    """Return why there is no runtime and none can be fetched, "" if there is one or it can be fetched."""
    search = environ.get("PATH", "")
    if installed(search) is not None or all(shutil.which(name, path=search) for name in FETCHERS):
        return ""
    return f"it needs {', '.join(PROGRAMS)} and network plugins; install them, or apt-get to fetch them"


def installed(search: str, folders: Sequence[str] = PLUGIN_FOLDERS) -> Runtime | None:
    """Return the machine's runtime, None if a part is missing or busybox is not static."""
    found = [shutil.which(name, path=search) for name in PROGRAMS]
    plugins = [folder for folder in folders if all((Path(folder) / name).exists() for name in PLUGINS)]
    busybox = found[-1]
    if not all(found) or not plugins or busybox is None or not static(Path(busybox)):
        return None
    return Runtime(search, plugins[0], busybox)


def static(program: Path) -> bool:
    """Report whether a program is statically linked, so that it runs in an image without other files."""
    with program.open("rb") as file:
        return LOADER not in file.read(BEGINNING)


def unpacked(folder: Path) -> Runtime:
    """Return the runtime in a folder that packages were unpacked into.

    Raises:
        SandboxError: a program is missing.
    """
    search = ":".join(str(folder / part) for part in UNPACKED_PROGRAMS)
    found = installed(search, [str(folder / UNPACKED_PLUGINS)])
    if found is None:
        raise SandboxError(f"{folder} does not contain all of {', '.join(PROGRAMS)}; remove it to fetch it again")
    return found


def fetch(folder: Path, packages: Sequence[str], search: str, check: Callable[[Path], object]) -> None:
    """Fetch and unpack packages into a temporary folder and rename it, so that an existing folder is always complete.

    Args:
        folder: the final folder.
        packages: the names of the packages.
        search: the search path of apt-get and dpkg.
        check: raises SandboxError for an incomplete folder.

    Raises:
        SandboxError: they cannot be fetched.
    """
    new = folder.with_name(f"new-{folder.name}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    _download(new, packages, search)
    for package in sorted(new.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(new)], new, search)
        package.unlink()
    check(new)
    new.rename(folder)


def _download(new: Path, packages: Sequence[str], search: str) -> None:
    """Download packages by the machine's package lists, or by newly fetched lists if it has none."""
    fetcher = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    try:
        return _run([*fetcher, "download", *packages], new, search)
    except SandboxError:
        lists = new / "apt" / "lists"
        for path in (lists, new / "apt" / "archives"):
            (path / "partial").mkdir(parents=True)
    own = [*fetcher, "-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={new / 'apt'}"]
    _run([*own, "update"], new, search)
    _run([*own, "download", *packages], new, search)
    return shutil.rmtree(new / "apt")


def _run(command: Sequence[str], folder: Path, search: str) -> None:
    """Run a command in a folder; raises SandboxError with its error output if it fails."""
    program = shutil.which(command[0], path=search) or command[0]
    done = subprocess.run([program, *command[1:]], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
