"""`tensile demo`: starts a sandbox and the engine, leads a user through the tour, and leaves nothing behind.

The tour is data (demo_script.py). The demo never calls the engine: it is `tensile run` in a process of its own, as a
user would start it, with its log in a file, and is observed through kubectl alone. It has its own session, so that
Ctrl-C in a terminal reaches the demo only, which then ends the engine in order. While a command runs, the engine is
checked: otherwise the command could wait for a dead engine.

Every process carries the sandbox's identity and every file is in its list. So whatever ends the demo, even SIGKILL, the
sandbox's guard can end and delete all of it.

Every command is printed before it runs, and output is flushed first, since commands write to the same stream.

The first signal interrupts, later ones are ignored: cleanup takes a few seconds, people press Ctrl-C twice, and a
second interrupt would leave half of the clusters running. The first one must not get lost either: Python swallows
exceptions that are raised while an object is finalised, for example during imports, so it is raised again then.
"""

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import IO, Self, TextIO

import tensile
from tensile.errors import INTERRUPTED, TensileError
from tensile.sandbox import processes, stop
from tensile.sandbox.commands import program
from tensile.sandbox.demo_script import (
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
    Command,
    SideBySide,
    edited,
)
from tensile.sandbox.sandbox import Sandbox
from tensile.text import progress_to, takes_colour

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_DELAY = 0.05
"""The delay in seconds after which a swallowed interrupt is raised again."""
STOP_LIMIT = 10.0
LAST = 15
LIMIT = 90.0
PAUSE = 0.1
GAP = "  |  "
"""What stands between two outputs."""
_BOLD, _PROMPT, _END = "\x1b[1m", "\x1b[36m", "\x1b[0m"
TENSILE = (sys.executable, "-m", "tensile")
TOPOLOGY_FILE = "topology.yaml"


class DemoError(TensileError):
    """The tour cannot continue; the message contains the command, and what to do."""


class DemoScreen:
    """Writes to a stream, in colour if requested."""

    def __init__(self, stream: TextIO, *, colour: bool) -> None:
        self.stream = stream
        self._colour = colour

    def title(self, text: str) -> None:
        """Print the title of a scene."""
        self._write(f"\n{self._styled(_BOLD, f'# {text}')}")

    def text(self, text: str) -> None:
        """Print a text with its line breaks."""
        self._write(text)

    def command(self, *lines: str) -> None:
        """Print command lines; the output of the commands follows them."""
        self._write("\n" + "\n".join(self._styled(_PROMPT, f"$ {line}") for line in lines))

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{_END}" if self._colour else text

    def _write(self, text: str) -> None:
        self.stream.write(f"{text}\n")
        self.stream.flush()


class DemoEngine:
    """A running engine; created by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    def start(cls, command: Sequence[str], directory: Path, variables: Mapping[str, str], log: Path) -> Self:
        """Start the engine in a directory; its output goes to the log."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process, log)

    def check(self) -> None:
        """Raise DemoError if the engine has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoError(f"demo: the engine exited unexpectedly with code {code}")

    def wait(self) -> None:
        """Wait until the engine ends, and raise DemoError then."""
        self._process.wait()
        self.check()

    def stop(self, limit: float = STOP_LIMIT) -> None:
        """Terminate the engine, and kill it if it does not end within `limit` seconds."""
        self._process.terminate()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_lines(self) -> str:
        """Return the end of its log, at most 15 lines."""
        with self.log.open(errors="replace") as lines:
            return "".join(deque(lines, LAST)).rstrip()


@dataclass(frozen=True)
class Shell:
    """Runs commands in a directory.

    Attributes:
        screen: where commands and their output are printed.
        directory: the working directory.
        programs: the commands that replace the first word of a line; other words are looked up in $PATH.
        variables: the environment.
        look_after: called while a command runs; raises an error to end the command.
        limit: the timeout of a command in seconds.
    """

    screen: DemoScreen
    directory: Path
    programs: Mapping[str, Sequence[str]]
    variables: Mapping[str, str]
    check: Callable[[], None]
    limit: float = LIMIT

    def run(self, command: Command | SideBySide) -> None:
        """Print a command and run it to its end.

        Raises:
            DemoError: it cannot be started, times out, or ends with an unexpected exit code.
        """
        if isinstance(command, SideBySide):
            self._compare(command)
        else:
            self.screen.command(command.line)
            self._run(command, self.screen.stream)

    def _compare(self, comparison: SideBySide) -> None:
        """Run several commands, and print their outputs next to each other."""
        commands = (comparison.left, *comparison.right)
        self.screen.command(*(command.line for command in commands))
        left, *right = map(self._output, commands)
        self.screen.text(beside(left, "".join(right)))

    def _output(self, command: Command) -> str:
        """Run a command to its end and return its output."""
        with TemporaryFile("w+") as output:
            self._run(command, output)
            output.seek(0)
            return output.read()

    def _run(self, command: Command, output: IO[str]) -> None:
        """Run a command to its end, with its output to a stream that has a file descriptor."""
        code = self._exit_code(command.line, output)
        if code not in command.codes:
            expected = " or ".join(map(str, command.codes))
            raise DemoError(f"demo: `{command.line}` exited with code {code}, expected {expected}; see its output")

    def _exit_code(self, line: str, output: IO[str]) -> int:
        """Run a command line to its end and return the exit code."""
        executable, *operands = shlex.split(line)
        arguments = [*self.programs.get(executable, (executable,)), *operands]
        try:
            process = subprocess.Popen(
                arguments,
                cwd=self.directory,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
            )
        except OSError as error:
            raise DemoError(f"demo: `{line}` cannot be run: {error.strerror}; install {executable}") from error
        with process:
            try:
                return self._wait_for_end(process, line)
            finally:
                process.kill()

    def _wait_for_end(self, process: subprocess.Popen[bytes], line: str) -> int:
        end = time.monotonic() + self.limit
        while time.monotonic() < end:
            try:
                return process.wait(PAUSE)
            except subprocess.TimeoutExpired:
                self.check()
        raise DemoError(f"demo: `{line}` took more than {self.limit:.0f} s; is the machine busy? Try again")


def beside(left: str, right: str) -> str:
    """Return the lines of two texts next to each other; the shorter text ends earlier."""
    rows = list(zip_longest(left.splitlines(), right.splitlines(), fillvalue=""))
    width = max((len(one) for one, _ in rows), default=0)
    return "\n".join(f"{one:{width}}{GAP}{other}".rstrip() for one, other in rows)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make the first of SIGNALS raise KeyboardInterrupt inside the block, and ignore those after it.

    A SIGHUP that is already ignored, as with `nohup`, stays ignored.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ignore()
        raise KeyboardInterrupt

    def report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _REPEAT_DELAY)
        else:
            previous_hook(unraisable)

    previous_hook, sys.unraisablehook = sys.unraisablehook, report_unraisable
    handles_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    previous_handlers = {
        signal_number: signal.signal(signal_number, interrupt)
        for signal_number in SIGNALS
        if handles_hangup or signal_number != signal.SIGHUP
    }
    previous_handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)


def ignore() -> None:
    """Ignore SIGNALS until the block of `interruptible` ends, and cancel an interrupt that would be raised again."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)


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


def demo(options: DemoOptions) -> int:
    """Run the tour on stdout; on a terminal, stay until Ctrl-C afterwards.

    Returns:
        0, or 130 if it was interrupted before its end.

    Raises:
        TensileError: a step failed; nothing is left then either.
    """
    screen = DemoScreen(sys.stdout, colour=takes_colour(sys.stdout))
    start_time = time.monotonic()
    try:
        with interruptible(), _temporary_directory() as directory:
            _run_demo(screen, directory, options)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the demo was removed\n")
        return INTERRUPTED
    screen.text(
        f"\nFinished after {time.monotonic() - start_time:.0f} s. All processes and files of the demo were removed."
    )
    return 0


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    """Yield a directory for the sandbox; afterwards no process runs and the directory is gone."""
    directory = Path(tempfile.gettempdir()).resolve() / f"tensile-demo-{secrets.token_hex(4)}"
    try:
        yield directory
    finally:
        ignore()
        stop.end(directory)
        with suppress(FileNotFoundError):
            directory.rmdir()


def _run_demo(screen: DemoScreen, directory: Path, options: DemoOptions) -> None:
    """Start everything, run the tour, and end everything in order."""
    with ExitStack() as cleanup:
        screen.text(
            "Starting an upper cluster and two lower clusters: real control planes, as processes on this machine."
        )
        sandbox = Sandbox.start(directory, progress=progress_to(sys.stderr))
        cleanup.callback(sandbox.stop)
        _write_files(sandbox)
        variables = _variables(sandbox)
        engine = _start_engine(screen, directory, variables, options)
        cleanup.callback(engine.stop)
        cleanup.callback(_finish_uninterrupted)
        if options.engine_log:
            cleanup.callback(_show_log, screen, engine)
        pause = options.pause and sys.stdin.isatty() and sys.stdout.isatty()
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


def _start_engine(screen: DemoScreen, directory: Path, variables: dict[str, str], options: DemoOptions) -> DemoEngine:
    """Show the commands that start the engine, and start it the same way."""
    screen.command(f"cd {directory}")
    screen.command(f"export KUBECONFIG={variables['KUBECONFIG']}")
    screen.command(f"tensile run -f {TOPOLOGY_FILE} 2> {LOG_FILE} &")
    log_options = ("--log-level", options.log_level, "--log-format", options.log_format)
    command = (*TENSILE, "run", "-f", TOPOLOGY_FILE, *log_options)
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
            screen.text(scene.text)
            for command in scene.commands:
                shell.run(command)
        screen.title("What you have seen")
        screen.text(SUMMARY)
        if screen.stream.isatty():
            _wait_for_interrupt(screen, sandbox, engine)
        else:
            screen.text(f"\nNext, start clusters that stay:\n  {program()} sandbox up")
    except TensileError as error:
        message = f"{error}\nThe last lines of the engine's log:\n{engine.last_lines()}\n"
        raise DemoError(f"{message}For more details: tensile demo --engine-log --log-level debug") from error


def _wait_for_enter(screen: DemoScreen) -> None:
    """Let the person read; Ctrl-C ends the demo here too."""
    screen.text("\nPress Enter for the next step, or Ctrl-C to end the demo.")
    sys.stdin.readline()


def _wait_for_interrupt(screen: DemoScreen, sandbox: Sandbox, engine: DemoEngine) -> None:
    """Print what to try, and wait for Ctrl-C, which ends the demo without an error."""
    kubectl = "kubectl" if shutil.which("kubectl") else sandbox.kubectl_command()[0]
    with suppress(KeyboardInterrupt):
        screen.title("Try it yourself")
        screen.text(
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


def _finish_uninterrupted() -> None:
    """Ignore further interrupts, and print that the demo ends."""
    ignore()
    progress_to(sys.stderr)("stopping the engine and the clusters")


def _show_log(screen: DemoScreen, engine: DemoEngine) -> None:
    screen.title("The engine's log")
    screen.text(engine.log.read_text(errors="replace").rstrip())
