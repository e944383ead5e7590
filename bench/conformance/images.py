"""The images that the tests use, made of busybox, agnhost and a shell, under the names that the suite expects.

The suite decides from which registries they come: `e2e.test --list-images` prints the names, and nothing is fetched. An
image that is not made here does not exist; a test that uses it fails on either side.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tensile.sandbox.real_node import Image, LayerEntry, busybox_layer, layer, packed

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PAGES = "usr/share/nginx/html"
NOT_OURS = ("authenticated", "invalid")
"""Parts of the names of images that must not exist, because tests check that pulling them fails."""
CURL = b'#!/bin/sh\nfor url; do :; done\nexec wget -q -O - "$url"\n'
"""What these tests need of curl: it prints the page whose URL is the last argument."""
USERS = b"root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n"
GROUPS = b"root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"


class Files(NamedTuple):
    """What the images are made of: the contents of programs, and a certificate with its key."""

    applets: tuple[str, ...]
    busybox: bytes
    shell: bytes
    agnhost: bytes
    nnp: bytes
    certificate: bytes
    key: bytes


def listed(text: str) -> list[str]:
    """Return the images of a list, one name a line, that may be made here."""
    return [name for name in text.split() if not any(word in name for word in NOT_OURS)]


def archive(names: Iterable[str], files: Files) -> bytes:
    """Return the archive of those of the named images that are made here."""
    made = _images(files)
    tags = {kind: tuple(name for name in names if _kind(name) == kind) for kind in made}
    return packed(Image(tags[kind], *image) for kind, image in made.items() if tags[kind])


def _kind(name: str) -> str:
    """Return an image's own name, without its registry and its version."""
    return name.rpartition("/")[2].partition(":")[0]


def _images(files: Files) -> dict[str, tuple[tuple[bytes, ...], Mapping[str, Any]]]:
    """Return layers and configuration of each image.

    A shell that is run by its path is busybox's, because a test compares its messages; one that is found on the search
    path is bash, which passes on every variable.
    """
    base = busybox_layer(files.busybox, files.applets)
    shell = layer({"usr/local/bin/sh": LayerEntry(files.shell, 0o755), "etc/group": LayerEntry(GROUPS)})
    agnhost = _agnhost(files)
    nnp = layer({"usr/local/bin/nnp": LayerEntry(files.nnp, 0o4755)})
    pages = layer({f"{PAGES}/index.html": LayerEntry(b"welcome\n")})
    runs = {"Env": [PATH], "WorkingDir": "/"}
    serves = {**runs, "Cmd": ["httpd", "-f", "-p", "80", "-h", f"/{PAGES}"]}
    of_agnhost = {**runs, "Entrypoint": ["/agnhost"]}
    shows = {**of_agnhost, "Cmd": ["test-webserver"]}
    return {
        "busybox": ((base, shell), {**runs, "Cmd": ["sh"]}),
        "agnhost": ((base, agnhost), {**of_agnhost, "Cmd": ["pause"]}),
        "pause": ((base, agnhost), {**runs, "Entrypoint": ["/agnhost", "pause"]}),
        "kitten": ((base, agnhost, _data("kitten")), shows),
        "nautilus": ((base, agnhost, _data("nautilus")), shows),
        "nginx": ((base, pages), serves),
        "nonroot": ((base,), {**runs, "User": "1234", "Cmd": ["sh"]}),
        "nonewprivs": ((base, nnp), {**runs, "Cmd": ["nnp"]}),
    }


def _agnhost(files: Files) -> bytes:
    """Return the files of agnhost's image that are added to busybox; tests serve pages with the certificate."""
    return layer(
        {
            "agnhost": LayerEntry(files.agnhost, 0o755),
            "agnhost-2": LayerEntry(mode=0o777, link="agnhost"),
            "bin/curl": LayerEntry(CURL, 0o755),
            "etc/passwd": LayerEntry(USERS),
            "etc/group": LayerEntry(GROUPS),
            "localhost.crt": LayerEntry(files.certificate),
            "localhost.key": LayerEntry(files.key),
            "uploads": LayerEntry(mode=0o755, folder=True),
        }
    )


def _data(animal: str) -> bytes:
    """Return the layer that distinguishes the two images of the update demo."""
    return layer({"data.json": LayerEntry(f'{{"image": "{animal}.jpg"}}\n'.encode())})
