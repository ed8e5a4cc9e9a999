"""The tables of moves in docs/state-machines.md are those of the code."""

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

import pytest
from test_layout import ROOT

from baton.api.admission import place_step
from baton.decode import request_phase
from baton.engine.request import request
from baton.prefill import writer_state
from baton.transfer import handoff

PAGE = ROOT / "docs" / "state-machines.md"
MACHINES: dict[str, Mapping[Any, Collection[StrEnum]]] = {  # its states are keys
    "PlaceStep": place_step.ALLOWED,
    "Phase": request_phase.ALLOWED,
    "HandoffState": handoff.ALLOWED,
    "WriterState": writer_state.ALLOWED,
    "RequestState": request.ALLOWED_MOVES,
}


def tables() -> dict[str, dict[str, set[str]]]:
    """Return the table of each section that has one: the states that may follow each state."""
    found = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, flags=re.MULTILINE)
        if rows:
            found[section.splitlines()[0]] = {
                name: set(re.findall(r"`(\w+)`", followers)) for name, followers in rows
            }
    return found


def test_the_page_has_a_table_for_each_machine_and_no_other() -> None:
    assert tables().keys() == MACHINES.keys()


@pytest.mark.parametrize("name", MACHINES)
def test_the_table_of_moves_is_that_of_the_code(name: str) -> None:
    ours = {state.value: {to.value for to in moves} for state, moves in MACHINES[name].items()}
    assert tables()[name] == ours


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_has_its_moves_and_stands_in_the_picture(name: str) -> None:
    picture = PAGE.read_text().split("\n## ")[1]
    kinds: set[type[StrEnum]] = {type(state) for state in MACHINES[name]}
    assert [set(kind) for kind in kinds] == [set(MACHINES[name])]
    reached = {state for state in MACHINES[name] if re.search(rf"\b{state}\b", picture)}
    early_ends = {
        "quarantined",
        "failed",
        "cancelled",
        "expired",
        "cancelling",
        "draining",
        "stopped",
    }
    assert {state.value for state in set(MACHINES[name]) - reached} <= early_ends
