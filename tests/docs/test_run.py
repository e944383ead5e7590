"""Tests that run every command block of the README and of docs/ on real control planes, page by page.

What a page leaves out is in comments that a reader does not see (fences.py). Blocks that cannot run here are counted
below and have a reason, so that none is skipped by accident.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from docsite import DocumentationShell, documentation_shell, missing
from fences import ROOT, TOPIC, Fence, fences, is_object, pages

NOT_RUN = {
    "README.md": 1,
    "docs/configmap.md": 1,
    "docs/conformance.md": 1,
    "docs/deploy.md": 2,
    "docs/first-topology.md": 1,
    "docs/howto/approve-edits.md": 1,
    "docs/howto/drift.md": 1,
    "docs/howto/kind.md": 1,
    "docs/howto/kube-prometheus.md": 2,
    "docs/howto/maintenance.md": 1,
    "docs/howto/migrate-from-tensile-kube.md": 5,
    "docs/howto/restore.md": 1,
    "docs/howto/spark.md": 1,
    "docs/howto/storage.md": 2,
    "docs/image.md": 2,
    "docs/install.md": 3,
    "docs/upgrade.md": 2,
    "docs/versions.md": 1,
}
"""The number of blocks that are not run, by page."""


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text()


def is_run(fence: Fence) -> bool:
    """Report whether a fence is used by these tests."""
    return fence.language == "sh" or bool({"file", "printed"} & set(fence.directives)) or is_object(fence)


RUN = [page for page in pages() if any(map(is_run, fences(page, read(page))))]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentationShell]:
    """One sandbox for all pages."""
    with documentation_shell(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.mark.real
@pytest.mark.parametrize("page", RUN)
def test_every_block_of_a_page_runs(page: str, shell: DocumentationShell) -> None:
    """All blocks of a page run in order in one shell, with the exit code and the lines that the page shows."""
    found = fences(page, read(page))
    shell.start_page()
    try:
        if TOPIC.search(read(page)):
            shell.start_engine()
        played(shell, found)
    finally:
        shell.clear()


def played(shell: DocumentationShell, found: list[Fence]) -> None:
    """Process each fence as its comments define."""
    printed = ""
    for fence in found:
        if "printed" in fence.directives:
            assert missing(fence.text, printed) == [], f"{fence.place}: not printed, but:\n{printed}"
        if "file" in fence.directives:
            shell.write(fence.directives["file"], fence.text)
        elif is_object(fence):
            shell.write("shown.yaml", fence.text)
            shell.run(fence._replace(text="kubectl apply --dry-run=server --validate=strict -f shown.yaml"))
        if "given" in fence.directives:
            shell.run(fence._replace(text=fence.directives["given"], directives={}))
        if fence.language == "sh" and "not run" not in fence.directives:
            printed = run(shell, fence)


def run(shell: DocumentationShell, fence: Fence) -> str:
    """Run a block to its end, or start it if it continues to run, and return its output."""
    if "runs on until" in fence.directives:
        shell.start_in_background(fence.text, fence.directives["runs on until"])
        return ""
    return shell.run(fence)


def test_every_block_that_is_not_run_has_a_reason_and_is_counted() -> None:
    """Otherwise a block could be skipped by accident."""
    skipped = [one for page in pages() for one in fences(page, read(page)) if "not run" in one.directives]
    assert all(len(one.directives["not run"]) > len("needs x") for one in skipped)
    counted = {page: sum(one.page == page for one in skipped) for page in {one.page for one in skipped}}
    assert counted == NOT_RUN


def test_the_main_pages_are_run(request: pytest.FixtureRequest) -> None:
    """A page that was moved would otherwise be skipped without notice."""
    assert {"README.md", "docs/configmap.md", "docs/doctor.md", "docs/topology.md"} <= set(RUN)
    assert Path(request.path).parent == ROOT / "tests" / "docs"
