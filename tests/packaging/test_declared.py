"""Tests that the program imports exactly the packages that it declares."""

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
"""Packages that no module imports: zoneinfo reads the time zones in it if the machine has none."""


def declared() -> set[str]:
    """Return the packages that pyproject.toml requires, with those of the extra `otel`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared_names = [*project["dependencies"], *project["optional-dependencies"]["otel"]]
    return {canonicalize_name(Requirement(text).name) for text in declared_names}


def imported() -> set[str]:
    """Return the third-party packages that the program's modules import."""
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
    """Return the package that has a module or the module of a name in it; several may share a namespace."""
    if len(set(packages)) == 1:
        return packages[0]
    place = module.replace(".", "/")
    found = [name for name in packages if any(is_of(place, str(path)) for path in distribution(name).files or ())]
    return found[0] if found else owner(module.rpartition(".")[0], packages)


def is_of(place: str, path: str) -> bool:
    """Report whether a file belongs to a module, given by its path without suffix."""
    return path == f"{place}.py" or path.startswith(f"{place}/")


def test_the_imported_packages_are_exactly_the_declared_ones() -> None:
    """An undeclared one may disappear with another package, and an unused one is more to install and to trust."""
    assert imported() == declared() - READ


def test_importing_the_program_does_not_load_rich() -> None:
    """Neither typer nor structlog needs it, and structlog would load it at each start."""
    script = "import tensile.__main__, tensile.engine.run, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "structlog" in loaded
    assert "rich.console" not in loaded
