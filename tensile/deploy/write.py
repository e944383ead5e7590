"""Writes a rendering into a directory: what is there by its own hand is written over, nothing else ever is.

As generators do whose output is kept in Git: the same input gives the same files, what it wrote before and does not
write any more goes, and a file of somebody else's in its way ends it before anything has changed. Files are bytes here:
an end of line that is not ours, in a topology above all, is neither taken for ours nor made so.

`tensile manifests`: from a topology file to what is printed or written; asks no cluster.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from tensile.deploy.convert import turned
from tensile.deploy.render import LOWERS, MARK, OF_LOWER, OF_UPPER, TOPOLOGY, files, lower_stream, upper_stream
from tensile.deploy.setup import Setup, comment, default_image
from tensile.errors import TensileError
from tensile.topology import decode
from tensile.topology.fields import label_name


def write(directory: Path, files: Mapping[str, str]) -> list[str]:
    """Make the directory hold these files, text by path, and say in words what became of each that changed.

    Raises TensileError, with nothing written, where something is in the way that was not written here; and where a file
    cannot be written: that one is as it was then.
    """
    wanted = {directory / path: text.encode() for path, text in files.items()}
    known = {path: path.read_bytes() for path in wanted if path.is_file()}
    changed = {path: data for path, data in wanted.items() if known.get(path) != data}
    _refuse([line for path in changed for line in _in_the_way(path, directory, known.get(path))])
    left = [path for path in _written_before(directory) if path not in wanted]
    for path, data in changed.items():
        _write(path, data)
    for path in left:
        _remove(path, directory)
    said = [f"{path}: {'changed' if path in known else 'written'}" for path in changed]
    return [*said, *(f"{path}: removed" for path in left)]


def _in_the_way(path: Path, directory: Path, known: bytes | None) -> Iterator[str]:
    """Yield what keeps a file from being written; `known` is what it holds."""
    for folder in _folders(path, directory):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            yield f"{folder}: a link, or no directory: what is below it would be written elsewhere, or cannot be"
            return
    if path.is_symlink() or (known is None and path.exists()):
        yield f"{path}: a link, or no file: it is not written through, and not replaced"
    elif known is not None and not _is_ours(known):
        yield f"{path}: not written by `tensile manifests`, and not what it would write"


def _folders(path: Path, directory: Path) -> list[Path]:
    """Return the folders between a directory and a file in it, the outermost first."""
    return [folder for folder in reversed(path.parents) if directory in folder.parents]


def _is_ours(data: bytes) -> bool:
    return data.startswith(MARK.encode())


def _refuse(lines: list[str]) -> None:
    if lines:
        told = [*dict.fromkeys(lines), "nothing was written: move that away, or give another --dir"]
        raise TensileError("\n".join(told))


def _written_before(directory: Path) -> Iterator[Path]:
    """Yield the files of earlier renderings: by the names that these give, for a copy under another name is not ours."""
    lowers = sorted(path for path in directory.glob(f"{LOWERS}/*") if not path.is_symlink())
    places = [(directory, OF_UPPER), *((lower, OF_LOWER) for lower in lowers if not lower.parent.is_symlink())]
    for path in (folder / name for folder, names in places for name in names):
        if path.is_file() and not path.is_symlink() and _is_ours(path.read_bytes()):
            yield path


def _write(path: Path, data: bytes) -> None:
    """Put a file in its place as a whole: a disk that is full leaves the old one."""
    beside = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("xb") as stream:
            stream.write(data)
        beside.replace(path)
    except OSError as error:
        words = f"{path}: cannot be written: {error.strerror or error}; it is as it was. Mend that and write again"
        raise TensileError(words) from None
    finally:
        with suppress(OSError):
            beside.unlink()


def _remove(path: Path, directory: Path) -> None:
    """Remove a file, and the folders below the directory that nothing is left in."""
    path.unlink()
    for folder in path.parents:
        if folder == directory or any(folder.iterdir()):
            return
        folder.rmdir()


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
    """Return what is applied in the upper cluster, or in a lower one; `given` is what stands after -f."""
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
    """Report whether two paths lead to one file."""
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
