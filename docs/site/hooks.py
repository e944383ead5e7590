"""What MkDocs does for this site beside its own work: pages out of files that are not in docs/, and their links.

Links of the pages lead to these files in the repository, where GitHub shows them. The site has them as pages, so that
it is whole without the repository.
"""

from pathlib import Path

from dialect import MOVED, for_python_markdown, relinked, shown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PLACES = {page: place for place, page in MOVED.items() if page != "index.md"}
"""Where each page that is not in docs/ is in the repository."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for page, place in PLACES.items():
        files.append(File.generated(config, page, content=shown(place, (ROOT / place).read_text())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs names them
    """Return a page's text with the links and the dialect of the site."""
    if page.file.src_uri == "troubleshooting.md":
        page.meta["search"] = {"boost": 10}  # before pages that only mention a reason
    place = PLACES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return for_python_markdown(relinked(markdown, place))
