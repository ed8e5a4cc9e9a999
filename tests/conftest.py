"""Fixtures and options that tests of several rooms share."""

import pytest
from hypothesis import HealthCheck, settings

# No test fails for being slow: a machine may be busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

pytest_plugins = ["oracle.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recall-prompts", type=int, default=200, help="questions, in every mode")
    parser.addoption("--fuzz", type=int, default=150, help="inputs, in every fuzz test of the APIs")
    parser.addoption("--race-mixes", type=int, default=12, help="mixes of requests, in every test")
