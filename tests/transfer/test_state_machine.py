"""A state machine makes the moves of its table, and no other."""

from enum import StrEnum

import pytest

from baton.transfer.errors import MoveError
from baton.transfer.state_machine import StateMachine


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    BROKEN = "broken"


MOVES = {
    Light.RED: frozenset({Light.GREEN, Light.BROKEN}),
    Light.GREEN: frozenset({Light.RED, Light.BROKEN}),
    Light.BROKEN: frozenset[Light](),
}


def test_a_move_of_the_table_changes_the_state_and_is_told_with_its_reason() -> None:
    told: list[tuple[Light, Light, str]] = []
    light = StateMachine("light 3", MOVES, Light.RED, lambda *move: told.append(move))
    light.move(Light.GREEN, "nobody crosses")
    assert (light.state, light.reason, light.is_final) == (Light.GREEN, "nobody crosses", False)
    light.move(Light.BROKEN)
    assert (light.state, light.reason, light.is_final) == (Light.BROKEN, "", True)
    assert told == [
        (Light.RED, Light.GREEN, "nobody crosses"),
        (Light.GREEN, Light.BROKEN, ""),
    ]


def test_a_move_that_the_table_lacks_is_refused_with_what_would_be_allowed() -> None:
    told: list[tuple[Light, Light, str]] = []
    light = StateMachine("light 3", MOVES, Light.RED, lambda *move: told.append(move))
    with pytest.raises(MoveError, match="light 3 cannot go from red to red") as refused:
        light.move(Light.RED)
    assert (refused.value.expected, refused.value.actual) == ("broken, green", "red")
    assert (light.state, told) == (Light.RED, [])


def test_a_final_state_is_left_by_no_move() -> None:
    light = StateMachine("light 3", MOVES, Light.BROKEN)
    with pytest.raises(MoveError, match="none, the state is final"):
        light.move(Light.RED)
