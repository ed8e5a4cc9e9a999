"""The requests of `baton restart` and `baton drain`, as they travel and where they are wrong."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from baton.deploy.cluster.change_lock import ChangeLock
from baton.deploy.cluster.change_requests import DrainRequest, RestartRequest
from baton.deploy.commands.restart import restart
from baton.deploy.errors import ControlError, ScaleError


def test_requests_arrive_as_they_were() -> None:
    wanted = RestartRequest(("decode", "router"), 1.5)
    assert RestartRequest.parse(json.loads(json.dumps(wanted.arguments))) == wanted
    drained = DrainRequest("decode-1", 0.0, True)
    assert DrainRequest.parse(json.loads(json.dumps(drained.arguments))) == drained


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"roles": ["both"], "drain_s": 1},
        {"roles": ["router"], "drain_s": -1},
        {"roles": "router", "drain_s": 1},
        {"roles": ["router"], "drain_s": True},
    ],
)
def test_a_wrong_restart_is_refused_with_what_is_right(wrong: dict[str, Any]) -> None:
    with pytest.raises(ControlError, match="some of prefill, decode, router"):
        RestartRequest.parse(wrong)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"worker": 1, "drain_s": 1, "undo": False}, {"worker": "d", "drain_s": 1, "undo": 0}],
)
def test_a_wrong_drain_is_refused_with_what_is_right(wrong: dict[str, Any]) -> None:
    with pytest.raises(ControlError, match="worker, as in decode-0"):
        DrainRequest.parse(wrong)


def test_a_restart_that_is_not_rolling_is_no_request() -> None:
    result = CliRunner().invoke(restart, [])
    assert result.exit_code == 2 and "--rolling" in result.output


def test_one_change_at_a_time() -> None:
    lock = ChangeLock()
    with lock.held("a rolling restart"):
        with pytest.raises(ScaleError, match="busy with a rolling restart"):
            with lock.held("growing"):
                raise AssertionError("two changes at once")
    with lock.held("growing"):
        pass
