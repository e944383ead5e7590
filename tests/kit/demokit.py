"""`tensile demo` as a process, and checks of what it leaves on disk and among the machine's processes."""

import os
import subprocess
import sys
from pathlib import Path

from sandbox_waiting import until

import tensile

LIMIT = 120.0
COMMAND = (sys.executable, "-m", "tensile", "demo")


class DemoHome:
    """A folder that serves as the temporary directory and as the home of the user of one demo."""

    def __init__(self, root: Path) -> None:
        self.temporary = root / "temporary"
        self.home = root / "home"
        for folder in (self.temporary, self.home):
            folder.mkdir()
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        self.variables = {
            **{key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "NO_COLOR")},
            "TMPDIR": str(self.temporary),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": cache,
            "PYTHONPATH": str(Path(tensile.__file__).parents[1]),
        }

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start the demo with both outputs as pipes."""
        return subprocess.Popen(
            [*COMMAND, *options],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def files(self) -> list[Path]:
        """Return everything on disk, in the temporary directory and at home; files may vanish during the walk."""
        walks = [os.walk(self.temporary), os.walk(self.home)]
        return [Path(place) / name for walk in walks for place, folders, files in walk for name in (*folders, *files)]

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes of the demo, including its own, by process ID."""
        mark = str(self.temporary).encode()
        numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return {number: _line(number) for number in numbers if mark in _read(number, "environ")}

    def is_clean(self) -> bool:
        """Report whether neither files nor processes are left."""
        return not self.files() and not self.processes()

    def assert_clean(self) -> None:
        """Fail if anything is left; processes that were signaled may need a moment to end."""
        until(self.is_clean, lambda: f"still there: {self.files()[:5]} {self.processes()}", LIMIT)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read the output of a process until a line contains these words; return all of it."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"{text!r} never came: {''.join(lines)}")


def _read(number: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{number}/{name}").read_bytes()
    except OSError:
        return b""


def _line(number: int) -> str:
    return _read(number, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
