"""The images that a real node has from its start, made here out of one static program.

No registry is asked for anything, so a sandbox works without a network and always with the same images. The form is
the archive that `docker save` writes, because every containerd can read it.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

IMAGE = "busybox:latest"
PAUSE = "tensile-pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
IMAGES: dict[str, dict[str, Any]] = {
    IMAGE: {"Cmd": ["sh"]},
    PAUSE: {"Entrypoint": ["/bin/busybox", "tail", "-f", "/dev/null"]},
}
"""What each image runs unless a pod says otherwise; the second holds a pod's network and has nothing to do."""
USERS = b"root:x:0:0:root:/root:/bin/sh\n"


class Image(NamedTuple):
    """One image of an archive.

    Attributes:
        tags: its names, each with what stands after the colon.
        layers: its files, each as a tar, the lowest first.
        runs: what it runs and as whom, as fields of an image's `config`.
    """

    tags: tuple[str, ...]
    layers: tuple[bytes, ...]
    runs: Mapping[str, Any]


class Entry(NamedTuple):
    """A file, a link or a folder of a layer; `link` is what a link leads to."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""
    folder: bool = False


def archive(busybox: bytes, applets: Sequence[str]) -> bytes:
    """Return the archive of both images.

    Args:
        busybox: the program.
        applets: the names that it answers to.
    """
    files = busybox_layer(busybox, applets)
    return packed([Image((tag,), (files,), runs) for tag, runs in IMAGES.items()])


def packed(images: Iterable[Image]) -> bytes:
    """Return the archive of images; a layer that several of them have is in it once."""
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
    return layer({name: Entry(content) for name, content in contents.items()})


def busybox_layer(busybox: bytes, applets: Sequence[str]) -> bytes:
    """Return the files: the program under each of its names, a user, and a place for temporary files."""
    folders = {"bin": 0o755, "etc": 0o755, "root": 0o700, "tmp": 0o1777}
    links = {f"bin/{name}": Entry(mode=0o777, link="busybox") for name in sorted(set(applets) - {"busybox"})}
    return layer(
        {name: Entry(mode=mode, folder=True) for name, mode in folders.items()}
        | {"bin/busybox": Entry(busybox, 0o755), "etc/passwd": Entry(USERS)}
        | links
    )


def layer(files: Mapping[str, Entry]) -> bytes:
    """Return a tar of files by their paths."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, one in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.type = one.mode, _kind(one)
            entry.linkname, entry.size = one.link, len(one.content)
            tar.addfile(entry, io.BytesIO(one.content))
    return sink.getvalue()


def _kind(one: Entry) -> bytes:
    """Return what tar calls such an entry."""
    if one.folder:
        return tarfile.DIRTYPE
    return tarfile.SYMTYPE if one.link else tarfile.REGTYPE


def _config(runs: Mapping[str, Any], layers: Sequence[str]) -> dict[str, Any]:
    """Return what an image says of itself."""
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/bin", "HOME=/root"], "WorkingDir": "/", **runs},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layers]},
    }
