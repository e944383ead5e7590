"""`tensile manifests`: from a topology file to what is printed or written; asks no cluster."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tensile.errors import TensileError
from tensile.manifests.folder import write
from tensile.manifests.rendering import MARK, TOPOLOGY, files, lower_stream, upper_stream
from tensile.manifests.setup import Setup, default_image
from tensile.manifests.turning import turned
from tensile.manifests.yamlout import comment
from tensile.topology import decode
from tensile.topology.syntax import label_name

_TAKEN = ("default", "kube-system", "kube-public", "kube-node-lease")


class Wishes(NamedTuple):
    """What is chosen beside the topology; `image` None: the one of this version."""

    namespace: str
    image: str | None


class Rendering(NamedTuple):
    """A set-up, and in words what of the topology was changed for it."""

    setup: Setup
    told: tuple[str, ...]


def rendering(data: bytes, name: str, wishes: Wishes, *, for_lower: bool = False) -> Rendering:
    """Make a set-up of a topology file; `name` is the file's. Raises TensileError for what cannot be had.

    `for_lower`: only what is for a lower cluster is wanted of it.
    """
    _check(wishes)
    found = turned(decode(data, name=name), name, wishes.namespace, for_lower=for_lower)
    setup = Setup(found.topology, found.text, wishes.namespace, wishes.image or default_image())
    return Rendering(setup, tuple(f"{name}: {words}" for words in found.words))


def printed(setup: Setup, lower: str | None, given: str | None, wishes: Wishes) -> str:
    """Give what is applied in the upper cluster, or in a lower one; `given` is what stands after -f."""
    command = _command(given, wishes)
    return upper_stream(setup, command) if lower is None else lower_stream(setup, lower, command)


def written(setup: Setup, directory: Path, name: str) -> list[str]:
    """Write all into a directory, and say in words what became of each file that changed.

    `name` is that of the topology file. Where it is the directory's own it stays as it is; one from elsewhere is
    copied, which the copy says.
    """
    found = files(setup)
    if not _is_same(Path(name), directory / TOPOLOGY) and not setup.text.startswith(MARK):
        found[TOPOLOGY] = comment(f"{MARK[2:]} It is made of {Path(name).name}: edit that one.") + setup.text
    return write(directory, found)


def _is_same(one: Path, other: Path) -> bool:
    """Say whether two paths lead to one file."""
    with suppress(OSError):
        return one.samefile(other)
    return False


def _check(wishes: Wishes) -> None:
    """Refuse what cannot be, and a namespace that others live in: Pod Security would hold for them too."""
    if wishes.namespace in _TAKEN:
        raise TensileError(f"--namespace {wishes.namespace}: not the engine's alone: name one that is, such as tensile")
    try:
        label_name(wishes.namespace)
    except ValueError as error:
        raise TensileError(f"--namespace: {error}") from None
    if wishes.image is not None and (not wishes.image or wishes.image.split() != [wishes.image]):
        raise TensileError(f"--image {wishes.image!r}: no name of an image: write one such as {default_image()}")


def _command(given: str | None, wishes: Wishes) -> str:
    """Write the command that was given, as it is typed for another part: what came by a pipe has to be in a FILE."""
    words = ["tensile", "manifests"]
    if given:
        words += ["-f", "FILE" if given == "-" else given]
    if wishes.namespace != NAMESPACE:
        words += ["--namespace", wishes.namespace]
    if wishes.image is not None:
        words += ["--image", wishes.image]
    return shlex.join(words)


NAMESPACE = "tensile"
"""Where the engine is, and its account in each lower cluster, unless another is named."""
