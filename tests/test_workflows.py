"""GitHub's workflows run targets of the Makefile, with a deadline each and no right to write."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_layout import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def targets(job: dict[str, Any]) -> set[str]:
    """Return the targets that a job makes, one for each entry of its matrix where it has one."""
    commands = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    named = set(re.findall(r"\bmake (\S+)$", commands, flags=re.MULTILINE))
    if '"$RUNS"' not in named:
        return named
    return named - {'"$RUNS"'} | set(job["strategy"]["matrix"]["runs"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_makes_targets_that_exist_within_a_deadline(path: Path) -> None:
    for job in jobs(path).values():
        assert targets(job) and targets(job) <= TARGETS
        assert job["timeout-minutes"] < 360  # GitHub's own limit, which says nothing


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_every_change_is_checked_tested_and_built_and_every_night_has_its_faults() -> None:
    made = {path.stem: set[str]().union(*map(targets, jobs(path).values())) for path in WORKFLOWS}
    assert made["ci"] >= {"check", "test", "wheel"}
    assert made["nightly"] == {"chaos-faults", "chaos-load"}
    assert {"chaos-faults", "chaos-load"} == set(
        re.findall(r"^chaos: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    )
