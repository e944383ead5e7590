"""`python -m tensile` and the `tensile` program.

Imports make a hundred thousand objects and no garbage: letting the collector look through them on the way, and once
more at the end, would take a fifth of the time in which `validate` answers. So would pydantic's search of everything
that is installed for plugins, which have no business in a topology.

rich comes with typer, which uses it for help in rich's markup alone. structlog loads it wherever it is installed, for
tracebacks that this program never paints, and has no switch against that: some 45 ms of CPU at each start. None in
`sys.modules` is how Python has a module count as not installed.
"""

import gc
import os
import sys

from tensile.errors import INTERRUPTED

gc.set_threshold(50_000, 20, 20)
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]


def main() -> None:
    """Run the program on the command line's arguments; raises SystemExit."""
    try:
        from tensile.cli.main import main as program  # noqa: PLC0415 - Ctrl-C may come while that takes its time

        program()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
