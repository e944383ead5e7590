"""Writes a rendering into a directory: what is there by its own hand is written over, nothing else ever is.

As generators do whose output is kept in Git: the same input gives the same files, what it wrote before and does not
write any more goes, and a file of somebody else's in its way ends it before anything has changed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tensile.errors import TensileError
from tensile.manifests.rendering import LOWERS, MARK


def write(directory: Path, files: Mapping[str, str]) -> list[str]:
    """Make the directory hold these files, text by path, and say in words what became of each that changed.

    Raises TensileError, with nothing written, where a file is in the way that was not written here; and OSError.
    """
    wanted = {directory / path: text for path, text in files.items()}
    known = {path: path.read_text(errors="replace") for path in wanted if path.exists()}
    _refuse([path for path, text in known.items() if text != wanted[path] and not text.startswith(MARK)])
    changed = {path: text for path, text in wanted.items() if known.get(path) != text}
    for path, text in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    left = [path for path in _written_before(directory) if path not in wanted]
    for path in left:
        _remove(path, directory)
    said = [f"{path}: {'changed' if path in known else 'written'}" for path in changed]
    return [*said, *(f"{path}: removed" for path in left)]


def _refuse(strange: list[Path]) -> None:
    if strange:
        lines = [f"{path}: not written by `tensile manifests`, and not what it would write" for path in strange]
        raise TensileError("\n".join([*lines, "nothing was written: move that away, or give another --dir"]))


def _written_before(directory: Path) -> Iterator[Path]:
    """Give the files of earlier renderings, where these put files."""
    for path in sorted((*directory.glob("*.yaml"), *directory.glob(f"{LOWERS}/*/*.yaml"))):
        if path.read_text(errors="replace").startswith(MARK):
            yield path


def _remove(path: Path, directory: Path) -> None:
    """Remove a file, and the folders below the directory that nothing is left in."""
    path.unlink()
    for folder in path.parents:
        if folder == directory or any(folder.iterdir()):
            return
        folder.rmdir()
