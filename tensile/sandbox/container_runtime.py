"""The container runtime of a real node: containerd, runc, the network plugins, and a static busybox for an image.

What the machine has on its search path is taken as it is. Where something is missing all of it comes from the
distribution's packages, which are unpacked into the cache and not installed: nothing of the machine changes, and the
parts fit each other.
"""

import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from tensile.sandbox.go_build import Progress
from tensile.sandbox.layout import SandboxError

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")
PLUGINS = ("bridge", "host-local", "loopback")
PLUGIN_FOLDERS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
PACKAGES = ("containerd", "runc", "containernetworking-plugins", "busybox-static")
UNPACKED_PROGRAMS = ("usr/bin", "usr/sbin", "bin")
UNPACKED_PLUGINS = "usr/lib/cni"
FETCHERS = ("apt-get", "dpkg")
LOADER = b"/ld-"
"""What a program that is not static names near its beginning: in an image there is none."""
BEGINNING = 4096


class Runtime(msgspec.Struct, frozen=True):
    """Where the parts are.

    Attributes:
        path: the search path on which containerd, its shim, ctr and runc are.
        plugins: the folder of network plugins.
        busybox: the static program that the image is made of.
    """

    path: str
    plugins: str
    busybox: str


def find(cache: Path, environ: Mapping[str, str], progress: Progress) -> Runtime:
    """Return the runtime: the machine's, the cache's, or one that is fetched now.

    Args:
        cache: the folder to unpack packages into; it exists.
        environ: where programs are found.
        progress: takes lines for a person.

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
    """Return why there is no runtime and none can be fetched, "" when there is or can be."""
    search = environ.get("PATH", "")
    if installed(search) is not None or all(shutil.which(name, path=search) for name in FETCHERS):
        return ""
    return f"it needs {', '.join(PROGRAMS)} and network plugins, or apt-get to fetch them; install those"


def installed(search: str, folders: Sequence[str] = PLUGIN_FOLDERS) -> Runtime | None:
    """Return what the machine has, None when something is missing or its busybox is no static program."""
    found = [shutil.which(name, path=search) for name in PROGRAMS]
    plugins = [folder for folder in folders if all((Path(folder) / name).exists() for name in PLUGINS)]
    busybox = found[-1]
    if not all(found) or not plugins or busybox is None or not static(Path(busybox)):
        return None
    return Runtime(search, plugins[0], busybox)


def static(program: Path) -> bool:
    """Report whether a program runs where there is no other file."""
    with program.open("rb") as file:
        return LOADER not in file.read(BEGINNING)


def unpacked(folder: Path) -> Runtime:
    """Return the runtime of a folder that packages were unpacked into.

    Raises:
        SandboxError: a program is not in it.
    """
    search = ":".join(str(folder / part) for part in UNPACKED_PROGRAMS)
    found = installed(search, [str(folder / UNPACKED_PLUGINS)])
    if found is None:
        raise SandboxError(f"{folder} does not hold all of {', '.join(PROGRAMS)}; remove it, and it is fetched again")
    return found


def fetch(folder: Path, packages: Sequence[str], search: str, check: Callable[[Path], object]) -> None:
    """Fetch and unpack packages beside the folder and rename, so that a folder that is there is whole.

    Args:
        folder: where they are to be.
        packages: their names.
        search: the search path on which apt-get and dpkg are.
        check: raises SandboxError for a folder that does not hold what was wanted.

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
    """Fetch packages by the machine's lists of them, or, where it has none, by lists of our own."""
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
    """Run a command of a search path in a folder; what it says when it fails is in the error."""
    program = shutil.which(command[0], path=search) or command[0]
    done = subprocess.run([program, *command[1:]], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
