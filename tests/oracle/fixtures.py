"""The fixtures of checkpoints and their references, for tests anywhere under tests/."""

from collections.abc import Iterator

import pytest
from mtp_models import MtpCheckpoints
from oracle.reference import Oracle


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """transformers over tiny checkpoints; skips where it is not installed."""
    pytest.importorskip("transformers")
    oracle = Oracle(tmp_path_factory.mktemp("checkpoints"))
    yield oracle
    print(f"{oracle.ties} near ties went the other way in {oracle.steps} compared steps")
    print(f"{oracle.doubts} of {oracle.prompts} compared prompts had tokens in doubt")
    assert oracle.doubts <= max(2, oracle.prompts / 100), "too many to be rounding"
    assert oracle.ties <= max(1, oracle.steps / 1000), "too many to be near ties"


@pytest.fixture(scope="session")
def mtp_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> MtpCheckpoints:
    """Tiny checkpoints with a layer of multi-token prediction; skips without transformers."""
    pytest.importorskip("transformers")
    return MtpCheckpoints(tmp_path_factory.mktemp("mtp"))
