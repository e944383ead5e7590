"""Tests of scenarios: a topology and cluster states are the input, and the engine's actions are compared with a record.

Each YAML file in this folder has a text of the same name. TENSILE_RECORD=1 in the environment records the texts again:
read what changed before you keep it.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from scenariokit import as_text, described, final_state, run_act, start_scenario
from stagekit import EngineSimulation
from virtualtime import in_virtual_time

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.yaml"))
RECORDING = bool(os.environ.get("TENSILE_RECORD"))


@in_virtual_time
async def play(scenario: dict[str, Any], lines: list[str]) -> None:
    """Play a scenario, and record it in `lines`."""
    simulation = start_scenario(scenario)
    try:
        await _play(scenario, simulation, lines)
    finally:
        await simulation.stop()


async def _play(scenario: dict[str, Any], simulation: EngineSimulation, lines: list[str]) -> None:
    lines.append(f"# {scenario['about']}")
    simulation.start()
    await simulation.wait_idle()
    if not scenario.get("before"):
        lines += ["", "start:", *_indented(described(simulation.observer.records))]
    for act in scenario.get("then") or ():
        simulation.observer.records.clear()
        await run_act(simulation, act)
        await simulation.wait_idle()
        lines += ["", f"{as_text(act)}:", *_indented(described(simulation.observer.records))]
    lines += ["", "in the end:", *_indented(await final_state(simulation))]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in "\n".join(lines).split("\n")] if lines else ["  nothing"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """The engine's actions are the recorded ones."""
    record = path.with_suffix(".txt")
    lines: list[str] = []
    play(yaml.safe_load(path.read_text()), lines)
    got = "\n".join(lines) + "\n"
    if RECORDING:
        record.write_text(got)
    assert got == record.read_text()
