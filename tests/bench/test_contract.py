"""Tests of the benchmarks' output."""

import json

import pytest

from baton.bench.contract import Report, as_json, percentile, show, summarise


def test_a_key_is_summarised_by_its_median_and_its_relative_spread() -> None:
    merged = summarise([{"a": 10.0}, {"a": 12.0}, {"a": 11.0}])
    assert merged == {"a": 11.0, "a_spread": pytest.approx(2 / 11)}


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 5.0), (0.51, 6.0), (0.9, 9.0), (0.99, 10.0), (1.0, 10.0)]
)
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(
    share: float, expected: float
) -> None:
    assert percentile([float(n) for n in range(10, 0, -1)], share) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def _report() -> Report:
    return Report(
        "serve",
        config={"seed": 7},
        results={"output_tok_s": 123.4567891, "output_tok_s_spread": 0.0123},
        limits={"bare_output_tok_s": 200.0},
        peers={"vllm": {"skipped": "not installed"}},
    )


def test_json_is_one_last_line_with_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    show(_report(), json_wanted=True)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found) == {"bench", "baton", "machine", "config", "results", "limits", "peers"}
    assert {"cpu", "cores", "gpu", "torch"} <= set(found["machine"])
    assert found["results"]["output_tok_s"] == 123.457
    assert found["peers"] == {"vllm": {"skipped": "not installed"}}
    assert "\n" not in as_json(_report())


def test_the_table_shows_results_with_spreads_limits_and_peers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(_report(), json_wanted=False)
    out = capsys.readouterr().out
    for shown in ("output_tok_s", "123.5", "1.2%", "limit: bare_output_tok_s", "vllm: skipped"):
        assert shown in out
    assert "output_tok_s_spread" not in out
