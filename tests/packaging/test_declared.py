"""What the program imports and what it declares, which has to be the same."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


READ = {"tzdata"}
"""What no module imports: zoneinfo reads the time zones in it where the machine has none."""


def declared() -> set[str]:
    """Return the packages that pyproject.toml asks for, with those of the extra of the program."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["otel"]]
    return {canonicalize_name(Requirement(text).name) for text in asked}


def imported() -> set[str]:
    """Return the packages of others that the program's modules import."""
    modules: set[str] = set()
    for path in (ROOT / "tensile").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    ours = sys.stdlib_module_names | {"tensile"}
    packages = packages_distributions()
    return {
        canonicalize_name(owner(module, packages[top]))
        for module in modules
        if (top := module.partition(".")[0]) not in ours
    }


def owner(module: str, packages: list[str]) -> str:
    """Return the package that has a module, or the module of a name in it; several share a namespace."""
    if len(set(packages)) == 1:
        return packages[0]
    place = module.replace(".", "/")
    found = [name for name in packages if any(is_of(place, str(path)) for path in distribution(name).files or ())]
    return found[0] if found else owner(module.rpartition(".")[0], packages)


def is_of(place: str, path: str) -> bool:
    """Report whether a file belongs to a module, given by its path without suffix."""
    return path == f"{place}.py" or path.startswith(f"{place}/")


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    """Another package may stop bringing along what we use, and what nobody uses is more to install and to trust."""
    assert imported() == declared() - READ


def test_rich_is_not_loaded() -> None:
    """It is there for typer, which does not need it; structlog would load it at each start, for nothing."""
    words = "import tensile.__main__, tensile.engine.run, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout.split()
    assert "structlog" in loaded
    assert "rich.console" not in loaded
