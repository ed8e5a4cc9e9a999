"""Tests of `baton bench load` on a small checkpoint."""

from pathlib import Path

import pytest

from baton.bench.loading.loading import make_checkpoint, measure
from baton.engine.settings.choices import WeightFormat


@pytest.mark.parametrize(
    ("gb", "dtype"), [(0.09, "bfloat16"), (0.26, "bfloat16"), (0.175, "float32")]
)
def test_a_checkpoint_is_as_large_as_it_was_asked_for(
    tmp_path: Path, gb: float, dtype: str
) -> None:
    """The sizes are those of whole groups of layers: nothing else can be made."""
    files = make_checkpoint(tmp_path, gb, 30, dtype, seed=3)
    assert len(files) > 2
    assert sum(file.stat().st_size for file in files) == pytest.approx(gb * 1e9, rel=0.05)


def test_a_load_reads_every_weight_once_and_keeps_none_twice(tmp_path: Path) -> None:
    files = make_checkpoint(tmp_path, 0.1, 30, "bfloat16", seed=3)
    results, limits = measure(files, "bfloat16", WeightFormat.MODEL)
    assert 0.95 < results["peak_memory_ratio"] < 1.2
    converted, _ = measure(files, "float32", WeightFormat.MODEL)
    assert 0.95 < converted["peak_memory_ratio"] < 1.2, "what was copied is let go"
    assert min(results["gb_s"], results["gb_s_cached"], *limits.values()) > 0.0
