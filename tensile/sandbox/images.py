"""The images that a real node has from its start, made here out of one static program.

No registry is asked for anything, so a sandbox works without a network and always with the same images. The form is
the archive that `docker save` writes, because every containerd can read it.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from typing import Any

IMAGE = "busybox:latest"
PAUSE = "tensile-pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
IMAGES: dict[str, dict[str, Any]] = {
    IMAGE: {"Cmd": ["sh"]},
    PAUSE: {"Entrypoint": ["/bin/busybox", "tail", "-f", "/dev/null"]},
}
"""What each image runs unless a pod says otherwise; the second holds a pod's network and has nothing to do."""
USERS = b"root:x:0:0:root:/root:/bin/sh\n"


def archive(busybox: bytes, applets: Sequence[str]) -> bytes:
    """Return the archive of both images.

    Args:
        busybox: the program.
        applets: the names that it answers to.
    """
    layer = _layer(busybox, applets)
    entries, contents = [], {"layer.tar": layer}
    for tag, runs in IMAGES.items():
        config = json.dumps(_config(runs, hashlib.sha256(layer).hexdigest())).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        contents[name] = config
        entries.append({"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]})
    contents["manifest.json"] = json.dumps(entries).encode()
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, content in contents.items():
            _add(tar, name, content)
    return sink.getvalue()


def _config(runs: dict[str, Any], layer: str) -> dict[str, Any]:
    """Return what an image says of itself."""
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/bin", "HOME=/root"], "WorkingDir": "/", **runs},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }


def _layer(busybox: bytes, applets: Sequence[str]) -> bytes:
    """Return the files: the program under each of its names, a user, and a place for temporary files."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            tar.addfile(_entry(folder, mode, tarfile.DIRTYPE))
        _add(tar, "bin/busybox", busybox, 0o755)
        _add(tar, "etc/passwd", USERS)
        for name in sorted(set(applets) - {"busybox"}):
            link = _entry(f"bin/{name}", 0o777, tarfile.SYMTYPE)
            link.linkname = "busybox"
            tar.addfile(link)
    return sink.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file."""
    entry = _entry(name, mode, tarfile.REGTYPE)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _entry(name: str, mode: int, kind: bytes) -> tarfile.TarInfo:
    """Begin an entry."""
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type = mode, kind
    return entry
