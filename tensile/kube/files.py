"""Files: limited reads of files that others may replace, writes in one step, paths to watch, files for keys.

A path in a kubeconfig can name a pipe without a writer, a device or an endless file. So only regular files are opened,
and reads are limited.

Renaming a directory, replacing a symlink or mounting a file changes what a path leads to, and affects only one step of
the path. So the trail of a file contains all steps, including those that do not exist yet.

Private keys get in-memory or temporary files, because Python's ssl reads a key and its certificate from a file only.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from shlex import quote
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from tensile.errors import AccessError
from tensile.names import SANDBOX_DIRECTORY
from tensile.text import shown

LARGEST = 1 << 20
"""The most bytes of a file of certificates, unless another limit is given."""
_LONGEST_PATH = 200
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_LINKS = 40
"""The most symlinks on one path, as in Linux."""
_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
}  # fmt: skip
"""File systems that other machines write to without a notice from the local kernel."""
_ROOT = Path("/")
_LOCAL_FUSE = "fuse.fuse-overlayfs"
_MOUNT_FIELDS = 6
_EXPANDABLE = re.compile(r"(^|/)~|\$\{?[A-Za-z_]")
"""What a shell would expand in a path: a home directory or a variable."""
_OCTAL = re.compile(r"\\([0-7]{3})")


class UnreadableFile(OSError):
    """Not a regular file, or larger than allowed. `advice` says what to do."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(errno.EINVAL, what)
        self.advice = advice


class Mounts(NamedTuple):
    """The mounts: types of network file systems by device ("0:45"), and all mount points."""

    network: Mapping[str, str]
    points: frozenset[str]


class ResolvedPath(NamedTuple):
    """The path to one file, with symlinks resolved.

    `names` are the real paths of all its steps: a change of any of them concerns the file. `targets` are the
    directories of these steps, plus the file itself where it can be changed from elsewhere. `end` is the real path of
    the file, "" for none. `unwatchable` says why the system does not report changes, "" where it does.
    """

    names: frozenset[str]
    targets: frozenset[str]
    end: str
    unwatchable: str


def read_small(path: str | Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes. Raises AccessError for anything else."""
    name = shown(path, _LONGEST_PATH)
    try:
        return read_regular(path, most)
    except UnreadableFile as error:
        raise AccessError(f"{name}: {error.strerror}", error.advice) from None
    except OSError as error:
        raise AccessError(f"{name}: cannot be read ({error.strerror})", _advice(Path(path))) from None


def _advice(path: Path) -> str:
    """Return what to do about a file that cannot be read.

    A sandbox that was stopped has removed its folder, so kubeconfigs in it are missing. A path that a shell would
    expand stands in a file, which no shell reads.
    """
    folder = path.parent
    place = shown(folder, _LONGEST_PATH)
    if folder.name == SANDBOX_DIRECTORY and not folder.exists() and place == str(folder):
        return f"no sandbox runs there: start one with `tensile sandbox up --dir {quote(place)}`"
    if _EXPANDABLE.search(str(path)):
        return "write the path in full: `~` and variables are not expanded here"
    return "check the path and its permissions"


def read_regular(path: str | Path, most: int = LARGEST) -> bytes:
    """Read a regular file of at most `most` bytes. Raises OSError, and UnreadableFile for anything else."""
    try:
        _check_regular(Path(path).stat())
        descriptor = os.open(path, _FLAGS)
    except ValueError:
        raise UnreadableFile("the path contains a zero byte", "correct it") from None
    with os.fdopen(descriptor, "rb") as file:
        _check_regular(os.fstat(descriptor))
        found = file.read(most + 1) or b""
    if len(found) > most:
        raise UnreadableFile(f"larger than {most} bytes", "check that it is the right file")
    return found


def _check_regular(found: os.stat_result) -> None:
    """Raise UnreadableFile for pipes, devices, sockets and directories. They are not opened: some devices react."""
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableFile("not a file", "name a regular file")


def replace_file(path: Path, content: bytes, *, mode: int = 0o666, like: os.stat_result | None = None) -> None:
    """Write a file in one step, so that an error leaves the old content. Raises OSError.

    A symlink is followed, and a device or a pipe is written to. A new file has `mode` as far as the umask allows it.
    With `like`, it has that file's mode and, if the system allows it, owner.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(content)
            stream.flush()
            if like is not None:
                with suppress(PermissionError):
                    os.fchown(stream.fileno(), like.st_uid, like.st_gid)
                os.fchmod(stream.fileno(), like.st_mode & 0o7777)
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_mounts(text: str) -> Mounts:
    """Parse /proc/self/mountinfo for mounts that hide changes from a watch on the file's directory."""
    network, points = {}, set()
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.partition(" ")[0]
        if len(fields) >= _MOUNT_FIELDS:
            points.add(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]))
            if kind in _NETWORK or (kind.startswith("fuse.") and kind != _LOCAL_FUSE):
                network[fields[2]] = kind
    return Mounts(network, frozenset(points))


def resolve_path(path: Path, mounts: Mounts) -> ResolvedPath:
    """Resolve a path as far as it exists. Reads directories and symlinks, and opens no file."""
    names: list[Path] = []
    directories: list[Path] = []
    link_directories: set[Path] = set()
    current, end, links = _ROOT, None, 0
    pending = _steps(path.absolute())
    while pending:
        step = pending.pop()
        if step == "..":
            current = current.parent
            continue
        directories.append(current)
        names.append(current / step)
        mode, target = _kind(names[-1])
        if target is not None and links < _LINKS:
            links += 1
            link_directories.add(current)
            current = _ROOT if target.is_absolute() else current
            pending += _steps(target)
        elif stat.S_ISDIR(mode):
            current = names[-1]
        else:
            end = names[-1] if mode and target is None and not pending else None
            break
    watchable = {one for one in directories if _is_open(one)}
    own_target = {end} if end and (str(end) in mounts.points or _is_shared(end)) else set()
    unwatchable = _why_unwatchable(link_directories.union(directories[-1:]), watchable, mounts)
    return ResolvedPath(
        frozenset(map(str, names)), frozenset(map(str, watchable | own_target)), str(end or ""), unwatchable
    )


def _steps(path: Path) -> list[str]:
    """Return the parts of a path, the last one first."""
    return [step for step in reversed(path.parts) if step != path.anchor]


def _kind(name: Path) -> tuple[int, Path | None]:
    """Return the file mode at a path (0 if nothing is there), and the target if it is a symlink."""
    try:
        mode = name.lstat().st_mode
        return mode, name.readlink() if stat.S_ISLNK(mode) else None
    except (OSError, ValueError):
        return 0, None


def _is_open(directory: Path) -> bool:
    """Report whether a directory can be watched: it must be readable, and its name must be UTF-8."""
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        return False
    return os.access(directory, os.R_OK)


def _is_shared(file: Path) -> bool:
    """Report whether a file has other hard links through which it can be written."""
    try:
        found = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and os.access(file, os.R_OK)


def _why_unwatchable(decisive: set[Path], watchable: set[Path], mounts: Mounts) -> str:
    """Return why the system reports no changes in these directories, "" if it does."""
    for directory in sorted(decisive):
        if directory not in watchable:
            return f"{directory} cannot be read, or its name is not UTF-8"
        try:
            device = directory.stat().st_dev
        except OSError:
            continue
        kind = mounts.network.get(f"{os.major(device)}:{os.minor(device)}")
        if kind:
            return f"{directory} is on a file system of type {kind}, which other hosts can write to"
    return ""


@contextmanager
def file_of(content: bytes) -> Iterator[str]:
    """Return the path of a file that holds `content` while the block runs, for a key that ssl reads from files only.

    On Linux it is in memory (memfd). Elsewhere it is a temporary file that only this user can read.
    """
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("tensile-key", os.MFD_CLOEXEC), "wb") if in_memory else NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}" if in_memory else str(file.name)
