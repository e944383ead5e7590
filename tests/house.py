"""Rules of the source tree that ruff, mypy and import-linter cannot check. Run by `make check`.

A reader finds a file by its name and a class by its name alone, so meaningless and ambiguous names are rejected. A
decision can be replayed only while nothing in it waits, so the modules that `.importlinter` calls pure have no `async
def`.
"""

import ast
import configparser
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_FOLDERS, MOST_LOOSE, MOST_FILES = 10, 7, 240
"""The most folders and modules directly in tensile/, and the most files in it: more would be hard to navigate."""
OTHER_TESTS = {"bench", "docs", "e2e", "faults", "kit", "packaging", "scenarios"}
"""Folders of tests/ without a folder of the same name in tensile/."""
BANNED_MODULES = {
    "base", "common", "core", "handler", "helper", "helpers", "manager", "misc", "processor", "types", "util", "utils",
}  # fmt: skip
"""Names that say nothing about what a module holds."""
BANNED_OPENINGS = ("Give", "Gives", "Hear", "Hears", "Say", "Says")
"""First words of docstrings for which Python has others: Return, Report whether, Watch, Describe."""

BANNED_IN_TESTS = re.compile(
    r"\b(nobody|somebody|anybody|told|tells?|heeds?|hears?|heard|in vain|be it|for ever)\b", re.IGNORECASE
)
"""What names and docstrings of tests must not have: actors without a name, and words that say nothing of the action."""

Trees = Mapping[Path, ast.Module]


def parsed(folder: Path) -> Trees:
    """Return the syntax tree of each Python file in a folder, by its path from the root."""
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def broken_layout(trees: Trees) -> Iterator[str]:
    """Yield an error for each exceeded number, and for each module with a meaningless name."""
    folders = {path.parts[1] for path in trees if len(path.parts) > 2}
    loose = [path for path in trees if len(path.parts) == 2 and path.stem != "__init__"]
    for what, count, most in (
        ("folders", len(folders), MOST_FOLDERS),
        ("loose modules", len(loose), MOST_LOOSE),
        ("files", len(trees), MOST_FILES),
    ):
        if count > most:
            yield f"tensile/ has {count} {what}, at most {most} are allowed"
    yield from (f"{path}: a module name that says nothing" for path in trees if path.stem in BANNED_MODULES)


def strange_folders(tests: Trees) -> Iterator[str]:
    """Yield the folders of tests without a counterpart in tensile/, where a reader would not look for a test."""
    folders = sorted({path.parent.relative_to("tests") for path in tests if path.name.startswith("test_")})
    for folder in folders:
        if folder.parts and folder.parts[0] not in OTHER_TESTS and not (ROOT / "tensile" / folder).is_dir():
            yield f"tests/{folder}: there is no tensile/{folder} whose tests these are"


def pure_modules() -> tuple[tuple[str, ...], set[str]]:
    """Return the packages and modules that `.importlinter` calls pure, and the modules in them that are not."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    contract = config["importlinter:contract:pure"]
    edges = {line.split(" -> ")[0] for line in contract["ignore_imports"].split("\n") if line}
    return tuple(contract["source_modules"].split()), edges


def broken_purity(trees: Trees) -> Iterator[str]:
    """Yield the functions of pure modules that wait."""
    pure, edges = pure_modules()
    for path, tree in trees.items():
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        if module in edges or not any(module == one or module.startswith(f"{one}.") for one in pure):
            continue
        yield from (
            f"{path}:{node.lineno}: async def in a pure module (see .importlinter)"
            for node in ast.walk(tree)
            if isinstance(node, ast.AsyncFunctionDef) and not _is_declared_only(node)
        )


def _is_declared_only(function: ast.AsyncFunctionDef) -> bool:
    """Report whether a function has no body except its docstring and `...`, as a method of a protocol."""
    return all(isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) for line in function.body)


def described(trees: Trees) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the name ("" for a module) and the docstring of each module, class and function."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{getattr(node, 'lineno', 1)}", getattr(node, "name", ""), ast.get_docstring(node) or ""


def broken_words(trees: Trees) -> Iterator[str]:
    """Yield docstrings that begin with a banned word."""
    for place, _, text in described(trees):
        words = text.split(maxsplit=1)
        if words and words[0] in BANNED_OPENINGS:
            yield f"{place}: a docstring begins with {words[0]!r}"


def vague_tests(trees: Trees) -> Iterator[str]:
    """Yield the docstrings and the names of tests that have a banned word."""
    for place, name, text in described(trees):
        words = name.replace("_", " ") if name.startswith("test_") else ""
        if found := BANNED_IN_TESTS.search(f"{words} {text}"):
            yield f"{place}: {found[0]!r} in a name or docstring: name the actor and the action"


def reused_names(trees: Trees) -> Iterator[str]:
    """Yield the public classes that have the same name as another one."""
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    yield from (f"two classes are called {name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1)


def main() -> int:
    """Print what breaks a rule, and return the exit code."""
    trees = parsed(ROOT / "tensile")
    tests = parsed(ROOT / "tests")
    everything = {**trees, **tests, **parsed(ROOT / "bench")}
    broken = [*broken_layout(trees), *broken_purity(trees), *reused_names(trees), *broken_words(everything)]
    broken += [*strange_folders(tests), *vague_tests(tests)]
    print("\n".join(broken), file=sys.stderr, end="\n" if broken else "")  # noqa: T201 - this is the program's output
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
