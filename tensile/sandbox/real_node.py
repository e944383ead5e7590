"""A real node of a lower cluster: a kubelet with containerd, in its own namespaces on this machine.

The kubelet does not accept a loopback address, and all its processes must be found again after a kill, so the program
`node` runs it in namespaces. This module writes the addresses and the configuration of each part. The unusual settings
are required on machines that were not set up for a kubelet: either version of cgroups, swap, no systemd, no iptables.

The requirements are checked first, without changing the machine. Many machines (containers, CI) lack some of the
privileges, and the later errors would not say what to do.

The machine's containerd, runc and CNI plugins are used if they are complete. Otherwise all of them come from the
distribution's packages, so that the versions fit each other. The packages are unpacked into the cache and not
installed, so the machine is not changed.

The images are created from one static program, without a registry, so a sandbox works offline and always has the same
images. They are in the format of `docker save`, which every containerd can read.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tensile.sandbox import stop
from tensile.sandbox.download import ARCHITECTURES
from tensile.sandbox.state import LOOPBACK, Layout, NodePrograms, Runtime, SandboxError
from tensile.text import Progress

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
IMAGE = "busybox:latest"
PAUSE = "tensile-pause:1"
IMAGES: dict[str, dict[str, Any]] = {
    IMAGE: {"Cmd": ["sh"]},
    PAUSE: {"Entrypoint": ["/bin/busybox", "tail", "-f", "/dev/null"]},
}
"""The default command of each image; the second one is the pause image, which holds a pod's network."""
USERS = b"root:x:0:0:root:/root:/bin/sh\n"
KUBELET_PORT = 10250
NETWORKS = 512
CRI = "io.containerd.grpc.v1.cri"
CONTAINERD = """\
version = 2
[plugins."{cri}"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "{loopback}"
  [plugins."{cri}".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
"""
CGROUPS = Path("/sys/fs/cgroup")
FILE_SYSTEMS = Path("/proc/filesystems")
COVERED = tuple(map(Path, ("/run", "/var/run", "/var/lib", "/var/log")))
"""Directories that the node has of its own, so that it cannot see what the machine has in them."""
TRY = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({flags}) != 0)"
NAMESPACES = 0x00020000 | 0x20000000 | 0x40000000 | 0x04000000 | 0x08000000
"""The kernel's flags for mount, process, network, host name and IPC namespaces."""


def find_runtime(cache: Path, environ: Mapping[str, str], progress: Progress) -> Runtime:
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
        fetch_packages(folder, PACKAGES, search, unpacked)
    return unpacked(folder)


def runtime_obstacle(environ: Mapping[str, str]) -> str:
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


def fetch_packages(folder: Path, packages: Sequence[str], search: str, check: Callable[[Path], object]) -> None:
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
    apt_options = [*fetcher, "-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={new / 'apt'}"]
    _run([*apt_options, "update"], new, search)
    _run([*apt_options, "download", *packages], new, search)
    return shutil.rmtree(new / "apt")


def _run(command: Sequence[str], folder: Path, search: str) -> None:
    """Run a command in a folder; raises SandboxError with its error output if it fails."""
    program = shutil.which(command[0], path=search) or command[0]
    result = subprocess.run([program, *command[1:]], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SandboxError(f"{' '.join(command)} failed:\n{result.stderr.strip()}")


class Image(NamedTuple):
    """One image of an archive.

    Attributes:
        tags: its names, with tags.
        layers: its layers, each as a tar, lowest first.
        runs: its command and user, as fields of an image's `config`.
    """

    tags: tuple[str, ...]
    layers: tuple[bytes, ...]
    runs: Mapping[str, Any]


class LayerEntry(NamedTuple):
    """A file, a link or a folder of a layer; `link` is the target of a link."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""
    folder: bool = False


def obstacle(used: Sequence[Path], environ: Mapping[str, str], user: int | None = None) -> str:
    """Return why this machine cannot run a real node, "" if it can.

    Args:
        used: the directories that the node has to see: the sandbox's, and the cache of binaries.
        environ: the variables with the search path.
        user: the user id; None: that of this process.
    """
    if (os.geteuid() if user is None else user) != 0:
        return "it needs root, for namespaces, mounts and cgroups"
    return _kernel() or _folders(used) or runtime_obstacle(environ)


def _kernel() -> str:
    """Return what the kernel, or the container around this process, does not provide, "" for nothing."""
    if not can_unshare(NAMESPACES):
        return "this process cannot create namespaces; in a container, make it privileged"
    if "overlay" not in FILE_SYSTEMS.read_text().split():
        return "the kernel has no overlay file system; load its module `overlay`"
    return cgroups(CGROUPS)


def cgroups(root: Path) -> str:
    """Return why no cgroup can be created in any hierarchy at the root, "" if it can."""
    folders = [root] if (root / "cgroup.procs").exists() else [path for path in root.glob("*") if path.is_dir()]
    if not folders:
        return f"no cgroups are mounted at {root}"
    closed = [str(path) for path in folders if not os.access(path, os.W_OK)]
    return f"{closed[0]} is not writable; in a container, make it privileged" if closed else ""


def can_unshare(flags: int) -> bool:
    """Report whether a process may create these namespaces; tries it in a child process."""
    return subprocess.run([sys.executable, "-c", TRY.format(flags=flags)], check=False).returncode == 0


def _folders(used: Sequence[Path]) -> str:
    """Return which directory the node would not see, "" for none."""
    for path in used:
        for covered in COVERED:
            if path.resolve().is_relative_to(covered.resolve()):
                return (
                    f"{path} is in {covered}, which the node mounts over; use another one with --dir or $XDG_CACHE_HOME"
                )
    return ""


def network(identity: str) -> str:
    """Return the first three octets of a network in which this machine has no address.

    The networks are those reserved for benchmarks, which are not routed; the identity selects the first one to try.

    Raises:
        SandboxError: all of them are in use.
    """
    first = int(hashlib.sha256(identity.encode()).hexdigest(), 16)
    for number in range(first, first + NETWORKS):
        chosen = f"198.{18 + number // 256 % 2}.{number % 256}"
        if not _is_here(f"{chosen}.1"):
            return chosen
    raise SandboxError(
        "no free network for the real node: this machine has an address in every network of 198.18.0.0/15"
    )


def write(layout: Layout, programs: NodePrograms) -> None:
    """Write the configuration of all parts, and the images, to the node's folder."""
    networks = layout.node_folder / "networks"
    networks.mkdir(parents=True, exist_ok=True)
    text = CONTAINERD.format(
        cri=CRI, pause=PAUSE, loopback=LOOPBACK, plugins=programs.runtime.plugins, networks=networks
    )
    (layout.node_folder / "containerd.toml").write_text(text)
    (networks / "10-pods.conflist").write_text(json.dumps(pod_network(layout)))
    (layout.node_folder / "kubelet.json").write_text(json.dumps(kubelet_configuration(layout)))
    (layout.node_folder / "images.tar").write_bytes(_images(programs.runtime.busybox))


def command(layout: Layout, identity: str, programs: NodePrograms) -> list[str]:
    """Return the command line of the node."""
    folder = layout.node_folder
    return [
        programs.node,
        f"--device={stop.device(identity)}",
        f"--gateway={layout.gateway}/24",
        f"--address={layout.node_address}/24",
        f"--api={LOOPBACK}:{layout.ports.apiserver}",
        f"--cgroup={stop.cgroup(identity)}",
        f"--path={programs.runtime.path}",
        f"--containerd-config={folder / 'containerd.toml'}",
        f"--images={folder / 'images.tar'}",
        f"--kubelet={programs.kubelet}",
        "--",
        f"--config={folder / 'kubelet.json'}",
        f"--kubeconfig={layout.pki / 'node.kubeconfig'}",
        f"--hostname-override={layout.node_names[0]}",
        f"--node-ip={layout.node_address}",
        "--root-dir=/run/kubelet",
        "--cert-dir=/run/kubelet/pki",
    ]


def pod_network(layout: Layout) -> dict[str, Any]:
    """Return the CNI configuration: pods are on the node's bridge, and have no route to other networks."""
    addresses = {"subnet": f"{layout.network}.0/24", "rangeStart": f"{layout.network}.10", "gateway": layout.gateway}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": False,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {"type": "host-local", "ranges": [[addresses]], "dataDir": "/run/networks"},
            }
        ],
    }


def kubelet_configuration(layout: Layout) -> dict[str, Any]:
    """Return the KubeletConfiguration: authentication as in production, without requirements on the machine."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.node_address,
        "port": KUBELET_PORT,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "node-serving.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "node-serving.key"),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "volumePluginDir": "/run/kubelet/volume-plugins",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "0%"},
        "shutdownGracePeriod": "0s",
    }


def _images(busybox: str) -> bytes:
    """Return the archive of images, made of the runtime's busybox."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    return archive(Path(busybox).read_bytes(), listed.stdout.split())


def _is_here(address: str) -> bool:
    """Report whether an address is one of this machine's."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def archive(busybox: bytes, applets: Sequence[str]) -> bytes:
    """Return the archive of both images.

    Args:
        busybox: the program.
        applets: the names that it can be called by.
    """
    files = busybox_layer(busybox, applets)
    return packed([Image((tag,), (files,), runs) for tag, runs in IMAGES.items()])


def packed(images: Iterable[Image]) -> bytes:
    """Return the archive of images; it contains a shared layer once."""
    entries: list[dict[str, Any]] = []
    contents: dict[str, bytes] = {}
    for image in images:
        digests = [hashlib.sha256(one).hexdigest() for one in image.layers]
        contents |= {f"{digest}.tar": one for digest, one in zip(digests, image.layers, strict=True)}
        config = json.dumps(_config(image.runs, digests)).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        contents[name] = config
        entries.append({"Config": name, "RepoTags": [*image.tags], "Layers": [f"{digest}.tar" for digest in digests]})
    contents["manifest.json"] = json.dumps(entries).encode()
    return layer({name: LayerEntry(content) for name, content in contents.items()})


def busybox_layer(busybox: bytes, applets: Sequence[str]) -> bytes:
    """Return a layer with the program under each of its names, a user, and a directory for temporary files."""
    folders = {"bin": 0o755, "etc": 0o755, "root": 0o700, "tmp": 0o1777}
    links = {f"bin/{name}": LayerEntry(mode=0o777, link="busybox") for name in sorted(set(applets) - {"busybox"})}
    return layer(
        {name: LayerEntry(mode=mode, folder=True) for name, mode in folders.items()}
        | {"bin/busybox": LayerEntry(busybox, 0o755), "etc/passwd": LayerEntry(USERS)}
        | links
    )


def layer(files: Mapping[str, LayerEntry]) -> bytes:
    """Return a tar of files by path."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, one in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.type = one.mode, _kind(one)
            entry.linkname, entry.size = one.link, len(one.content)
            tar.addfile(entry, io.BytesIO(one.content))
    return sink.getvalue()


def _kind(one: LayerEntry) -> bytes:
    """Return tar's type of an entry."""
    if one.folder:
        return tarfile.DIRTYPE
    return tarfile.SYMTYPE if one.link else tarfile.REGTYPE


def _config(runs: Mapping[str, Any], layers: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of an image."""
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/bin", "HOME=/root"], "WorkingDir": "/", **runs},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layers]},
    }
