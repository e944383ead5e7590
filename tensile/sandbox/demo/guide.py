"""Leads through the tour: starts the sandbox and the engine, runs the commands, and leaves nothing behind.

Every process carries the sandbox's identity and every file is in its list. So whatever ends the demo, even SIGKILL, the
sandbox's guard can end and delete all of it.
"""

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import tensile
from tensile.errors import INTERRUPTED, TensileError
from tensile.sandbox import processes, stop
from tensile.sandbox.commands import program
from tensile.sandbox.demo.runner import DemoEngine, DemoError, DemoScreen, Shell, ignore, interruptible
from tensile.sandbox.demo.script import (
    CACHE_FOLDER,
    COLUMNS,
    COLUMNS_FILE,
    EDITED_FILE,
    LOG_FILE,
    NAMES,
    SUMMARY,
    TOUR,
    WORKLOAD,
    WORKLOAD_FILE,
    edited,
)
from tensile.sandbox.progress import Progress, progress_to
from tensile.sandbox.sandbox import Sandbox
from tensile.text import takes_colour

TENSILE = (sys.executable, "-m", "tensile")
TOPOLOGY_FILE = "topology.yaml"


@dataclass(frozen=True)
class DemoOptions:
    """The options of the demo.

    Attributes:
        engine_log: show the engine's log at the end.
        pause: wait for Enter before each step but the first, if a person can press it.
        log_level, log_format: the options of that log.
    """

    engine_log: bool = False
    pause: bool = True
    log_level: str = "info"
    log_format: str = "text"


def demo(wishes: DemoOptions) -> int:
    """Run the tour on stdout; on a terminal, stay until Ctrl-C afterwards.

    Returns:
        0, or 130 if it was interrupted before its end.

    Raises:
        TensileError: a step failed; nothing is left then either.
    """
    screen = DemoScreen(sys.stdout, colour=takes_colour(sys.stdout))
    begun = time.monotonic()
    try:
        with interruptible(), _place() as directory:
            _visit(screen, directory, wishes)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the demo was removed\n")
        return INTERRUPTED
    screen.words(
        f"\nFinished after {time.monotonic() - begun:.0f} s. All processes and files of the demo were removed."
    )
    return 0


@contextmanager
def _place() -> Iterator[Path]:
    """Yield a directory for the sandbox; afterwards no process runs and the directory is gone."""
    directory = Path(tempfile.gettempdir()).resolve() / f"tensile-demo-{secrets.token_hex(4)}"
    try:
        yield directory
    finally:
        ignore()
        stop.end(directory)
        with suppress(FileNotFoundError):
            directory.rmdir()


def _visit(screen: DemoScreen, directory: Path, wishes: DemoOptions) -> None:
    """Start everything, run the tour, and end everything in order."""
    with ExitStack() as ending:
        screen.words(
            "Starting an upper cluster and two lower clusters: real control planes, as processes on this machine."
        )
        sandbox = Sandbox.start(directory, progress=_progress())
        ending.callback(sandbox.stop)
        _write_files(sandbox)
        variables = _variables(sandbox)
        engine = _start_engine(screen, directory, variables, wishes)
        ending.callback(engine.stop)
        ending.callback(_end_in_peace)
        if wishes.engine_log:
            ending.callback(_show_log, screen, engine)
        pause = wishes.pause and sys.stdin.isatty() and sys.stdout.isatty()
        _show(screen, sandbox, engine, variables, pause=pause)


def _write_files(sandbox: Sandbox) -> None:
    """Write the tour's files to the sandbox's directory."""
    sandbox.adopt(*NAMES)
    topology = (sandbox.directory / TOPOLOGY_FILE).read_text()
    (sandbox.directory / EDITED_FILE).write_text(edited(topology))
    (sandbox.directory / WORKLOAD_FILE).write_text(WORKLOAD)
    (sandbox.directory / COLUMNS_FILE).write_text(COLUMNS)


def _variables(sandbox: Sandbox) -> dict[str, str]:
    """Return the environment of all commands of the demo: they neither read nor write the user's own configuration."""
    return {
        **os.environ,
        "KUBECONFIG": _kubeconfigs(sandbox),
        "KUBECACHEDIR": str(sandbox.directory / CACHE_FOLDER),
        "KUBERC": "off",
        "PYTHONPATH": str(Path(tensile.__file__).parents[1]),
        processes.MARK: sandbox.state().identity,
    }


def _kubeconfigs(sandbox: Sandbox) -> str:
    """Return $KUBECONFIG for the demo's directory: each cluster is a context, and the upper one the default."""
    return os.pathsep.join(f"{name}.kubeconfig" for name in sandbox.clusters)


def _start_engine(screen: DemoScreen, directory: Path, variables: dict[str, str], wishes: DemoOptions) -> DemoEngine:
    """Show the commands that start the engine, and start it the same way."""
    screen.command(f"cd {directory}")
    screen.command(f"export KUBECONFIG={variables['KUBECONFIG']}")
    screen.command(f"tensile run -f {TOPOLOGY_FILE} 2> {LOG_FILE} &")
    options = ("--log-level", wishes.log_level, "--log-format", wishes.log_format)
    command = (*TENSILE, "run", "-f", TOPOLOGY_FILE, *options)
    return DemoEngine.start(command, directory, variables, directory / LOG_FILE)


def _show(screen: DemoScreen, sandbox: Sandbox, engine: DemoEngine, variables: dict[str, str], *, pause: bool) -> None:
    """Run the scenes, and stay on a terminal; an error is raised with the end of the engine's log."""
    programs = {"kubectl": sandbox.kubectl_command()[:1], "tensile": TENSILE}
    shell = Shell(screen, sandbox.directory, programs, variables, engine.check)
    try:
        for number, scene in enumerate(TOUR, 1):
            if pause and number > 1:
                _wait_for_enter(screen)
            screen.title(f"{number}/{len(TOUR)} {scene.title}")
            screen.words(scene.words)
            for command in scene.commands:
                shell.run(command)
        screen.title("What you have seen")
        screen.words(SUMMARY)
        if screen.stream.isatty():
            _stay(screen, sandbox, engine)
        else:
            screen.words(f"\nNext, start clusters that stay:\n  {program()} sandbox up")
    except TensileError as error:
        told = f"{error}\nThe last lines of the engine's log:\n{engine.last_lines()}\n"
        raise DemoError(f"{told}For more details: tensile demo --engine-log --log-level debug") from error


def _wait_for_enter(screen: DemoScreen) -> None:
    """Let the person read; Ctrl-C ends the demo here too."""
    screen.words("\nPress Enter for the next step, or Ctrl-C to end the demo.")
    sys.stdin.readline()


def _stay(screen: DemoScreen, sandbox: Sandbox, engine: DemoEngine) -> None:
    """Print what to try, and wait for Ctrl-C, which ends the demo without an error."""
    kubectl = "kubectl" if shutil.which("kubectl") else sandbox.kubectl_command()[0]
    with suppress(KeyboardInterrupt):
        screen.title("Try it yourself")
        screen.words(
            "The clusters and the engine run until Ctrl-C. In another terminal:\n"
            f"  cd {sandbox.directory}\n"
            f"  export KUBECONFIG={_kubeconfigs(sandbox)}\n"
            f"  {kubectl} apply -f {WORKLOAD_FILE}\n"
            f"  {kubectl} -n shop get pods -o wide --watch\n"
            f"  tail -f {LOG_FILE}\n"
            f"Edit {TOPOLOGY_FILE} there: the engine reloads it at once.\n"
            f"For clusters that stay: {program()} sandbox up"
        )
        engine.wait()


def _end_in_peace() -> None:
    """Ignore further interrupts, and print that the demo ends."""
    ignore()
    _progress()("stopping the engine and the clusters")


def _show_log(screen: DemoScreen, engine: DemoEngine) -> None:
    screen.title("The engine's log")
    screen.words(engine.log.read_text(errors="replace").rstrip())


def _progress() -> Progress:
    """Return the progress that prints on a terminal only."""
    return progress_to(sys.stderr) if sys.stderr.isatty() else lambda _line: None
