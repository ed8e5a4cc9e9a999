"""Fixtures and options that tests of several rooms share."""

import gc
import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SEED = os.environ.get("BATON_TEST_SEED")
"""Tests draw fresh inputs in every run; with this, the same in each: so only a change of the code
can make them fail in one run and pass in another."""

# No test fails for being slow: a machine may be busy.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(SEED)
)
settings.load_profile("patient")

pytest_plugins = ["oracle.fixtures"]

CLUSTERS = Path(__file__).parent / "chaos", Path(__file__).parent / "e2e"
"""Folders in which every test is marked `cluster`."""


def seed_generators(of: str) -> None:
    """Seed the generators that tests draw from, for a test or for the import of all of them."""
    seed = random.SystemRandom().randrange(1 << 62)
    if SEED:
        random.seed(f"{SEED} {of}")
        seed = random.randrange(1 << 62)
    random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def pytest_configure() -> None:
    seed_generators("imports")


@pytest.hookimpl(tryfirst=True)  # before fixtures draw
def pytest_runtest_setup(item: pytest.Item) -> None:
    seed_generators(item.nodeid)


@pytest.fixture
def seeded() -> random.Random:
    """Random inputs; the seed is printed with a failing test's output."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recall-prompts", type=int, default=200, help="questions, in every mode")
    parser.addoption("--fuzz", type=int, default=150, help="inputs, in every fuzz test of the APIs")
    parser.addoption("--race-mixes", type=int, default=12, help="mixes of requests, in every test")


def pytest_collection_finish() -> None:
    """Leave what was collected out of all garbage collections: thirteen thousand tests are a
    million objects, of which each whole collection would look at every one, for most of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent in CLUSTERS:
            item.add_marker(pytest.mark.cluster)
