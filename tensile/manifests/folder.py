"""Writes a rendering into a directory: what is there by its own hand is written over, nothing else ever is.

As generators do whose output is kept in Git: the same input gives the same files, what it wrote before and does not
write any more goes, and a file of somebody else's in its way ends it before anything has changed. Files are bytes here:
an end of line that is not ours, in a topology above all, is neither taken for ours nor made so.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from tensile.errors import TensileError
from tensile.manifests.rendering import LOWERS, MARK, OF_LOWER, OF_UPPER


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
    """Say what keeps a file from being written; `known` is what it holds."""
    for folder in _folders(path, directory):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            yield f"{folder}: a link, or no directory: what is below it would be written elsewhere, or cannot be"
            return
    if path.is_symlink() or (known is None and path.exists()):
        yield f"{path}: a link, or no file: it is not written through, and not replaced"
    elif known is not None and not _is_ours(known):
        yield f"{path}: not written by `tensile manifests`, and not what it would write"


def _folders(path: Path, directory: Path) -> list[Path]:
    """Give the folders between a directory and a file in it, the outermost first."""
    return [folder for folder in reversed(path.parents) if directory in folder.parents]


def _is_ours(data: bytes) -> bool:
    return data.startswith(MARK.encode())


def _refuse(lines: list[str]) -> None:
    if lines:
        told = [*dict.fromkeys(lines), "nothing was written: move that away, or give another --dir"]
        raise TensileError("\n".join(told))


def _written_before(directory: Path) -> Iterator[Path]:
    """Give the files of earlier renderings: by the names that these give, for a copy under another name is not ours."""
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
