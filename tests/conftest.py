"""Fixtures and options that tests of several rooms share."""

import pytest

pytest_plugins = ["oracle.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recall-prompts", type=int, default=200, help="questions, in every mode")
    parser.addoption("--race-mixes", type=int, default=12, help="mixes of requests, in every test")
