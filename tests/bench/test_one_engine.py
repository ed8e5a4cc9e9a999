"""`baton bench decode` and `baton bench prefill`: their keys, and what their limits count."""

import json
import math
import random
from itertools import product
from math import prod
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from eight_bit_packing import keeps_eight_bit
from mtp_models import TRAINED

from baton.bench.checkpoints import GRANITE_SMALL, HYBRID_191M, write_checkpoint
from baton.bench.one_engine.decode import decode
from baton.bench.one_engine.paired import least_median, middle
from baton.bench.one_engine.prefill import prefill
from baton.bench.one_engine.roofline import Machine
from baton.bench.one_engine.speculate import speculate
from baton.bench.one_engine.timed_engine import TimedEngine
from baton.bench.one_engine.tp import tp
from baton.bench.one_engine.tracking import tracking
from baton.engine.assembly.loader import declared_weights
from baton.engine.models.family_table import read_config
from baton.kernels.torch_kernels import TORCH

TINY = {
    **GRANITE_SMALL,
    "hidden_size": 32,
    "mamba_d_head": 8,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_chunk_size": 64,
    "shared_intermediate_size": 32,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TINY)


def report(command, *arguments: str) -> dict:
    done = CliRunner().invoke(command, [*arguments, "--json", "--no-peers", "--threads", "1"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output.splitlines()[-1])


@pytest.mark.parametrize("weight_format", ["model", "int8", "fp8"])
def test_decode_reports_every_batch_its_limits_and_its_spread(folder, weight_format) -> None:
    if weight_format == "fp8" and not keeps_eight_bit(torch.bfloat16):
        pytest.skip("this CPU's products do not read 8 bits")
    found = report(
        decode, "--model", str(folder), "--batch", "1,3", "--prompt-len", "9", "--steps", "8",
        "--weight-format", weight_format,
    )  # fmt: skip
    for batch in (1, 3):
        for key in ("tok_s", "step_ms", "limit_share", "bandwidth_share"):
            assert found["results"][f"{key}_b{batch}"] > 0
            assert f"{key}_b{batch}_spread" in found["results"]
        shares = found["results"]
        assert shares[f"limit_share_b{batch}"] >= shares[f"bandwidth_share_b{batch}"] * 0.5
    assert found["limits"]["read_gb_s"] > 0
    assert "skipped" in found["peers"]["transformers"] and "skipped" in found["peers"]["llama_cpp"]


def test_tracking_measures_two_intervals_in_turns(folder) -> None:
    arguments = ["--model", str(folder), "--batch", "3", "--steps", "64", "--turns", "3"]
    done = CliRunner().invoke(tracking, [*arguments, "--intervals", "64,256", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output.splitlines()[-1])
    results = found["results"]
    assert found["config"]["grids"] == [64, 256]
    assert results["tracked_64"] == 3 / 64 > results["tracked_256"]
    assert results["tok_s_64"] > 0 and results["tok_s_256"] > 0
    assert results["tok_cpu_s_64"] > 0 and results["tok_cpu_s_256"] > 0
    for key in ("ratio", "cpu_ratio"):
        assert 0 < results[f"{key}_low"] <= results[key] <= results[f"{key}_high"]


def test_speculate_reports_what_was_accepted_and_compares_answers(folder) -> None:
    arguments = ["--model", str(folder), "--batches", "2", "--acceptance", "0,1", "--turns", "3"]
    arguments += ["--tokens", "24", "--json"]
    done = CliRunner().invoke(speculate, arguments)
    assert done.exit_code == 0, done.output
    results = json.loads(done.output.splitlines()[-1])["results"]
    assert results["accepted_2_0"] == 0 and results["length_2_0"] == 1
    assert results["accepted_2_1"] == 1 and results["length_2_1"] > 3
    assert results["accepted_2_prediction"] == 1
    assert results["accepted_2_shared"] > 0.8
    sources = ("ngram", "guessless", "prediction", "shared")
    for name in ("0", "1", *sources, *(f"auto_{source}" for source in sources)):
        gain, low, high = (results[f"gain_2_{name}{end}"] for end in ("", "_low", "_high"))
        assert 0 < low <= gain <= high
    loss = 1 - results["gain_2_auto_guessless"]  # of six digits, as all that is printed
    assert results["loss_2_auto_guessless"] == pytest.approx(loss, abs=1e-5)
    more = ["--turns", "5", "--only", "auto_guessless"]
    done = CliRunner().invoke(speculate, [*arguments, *more])
    results = json.loads(done.output.splitlines()[-1])["results"]
    upper = 1 - results["gain_2_auto_guessless_low"]
    assert results["loss_2_auto_guessless_upper"] >= upper - 1e-5
    assert not any(key.startswith("gain_2_ngram") for key in results)
    done = CliRunner().invoke(speculate, [*arguments, "--only", "ngram,auto_0"])
    assert done.exit_code and "auto_0 are not among 0, 1, ngram, guessless" in done.output


def test_speculate_measures_the_drafts_of_an_mtp_layer(folder) -> None:
    def done(model: Path):
        arguments = ["--model", str(model), "--batches", "2", "--acceptance", "0,1"]
        arguments += ["--turns", "3", "--tokens", "24", "--only", "mtp", "--json"]
        return CliRunner().invoke(speculate, arguments)

    found = done(TRAINED["qwen3_next"])
    assert found.exit_code == 0, found.output
    results = json.loads(found.output.splitlines()[-1])["results"]
    for name in ("mtp", "mtp_0", "mtp_1", "auto_mtp"):
        gain, low, high = (results[f"gain_2_{name}{end}"] for end in ("", "_low", "_high"))
        assert 0 < low <= gain <= high
        assert results[f"tok_s_2_{name}"] > 0
    shares = [results[f"acceptance_mtp_{depth}_b2"] for depth in (1, 2, 3)]
    assert 1 >= shares[0] >= shares[1] >= shares[2] > 0
    assert results["entries_ttft_2"] > 0 and results["entries_decode_2"] > 0
    assert not any("ngram" in key for key in results)
    assert "multi-token prediction" in str(done(folder).exception)


def test_speculate_compares_trees_with_chains_of_as_many_tokens() -> None:
    arguments = ["--model", str(TRAINED["qwen3_next"]), "--batches", "1,2", "--window", "8"]
    arguments += ["--turns", "3", "--tokens", "24", "--only", "tree", "--steps", "3", "--json"]
    done = CliRunner().invoke(speculate, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output.splitlines()[-1])
    assert found["config"]["topk"] == 4 and found["config"]["steps"] == 3
    for size, text, drafts in product((1, 2), ("", "_parting"), ("", "_mtp")):
        for kind, most in (("tree", 4), ("chain", 8)):
            assert found["results"][f"gain_{size}_{kind}{drafts}{text}"] > 0
            assert 1 <= found["results"][f"tokens_a_step_{kind}{drafts}{text}_b{size}"] <= most


def test_the_least_median_holds_in_19_of_20_cases() -> None:
    assert [least_median([1.0] * count) for count in (3, 4, 5)] == [None, None, 1.0]
    ten = [0.9, 0.8, *[1.0] * 8]
    assert (least_median(ten), least_median([*ten, 0.7, 0.6])) == (0.9, 0.8)
    rng = random.Random(1)
    turns = [[rng.expovariate(1.0) for _ in range(10)] for _ in range(2000)]
    above = sum(float(least_median(each) or 0) > math.log(2) for each in turns)
    assert 0 < above < 100


def test_tp_compares_answers_of_several_ranks_with_those_of_one(folder) -> None:
    arguments = ["--model", str(folder), "--batches", "2", "--turns", "3", "--tokens", "8"]
    done = CliRunner().invoke(tp, [*arguments, "--seed", "1", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output.splitlines()[-1])
    results = found["results"]
    assert results["same_2"] == 1
    assert 0 < results["ratio_2_low"] <= results["ratio_2"] <= results["ratio_2_high"]
    assert results["tok_s_1_2"] > 0 and results["tok_s_2_2"] > 0 and results["sums_2"] > 2
    assert results["sum_us_2"] > 0 and found["limits"]["copy_us_2"] > 0


def test_the_interval_of_a_ratio_leaves_out_pairs_that_a_neighbour_disturbed() -> None:
    found = middle("ratio", [1.0] * 40 + [0.1, 0.2, 7.0, 9.0])
    assert (found["ratio"], found["ratio_low"], found["ratio_high"]) == (1.0, 1.0, 1.0)
    assert found["ratio_spread"] == pytest.approx(8.9)
    halves = middle("ratio", [0.9] * 20 + [1.1] * 20)
    assert (halves["ratio_low"], halves["ratio_high"]) == (0.9, 1.1)
    assert middle("ratio", [0.5, 2.0])["ratio_low"] == 0.5


def test_prefill_reports_every_batch_and_the_first_token(folder) -> None:
    found = report(prefill, "--model", str(folder), "--batch", "1,2", "--prompt-len", "40")
    assert {"tok_s_b1", "tok_s_b2", "ttft_ms_512"} <= set(found["results"])


def test_prefill_draws_its_prompts_from_the_seed_that_it_reports(folder, monkeypatch) -> None:
    drawn: list[tuple[int, ...]] = []
    draw = TimedEngine.prompt

    def noted(self: TimedEngine, length: int) -> tuple[int, ...]:
        drawn.append(draw(self, length))
        return drawn[-1]

    monkeypatch.setattr(TimedEngine, "prompt", noted)
    arguments = ("--model", str(folder), "--batch", "1", "--prompt-len", "40")
    reported = report(prefill, *arguments)["config"]["seed"]
    first = drawn.copy()
    assert len(first) >= 3 and {len(prompt) for prompt in first} == {40, 512}
    drawn.clear()
    assert report(prefill, *arguments, "--seed", str(reported))["config"]["seed"] == reported
    assert drawn == first
    drawn.clear()
    report(prefill, *arguments, "--seed", str(reported + 1))
    assert drawn != first


@pytest.mark.parametrize("config", [TINY, HYBRID_191M, {**TINY, "tie_word_embeddings": False}])
def test_the_limits_count_each_matrix_once(tmp_path, config) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_config(tmp_path, torch.float32, torch.float32)
    counted = sum(prod(shape) * n for shape, n in Machine.products(model).items())
    shapes = declared_weights(model).shapes
    matrices = sum(prod(shape) for shape in shapes.values() if len(shape) == 2)
    if not config["tie_word_embeddings"]:
        matrices -= config["vocab_size"] * config["hidden_size"]  # looked up, not multiplied
    assert counted == matrices


def test_a_step_never_takes_less_than_its_bytes(folder) -> None:
    machine = Machine(read_config(folder, torch.float32, torch.float32), torch.float32, TORCH)
    for rows in (1, 8):
        step = machine.decode_step(rows, 100)
        assert step.seconds >= step.bandwidth_seconds > 0
    assert (
        machine.decode_step(8, 100).bandwidth_seconds
        > machine.decode_step(1, 100).bandwidth_seconds
    )
