"""The images that the tests ask for, made of busybox, agnhost and a shell, under the names that the suite gives them.

Which registries those names begin with is the suite's business: it is asked for them (`e2e.test --list-images`), and
nothing is fetched from any. An image that is not made here is not there; a test of it fails on either side.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tensile.sandbox.real_node import Image, LayerEntry, busybox_layer, layer, packed

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PAGES = "usr/share/nginx/html"
NOT_OURS = ("authenticated", "invalid")
"""What stands in the names of images that must not be there: the tests see that pulling them fails."""
CURL = b'#!/bin/sh\nfor url; do :; done\nexec wget -q -O - "$url"\n'
"""What these tests ask of curl: the page that the last argument names."""
USERS = b"root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n"
GROUPS = b"root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"


class Files(NamedTuple):
    """What the images are made of: programs as they are in their files, and a certificate with its key."""

    applets: tuple[str, ...]
    busybox: bytes
    shell: bytes
    agnhost: bytes
    nnp: bytes
    certificate: bytes
    key: bytes


def listed(text: str) -> list[str]:
    """Return the images of a list that may be made here, a name a line."""
    return [name for name in text.split() if not any(word in name for word in NOT_OURS)]


def archive(names: Iterable[str], files: Files) -> bytes:
    """Return the archive of those of the named images that are made here."""
    made = _images(files)
    tags = {kind: tuple(name for name in names if _kind(name) == kind) for kind in made}
    return packed(Image(tags[kind], *image) for kind, image in made.items() if tags[kind])


def _kind(name: str) -> str:
    """Return an image's own name, without where it is from and its version."""
    return name.rpartition("/")[2].partition(":")[0]


def _images(files: Files) -> dict[str, tuple[tuple[bytes, ...], Mapping[str, Any]]]:
    """Return layers and configuration of each image.

    A shell that is called by its path is busybox's, whose words a test compares; one that is looked for is the other,
    which passes on every variable.
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
    """Return the files of agnhost's image that lie over busybox; of the certificate tests make a page."""
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
    """Return what the two images of the update demo tell apart."""
    return layer({"data.json": LayerEntry(f'{{"image": "{animal}.jpg"}}\n'.encode())})
