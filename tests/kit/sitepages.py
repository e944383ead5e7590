"""The pages of the documentation site as data: its navigation, and MkDocs' dialect of Markdown."""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import yaml
from fences import ROOT

CONFIG = ROOT / "mkdocs.yml"


class _Loader(yaml.SafeLoader):
    """A loader that ignores values that only MkDocs can construct, such as functions."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def config() -> dict[str, Any]:
    """Return the configuration of MkDocs."""
    loaded: dict[str, Any] = yaml.load(CONFIG.read_text(), _Loader)
    return loaded


def navigation() -> list[str]:
    """Return the pages of the navigation, relative to docs/, in order."""
    return list(_pages(config()["nav"]))


def _pages(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _pages(each)


def dialect() -> ModuleType:
    """Return the module of the site that changes Markdown, imported from its folder as MkDocs does."""
    folder = str(ROOT / "docs" / "site")
    sys.path.insert(0, folder)
    try:
        return import_module("dialect")
    finally:
        sys.path.remove(folder)
