"""Tests of where the container runtime of a real node is found or fetched."""

from pathlib import Path

import pytest

from tensile.sandbox import real_node
from tensile.sandbox.state import Runtime, SandboxError

STATIC = b"\x7fELF and nothing that names a loader"
DYNAMIC = b"\x7fELF\0\0/lib64/ld-linux-x86-64.so.2\0"


def program(path: Path, content: bytes = STATIC) -> Path:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def whole(root: Path) -> Path:
    """Write all parts in the layout of their packages."""
    for name in real_node.PROGRAMS:
        program(root / "usr" / ("sbin" if name == "runc" else "bin") / name)
    for name in real_node.PLUGINS:
        program(root / real_node.UNPACKED_PLUGINS / name)
    return root


def search(root: Path) -> str:
    """Return the search path of those parts."""
    return f"{root / 'usr/bin'}:{root / 'usr/sbin'}"


def plugins(root: Path) -> list[str]:
    """Return the folder of those plugins."""
    return [str(root / real_node.UNPACKED_PLUGINS)]


def fetcher(folder: Path, *, has_lists: bool = True) -> str:
    """Write an apt-get and a dpkg that create packages of the parts, and return their search path."""
    wanted = "download" if has_lists else "Dir::State::Lists=*download"
    script = f"""#!/bin/sh
case "$*" in
*{wanted}*) : > all.deb;;
*update*) ;;
*) echo "no lists" >&2; exit 100;;
esac
"""
    program(folder / "apt-get", script.encode())
    parts = " ".join(f"usr/bin/{name}" for name in real_node.PROGRAMS)
    links = " ".join(f"{real_node.UNPACKED_PLUGINS}/{name}" for name in real_node.PLUGINS)
    unpack = f'#!/bin/sh\nPATH=/usr/bin:/bin; cd "$3"; mkdir -p usr/bin {real_node.UNPACKED_PLUGINS}\n'
    files = f"for f in {parts} {links}; do printf x > $f; chmod 755 $f; done\n"
    program(folder / "dpkg", (unpack + files).encode())
    return str(folder)


def test_a_complete_runtime_of_the_machine_is_used(tmp_path: Path) -> None:
    """If every part is on the search path, no package is fetched."""
    root = whole(tmp_path)
    found = real_node.installed(search(root), plugins(root))
    assert found == Runtime(search(root), *plugins(root), str(root / "usr/bin/busybox"))


@pytest.mark.parametrize("name", [*real_node.PROGRAMS, *real_node.PLUGINS])
def test_an_incomplete_runtime_is_not_used(tmp_path: Path, name: str) -> None:
    """Parts of different origins are not mixed."""
    root = whole(tmp_path)
    (found,) = root.rglob(name)
    found.unlink()
    assert real_node.installed(search(root), plugins(root)) is None


def test_a_busybox_that_needs_a_loader_is_not_used(tmp_path: Path) -> None:
    """It would not start in a container that has no other files."""
    root = whole(tmp_path)
    program(root / "usr/bin/busybox", DYNAMIC)
    assert real_node.installed(search(root), plugins(root)) is None
    assert real_node.static(program(tmp_path / "static"))


@pytest.mark.parametrize("has_lists", [True, False], ids=["the machine's lists", "downloaded lists"])
def test_packages_are_fetched_once(tmp_path: Path, *, has_lists: bool) -> None:
    """They are unpacked into the cache with a message and found there later, without other files."""
    messages: list[str] = []
    cache = tmp_path / "cache"
    cache.mkdir()
    environ = {"PATH": f"{fetcher(tmp_path / 'tools', has_lists=has_lists)}:/no/such"}
    found = real_node.find_runtime(cache, environ, messages.append)
    assert real_node.find_runtime(cache, environ, messages.append) == found
    (folder,) = cache.iterdir()
    assert found.busybox == str(folder / "usr/bin/busybox")
    assert {path.name for path in folder.iterdir()} == {"usr"}
    (line,) = messages
    assert "containernetworking-plugins" in line


def test_packages_that_cannot_be_fetched_are_reported(tmp_path: Path) -> None:
    """The error has the command and its output, and the cache has no incomplete runtime."""
    cache = tmp_path / "cache"
    cache.mkdir()
    program(tmp_path / "tools" / "apt-get", b"#!/bin/sh\necho no network >&2; exit 100\n")
    with pytest.raises(SandboxError, match=r"apt-get .* update failed:\nno network"):
        real_node.find_runtime(cache, {"PATH": str(tmp_path / "tools")}, str)
    assert not list(cache.glob("runtime-*"))


def test_an_incomplete_runtime_in_the_cache_is_reported(tmp_path: Path) -> None:
    """The error names its folder and the remedy."""
    with pytest.raises(SandboxError, match="remove it to fetch it again"):
        real_node.unpacked(tmp_path)


def test_apt_get_or_an_installed_runtime_is_required(tmp_path: Path) -> None:
    """Either one is enough for a start."""
    assert real_node.runtime_obstacle({"PATH": fetcher(tmp_path)}) == ""
    assert real_node.runtime_obstacle({"PATH": str(tmp_path / "none")}) != ""
