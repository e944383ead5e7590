"""Accessibility checks of a page in a browser with axe-core, an npm package kept in the user's cache."""

import hashlib
import subprocess
import tarfile
import tempfile
from os import environ
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

from browserkit import Browser

from tensile.sandbox.binaries import cache_directory

VERSION = "4.10.3"
SHA256 = "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb"
"""The checksum of the script."""
SERIOUS_IMPACTS = ("serious", "critical")
_SCRIPT = "package/axe.min.js"
_LIMIT = 120.0


class Violation(NamedTuple):
    """A rule that a page breaks: its name, and the elements that break it."""

    rule: str
    elements: tuple[str, ...]


def script() -> str:
    """Return the axe-core script, fetched the first time; "" if it cannot be fetched."""
    kept = cache_directory(environ) / f"axe-core-{VERSION}.js"
    if not kept.is_file():
        found = _fetched()
        if found is None:
            return ""
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(found)
    content = kept.read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256, f"{kept} is not axe-core {VERSION}: delete it"
    return content.decode()


def _fetched() -> bytes | None:
    """Return the script from the package; None without npm or its registry."""
    npm = which("npm")
    if npm is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"axe-core@{VERSION}", "--pack-destination", folder]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            return None
        package = next(Path(folder).glob("*.tgz"), None)
        if done.returncode or package is None:
            return None
        with tarfile.open(package) as archive:
            member = archive.extractfile(_SCRIPT)
            return member.read() if member is not None else None


async def violations(browser: Browser, axe: str) -> list[Violation]:
    """Return the serious and critical violations on the open page."""
    await browser.evaluate(f"{axe};0")
    found: list[dict[str, Any]] = await browser.evaluate("axe.run().then(found => found.violations)")
    return [
        Violation(str(one["id"]), tuple(str(node["html"])[:200] for node in one["nodes"]))
        for one in found
        if one["impact"] in SERIOUS_IMPACTS
    ]
