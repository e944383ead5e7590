"""The house limits: how long files and functions may be, and where `async def` may stand.

Lines are counted without blanks, comments and docstrings. Run by `make check`; prints what it measured.
"""

import ast
import io
import statistics
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LIMIT, FILE_MEDIAN, FUNCTION_MEDIAN, FUNCTION_P90, TEST_RATIO = 400, 150, 8, 25, 1.5
BANNED = {
    "util",
    "utils",
    "common",
    "helper",
    "helpers",
    "base",
    "misc",
    "manager",
    "handler",
    "processor",
    "core",
    "types",
}
EDGES = {
    "app", "cluster", "clusters", "doctor/contact", "doctor/gathering", "doctor/questions", "election", "extending",
    "filewatch", "followed", "hookport", "inforce", "inspection/reading", "joined", "kube/access", "kube/aio",
    "kube/client", "kube/fleet", "kube/informer", "kube/limits", "kube/paging", "kube/pluginrun", "kube/secretfile",
    "kube/rest", "kube/share", "kube/tail", "kube/wire",
    "kube/transport", "kubelet/api/authentication", "kubelet/api/authority", "kubelet/api/authorization",
    "kubelet/api/certs", "kubelet/api/dialogue", "kubelet/api/enrolment", "kubelet/api/exec", "kubelet/api/listener",
    "kubelet/api/logs", "kubelet/api/lower", "kubelet/api/meter", "kubelet/api/pipe", "kubelet/api/presence",
    "kubelet/api/server", "kubelet/api/service", "kubelet/api/use", "kubelet/api/wire", "kubelet/eventmirror",
    "kubelet/heartbeat", "marking", "nodeports", "oneshot", "planning", "policy/extenderport", "policy/front",
    "policy/listening", "policy/policyregistration", "policy/preemptor", "policy/webhook",
    "reconcile/apply", "reconcile/issuing", "reconcile/loop",
    "reconcile/mapsource", "reconcile/reading", "reconcile/rehearsal", "reconcile/source", "reconcile/vacancy",
    "reconcile/workqueue", "running", "status/inquiry", "status/keeper", "supervision", "telemetry/server", "trials",
    "door", "accepting", "kubelet/api/reviews", "kube/dialing",
}  # fmt: skip


def code_lines(source: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def measure(folder: Path) -> tuple[dict[Path, int], list[int], list[str]]:
    """Return lines by file, lines of each function, and the files with an `async def`."""
    files: dict[Path, int] = {}
    functions: list[int] = []
    edges: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        lines = code_lines(source, tree)
        files[path] = len(lines)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(sum(node.lineno <= line <= (node.end_lineno or 0) for line in lines))
            if isinstance(node, ast.AsyncFunctionDef):
                edges.append(str(path.relative_to(folder).with_suffix("")))
    return files, functions, edges


def main() -> int:
    """Print the figures and what breaks a limit; give the exit code."""
    files, functions, edges = measure(ROOT / "tensile")
    tests, _, _ = measure(ROOT / "tests")
    ratio = sum(tests.values()) / sum(files.values())
    median, p90 = statistics.median(functions), statistics.quantiles(functions, n=10)[8]
    print(  # noqa: T201 - this is the program's output
        f"files: median {statistics.median(files.values()):.0f}, longest {max(files.values())}; functions: median "
        f"{median:.0f}, p90 {p90:.0f}; lines {sum(files.values())}, tests {sum(tests.values())}, ratio {ratio:.2f}"
    )
    broken = [f"{path}: {lines} lines" for path, lines in {**files, **tests}.items() if lines > FILE_LIMIT]
    broken += [f"{path}: banned name" for path in files if path.stem in BANNED]
    broken += [f"{name}: async def outside the edges" for name in sorted(set(edges) - EDGES)]
    limits = [
        ("file median", statistics.median(files.values()) <= FILE_MEDIAN),
        ("function median", median <= FUNCTION_MEDIAN),
        ("function p90", p90 <= FUNCTION_P90),
        ("test lines per line of code", ratio >= TEST_RATIO),
    ]
    broken += [f"limit broken: {name}" for name, kept in limits if not kept]
    print("\n".join(broken), file=sys.stderr, end="\n" if broken else "")  # noqa: T201
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
