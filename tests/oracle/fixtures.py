"""The `oracle` fixture, for parity tests anywhere under tests/."""

import pytest
from oracle.reference import Oracle


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """transformers over tiny checkpoints; skips where it is not installed."""
    pytest.importorskip("transformers")
    return Oracle(tmp_path_factory.mktemp("checkpoints"))
