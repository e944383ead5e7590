"""Tests that the tools of bench/ read only options that they declare."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OPTION = re.compile(r"-{0,2}[a-z][-a-z]*")


def arguments_read(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module reads from its parsed command line, which is always named `args`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "args":
            yield node.attr


def arguments_declared(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the options that a module declares.

    If one is no literal, e.g. in a loop, each string of the module that could be an option counts as one.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    names = [call.args[0] for call in calls if getattr(call.func, "attr", "") == "add_argument"]
    if not all(isinstance(name, ast.Constant) for name in names):
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for name in names:
        value = name.value if isinstance(name, ast.Constant) else None
        if isinstance(value, str) and OPTION.fullmatch(value):
            yield value.lstrip("-").replace("-", "_")


def modules_of_bench(tree: ast.AST) -> Iterator[Path]:
    """Yield the files of bench/ from which a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bench."):
            path = ROOT / (node.module or "").replace(".", "/")
            yield from (one for one in (path.with_suffix(".py"), path / "__main__.py") if one.is_file())


def test_each_tool_reads_only_options_that_it_or_one_of_its_imports_declares() -> None:
    """A tool that reads another name fails only after its sandbox has started, and no test runs each tool."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "bench").rglob("*.py"))}
    declared = {path: set(arguments_declared(tree)) for path, tree in trees.items()}
    unknown, seen = [], 0
    for path, tree in trees.items():
        known = declared[path].union(*(declared[other] for other in modules_of_bench(tree)))
        for name in sorted(set(arguments_read(tree))):
            seen += 1
            if name not in known:
                unknown.append(f"{path.relative_to(ROOT)}: {name}")
    assert unknown == []
    assert seen > 100
