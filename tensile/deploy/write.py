"""`tensile manifests`: from a topology file to manifests that are printed, or written to a directory. Works offline.

Writing is deterministic, so the output can be kept in Git. It overwrites and deletes only files that it wrote itself,
and refuses to start when another file is in the way. Files are handled as bytes, so that line endings, above all those
of the topology, are neither converted nor mistaken for ours.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from tensile.deploy.incluster import cautions, parse_in_cluster
from tensile.deploy.render import LOWERS, MARK, OF_LOWER, OF_UPPER, TOPOLOGY, files, lower_stream, upper_stream
from tensile.deploy.setup import Setup, comment, default_image
from tensile.errors import TensileError
from tensile.topology import decode, parse
from tensile.topology.fields import label_name

NAMESPACE = "tensile"
"""The default namespace of the engine, and of its account in each lower cluster."""
_TAKEN = ("default", "kube-system", "kube-public", "kube-node-lease")


class RenderOptions(NamedTuple):
    """The options beside the topology; `image` None: the default image of this version."""

    namespace: str
    image: str | None


def rendering(data: bytes, name: str, wishes: RenderOptions, *, for_lower: bool = False) -> Setup:
    """Return the set-up for a topology file; `name` is the file's name.

    With `for_lower` only the manifests of a lower cluster are needed, for which the engine may run anywhere. Raises
    TensileError for invalid options, and for a topology that an engine in the upper cluster cannot use.
    """
    _check(wishes)
    text = decode(data, name=name)
    topology = parse(text, name=name) if for_lower else parse_in_cluster(text, name, wishes.namespace)
    return Setup(topology, text, wishes.namespace, wishes.image or default_image())


def warnings(setup: Setup, name: str) -> list[str]:
    """Return a line for each setting of the topology that works in a pod, but perhaps not as intended."""
    return [f"warning: {caution.line(name)}" for caution in cautions(setup.text, setup.topology)]


def _check(wishes: RenderOptions) -> None:
    """Raise TensileError for an invalid option, and for a namespace that others use.

    Pod Security of the engine's namespace would apply to the pods of others too.
    """
    if wishes.namespace in _TAKEN:
        raise TensileError(
            f"--namespace {wishes.namespace}: other pods use it: use a namespace for the engine only, such as tensile"
        )
    try:
        label_name(wishes.namespace)
    except ValueError as error:
        raise TensileError(f"--namespace: {error}") from None
    if wishes.image is not None and (not wishes.image or wishes.image.split() != [wishes.image]):
        raise TensileError(f"--image {wishes.image!r}: not an image name: write one such as {default_image()}")


def printed(setup: Setup, lower: str | None, given: str | None, wishes: RenderOptions) -> str:
    """Return the manifests of the upper cluster, or those of the lower cluster `lower`; `given` is the value of -f."""
    command = _command(given, wishes)
    return upper_stream(setup, command) if lower is None else lower_stream(setup, lower, command)


def _command(given: str | None, wishes: RenderOptions) -> str:
    """Return the command line to print the manifests of another cluster.

    Standard input becomes the placeholder FILE.
    """
    words = ["tensile", "manifests"]
    if given:
        words += ["-f", "FILE" if given == "-" else given]
    if wishes.namespace != NAMESPACE:
        words += ["--namespace", wishes.namespace]
    if wishes.image is not None:
        words += ["--image", wishes.image]
    return shlex.join(words)


def written(setup: Setup, directory: Path, name: str) -> list[str]:
    """Write all manifests to a directory, and return a description of each file that changed.

    `name` is the name of the topology file. If it is the directory's own topology file, that file is not changed; a
    file from elsewhere is copied, with a comment that says so.
    """
    found = files(setup)
    if not _is_same(Path(name), directory / TOPOLOGY) and not setup.text.startswith(MARK):
        found[TOPOLOGY] = comment(f"{MARK[2:]} It is a copy of {Path(name).name}: edit that file.") + setup.text
    return write(directory, found)


def _is_same(one: Path, other: Path) -> bool:
    """Report whether two paths lead to the same file."""
    with suppress(OSError):
        return one.samefile(other)
    return False


def write(directory: Path, files: Mapping[str, str]) -> list[str]:
    """Write files, given as text by path, to a directory, and return a description of each file that changed.

    Raises TensileError, with nothing written, if a file that was not written by this command is in the way. Also raises
    it if a write fails; the file that could not be written keeps its old content.
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


def write_topology(path: Path, text: str, *, force: bool) -> None:
    """Write a topology file. Raises TensileError if it exists, unless `force` is set, or if it cannot be written."""
    if not force and (path.exists() or path.is_symlink()):
        raise TensileError(f"{path}: exists, and was not changed: give another -o, or replace it with --force")
    if path.is_dir():
        raise TensileError(f"{path}: a directory: name a file with -o")
    _write(path, text.encode())


def _in_the_way(path: Path, directory: Path, known: bytes | None) -> Iterator[str]:
    """Yield what prevents a file from being written; `known` is its present content."""
    for folder in _folders(path, directory):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            yield f"{folder}: a symbolic link, or not a directory: no file is written under it"
            return
    if path.is_symlink() or (known is None and path.exists()):
        yield f"{path}: a symbolic link, or not a regular file: it is not replaced"
    elif known is not None and not _is_ours(known):
        yield f"{path}: not written by `tensile manifests`, and its content differs"


def _folders(path: Path, directory: Path) -> list[Path]:
    """Return the directories between a directory and a file in it, outermost first."""
    return [folder for folder in reversed(path.parents) if directory in folder.parents]


def _is_ours(data: bytes) -> bool:
    return data.startswith(MARK.encode())


def _refuse(lines: list[str]) -> None:
    if lines:
        told = [*dict.fromkeys(lines), "nothing was written: move these away, or use another --dir"]
        raise TensileError("\n".join(told))


def _written_before(directory: Path) -> Iterator[Path]:
    """Yield the files of earlier renderings.

    They are found by the names that renderings use, so a user's copy under another name is not one of them.
    """
    lowers = sorted(path for path in directory.glob(f"{LOWERS}/*") if not path.is_symlink())
    places = [(directory, OF_UPPER), *((lower, OF_LOWER) for lower in lowers if not lower.parent.is_symlink())]
    for path in (folder / name for folder, names in places for name in names):
        if path.is_file() and not path.is_symlink() and _is_ours(path.read_bytes()):
            yield path


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically, so that a full disk leaves the old one."""
    beside = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("xb") as stream:
            stream.write(data)
        beside.replace(path)
    except OSError as error:
        words = f"{path}: cannot be written: {error.strerror or error}. The old content is kept: correct this and retry"
        raise TensileError(words) from None
    finally:
        with suppress(OSError):
            beside.unlink()


def _remove(path: Path, directory: Path) -> None:
    """Delete a file, and the directories above it that are empty then, up to `directory`."""
    path.unlink()
    for folder in path.parents:
        if folder == directory or any(folder.iterdir()):
            return
        folder.rmdir()
