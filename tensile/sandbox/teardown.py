"""Ends a sandbox and removes its files, and nothing else.

Apiservers go before etcd and by SIGKILL: asked politely, an apiserver waits a minute for open watches, and without its
etcd it does not end at all. Only names that the sandbox wrote down as its own are removed.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tensile.sandbox import processes, remains
from tensile.sandbox.claim import claimed
from tensile.sandbox.state import FILE, NEW_FILE, Process, State, load

APISERVER = "kube-apiserver"


def end(directory: Path) -> list[str] | None:
    """Tear down what is in the directory, once nobody else works on it.

    Returns:
        The names that were not ours and stay; None when there is no sandbox.
    """
    if load(directory) is None:
        return None
    with claimed(directory):
        state = load(directory)
        return None if state is None else tear_down(directory, state)


def tear_down(directory: Path, state: State) -> list[str]:
    """End the processes, remove the files; return the names in the directory that were not ours and stay."""
    end_processes(state)
    remove_entries(directory, [*state.entries, NEW_FILE, FILE])
    return remove_made(directory, state.made)


def end_processes(state: State) -> None:
    """End all processes, and clear away what the kernel keeps of a real node."""
    processes.end_all(state.identity, apiservers(state))
    if state.options.real_node:
        remains.clear(state.identity)


def apiservers(state: State) -> list[Process]:
    """Return the apiservers' processes."""
    every = [cluster.processes.get(APISERVER) for cluster in state.clusters.values()]
    return [process for process in every if process is not None]


def remove_entries(directory: Path, entries: Sequence[str]) -> None:
    """Remove these files and folders of the directory; the state goes last, so that a killed removal can go on."""
    for entry in entries:
        path = directory / entry
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove_made(directory: Path, made: Sequence[str]) -> list[str]:
    """Remove the directories that were made for the sandbox, deepest first, as far as they are empty."""
    left = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    for path in map(Path, made):
        try:
            path.rmdir()
        except OSError:
            break
    return left
