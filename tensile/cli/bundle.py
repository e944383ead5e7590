"""`tensile bundle`: what a bug report needs, in one archive.

The archive has the output of commands that a maintainer would ask for: versions, doctor, plan, status, metrics and a
snapshot. Each of them already leaves out the values of Secrets, and credentials are never read into any of them. Of the
plan, all values are left out. So nothing has to be searched for secrets afterwards, which would find only some of them.
A command that fails does not end the others: its error is in the archive, and is often what the report is about.
"""

import importlib.metadata
import io
import os
import platform
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from tensile import __version__
from tensile.cli.plan import plan
from tensile.cli.status import as_json as as_status_json
from tensile.diagnostics.commands import as_json, pictured
from tensile.diagnostics.doctor.run import examine
from tensile.engine.lower import ClusterAccess
from tensile.engine.status.query import read_engine_status, read_metrics
from tensile.errors import TensileError
from tensile.text import clean
from tensile.topology import Topology, decode, parse

_PACKAGES = ("aiohttp", "kubernetes", "msgspec", "orjson", "pydantic", "typer", "uvloop", "watchfiles")
_MODE = 0o600
ERRORS = "errors.txt"
"""The part that lists what could not be collected, and why; empty if everything could be."""


def collect(name: str, data: bytes, directory: Path, *, allow_exec_plugins: bool) -> dict[str, bytes]:
    """Return the parts of a bundle by file name.

    `name` and `data` are the topology file's name and content, `directory` is where its relative paths start from.
    """
    found = {"versions.json": as_json(_versions()).encode(), "topology.yaml": data}
    errors: dict[str, str] = {}
    try:
        topology = parse(decode(data, name=name), name=name)
    except TensileError as error:
        errors["topology.yaml"] = str(error)
    else:
        for part, output_of in _commands(
            topology, name, data, directory, allow_exec_plugins=allow_exec_plugins
        ).items():
            try:
                found[part] = output_of().encode()
            except TensileError as error:
                errors[part] = str(error)
    found[ERRORS] = "".join(f"{part}: {clean(error)}\n" for part, error in errors.items()).encode()
    return found


def _commands(
    topology: Topology, name: str, data: bytes, directory: Path, *, allow_exec_plugins: bool
) -> Mapping[str, Callable[[], str]]:
    """Return what makes each part that needs the clusters or the engine."""
    access = ClusterAccess(directory, allow_exec_plugins)

    def planned() -> str:
        """Return the plan as JSON."""
        return without_values(plan(topology, access, "json", colour=False).text)

    return {
        "doctor.json": lambda: examine(topology, access, "json", colour=False)[0],
        "plan.json": planned,
        "status.json": lambda: as_status_json(read_engine_status(data, name).document),
        "metrics.txt": lambda: read_metrics(topology.telemetry),
        "snapshot.json": lambda: pictured(topology, access, None).to_bytes().decode(),
    }


def without_values(plan_document: str) -> str:
    """Return a plan as JSON whose operations have no values: environment and arguments of pods may be secret."""
    document = orjson.loads(plan_document)
    for change in document["changes"]:
        change["operations"] = [{key: one[key] for key in ("op", "path")} for one in change["operations"]]
    return as_json(document)


def _versions() -> dict[str, object]:
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"tensile": __version__, "python": python, "platform": platform.platform(), "packages": packages}


def write(parts: Mapping[str, bytes], archive: Path) -> None:
    """Write an archive that only its owner may read. Raises TensileError if it exists, or cannot be written."""
    try:
        with (
            os.fdopen(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as stream,
            tarfile.open(fileobj=stream, mode="w:gz") as tar,
        ):
            for name, content in parts.items():
                entry = tarfile.TarInfo(f"tensile-bundle/{name}")
                entry.size, entry.mode, entry.mtime = len(content), _MODE, int(time.time())
                tar.addfile(entry, io.BytesIO(content))
    except FileExistsError:
        raise TensileError(f"{archive}: exists already: name another archive with -o") from None
    except OSError as error:
        raise TensileError(f"{archive}: cannot be written: {error.strerror}: name another archive with -o") from None
