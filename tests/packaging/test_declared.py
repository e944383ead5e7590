"""What the program imports and what it declares, which has to be the same."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


READ = {"tzdata"}
"""What no module imports: zoneinfo reads the time zones in it where the machine has none."""


def declared() -> set[str]:
    """Return the packages that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}


def imported() -> set[str]:
    """Return the packages of others that the program's modules import."""
    modules: set[str] = set()
    for path in (ROOT / "tensile").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module or "")
    packages = packages_distributions()
    tops = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"tensile"}
    return {canonicalize_name(packages[top][0]) for top in tops}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    """Another package may stop bringing along what we use, and what nobody uses is more to install and to trust."""
    assert imported() == declared() - READ


def test_rich_is_not_loaded() -> None:
    """It is there for typer, which does not need it; structlog would load it at each start, for nothing."""
    words = "import tensile.__main__, tensile.engine.run, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout.split()
    assert "structlog" in loaded
    assert "rich.console" not in loaded
