"""The `tensile` program, also started by `python -m tensile`.

Imports create about 100,000 objects and no garbage. Garbage collection during the imports and at exit would take a
fifth of the time of `validate`, so thresholds are raised before and objects are frozen after. Pydantic's search for
plugins in all installed packages would take as long, and the topology needs no plugin.

typer installs rich, but only needs it for help texts with rich markup. structlog imports rich whenever it is installed,
for tracebacks that this program never prints, and has no switch against that: some 45 ms of CPU at each start. A None
in `sys.modules` makes Python treat rich as not installed.
"""

import gc
import os
import sys

from tensile.errors import INTERRUPTED

gc.set_threshold(50_000, 20, 20)
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]


def main() -> None:
    """Run the program with the arguments of the command line. Raises SystemExit."""
    try:
        from tensile.cli.main import main as program  # noqa: PLC0415 - Ctrl-C may arrive during this slow import

        program()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
