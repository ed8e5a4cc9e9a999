"""Fixtures and options that tests of several rooms share."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test fails for being slow: a machine may be busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

pytest_plugins = ["oracle.fixtures"]

CLUSTERS = Path(__file__).parent / "chaos", Path(__file__).parent / "e2e"
"""Folders in which every test is marked `cluster`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recall-prompts", type=int, default=200, help="questions, in every mode")
    parser.addoption("--fuzz", type=int, default=150, help="inputs, in every fuzz test of the APIs")
    parser.addoption("--race-mixes", type=int, default=12, help="mixes of requests, in every test")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent in CLUSTERS:
            item.add_marker(pytest.mark.cluster)
