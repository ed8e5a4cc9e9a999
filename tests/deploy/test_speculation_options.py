"""The spellings of options for draft tokens."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from baton.deploy.config_from import runs_mtp
from baton.deploy.errors import StartError
from baton.deploy.options.click_options import takes
from baton.deploy.options.drafts import DraftOptions, Speculation, speculation_of
from baton.engine.settings.choices import DRAFT_TOKENS, SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig

OFF, NGRAM, MTP = SpeculativeAlgorithm.OFF, SpeculativeAlgorithm.NGRAM, SpeculativeAlgorithm.MTP
AUTO = SpeculativeAlgorithm.AUTO
CONFIG = "--speculative-config"
NAME = "--speculative-algorithm"
TOPK, TOKENS = "--speculative-eagle-topk", "--speculative-num-draft-tokens"


def asked(*words: str) -> Speculation:
    """Return what these words ask for. Raises StartError, or UsageError in a test's words."""
    found: list[Speculation] = []

    @click.command()
    @takes(DraftOptions)
    def command(options: DraftOptions) -> None:
        found.append(speculation_of(options))

    result = CliRunner().invoke(command, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise click.UsageError(result.output)
    return found[0]


@pytest.mark.parametrize(
    ("words", "algorithm", "tokens"),
    [
        ((), OFF, DRAFT_TOKENS),
        ((NAME, "mtp"), MTP, DRAFT_TOKENS),
        ((NAME, "MTP", "--speculative-num-steps", "1"), MTP, 2),
        ((NAME, "NEXTN", "--speculative-num-steps", "2"), MTP, 3),
        ((NAME, "EAGLE", "--speculative-num-draft-tokens", "8"), MTP, 8),
        (
            (NAME, "nextn", "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "4"),
            MTP,
            4,
        ),
        ((NAME, "NGRAM", "--speculative-num-draft-tokens", "2"), NGRAM, 2),
        ((NAME, "nextn"), MTP, DRAFT_TOKENS),
        ((NAME, "eagle"), MTP, DRAFT_TOKENS),
        ((NAME, "AUTO"), AUTO, DRAFT_TOKENS),
        (  # the recipe of SGLang's page on Qwen3-Next
            (
                *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
                *("--speculative-num-draft-tokens", "4", "--speculative-algo", "NEXTN"),
            ),
            MTP,
            4,
        ),
        ((CONFIG, '{"method": "MTP", "num_speculative_tokens": 2}'), MTP, 3),
        ((CONFIG, '{"method": "qwen3_5_mtp", "num_speculative_tokens": 1}'), MTP, 2),
        ((CONFIG, '{"method": "nemotron_h_mtp", "num_speculative_tokens": 5}'), MTP, 6),
        ((CONFIG, '{"num_speculative_tokens": 1, "method": "deepseek_mtp"}'), MTP, 2),
        ((CONFIG, '{"method": "mtp", "num_speculative_tokens": 1}'), MTP, 2),
        ((CONFIG, '{"method": "qwen3_next_mtp", "num_speculative_tokens": 3}'), MTP, 4),
        ((CONFIG, '{"method": "NGRAM", "num_speculative_tokens": 7}'), NGRAM, 8),
    ],
)
def test_sglangs_and_vllms_words_are_read(
    words: tuple[str, ...], algorithm: SpeculativeAlgorithm, tokens: int
) -> None:
    assert asked(*words) == Speculation(algorithm, tokens)


@pytest.mark.parametrize(
    ("words", "tokens", "steps"),
    [
        ((), DRAFT_TOKENS, None),
        ((TOKENS, "16"), 16, None),
        ((TOKENS, "16", "--speculative-num-steps", "4"), 16, 4),
        (("--speculative-num-steps", "4"), 9, 4),
        (("--speculative-num-steps", "15"), 16, 15),
    ],
)
@pytest.mark.parametrize("algorithm", [NGRAM, MTP])
def test_trees_have_any_number_of_steps(
    algorithm: SpeculativeAlgorithm, words: tuple[str, ...], tokens: int, steps: int | None
) -> None:
    found = asked(NAME, algorithm.value, TOPK, "2", *words)
    assert found == Speculation(algorithm, tokens, 2, steps)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            (NAME, "EAGLE", "--speculative-draft-model-path", "draft"),
            "--speculative-draft-model-path draft: there are no draft models",
        ),
        (
            (NAME, "mtp", "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "8"),
            r"--speculative-num-steps \+ 1 = 4.*got 8",
        ),
        (
            (NAME, "auto", "--speculative-eagle-topk", "4"),
            "--speculative-eagle-topk 4 makes trees of guesses, and auto chooses the length of",
        ),
        (
            (NAME, "ngram", TOPK, "2", "--speculative-num-steps", "5", TOKENS, "5"),
            "--speculative-num-steps 5: a tree of --speculative-num-draft-tokens 5 has",
        ),
        ((NAME, "ngram", TOKENS, "9"), "must be 2 to 8 for guesses of one chain; got 9"),
        (
            (TOPK, "2", CONFIG, '{"method": "ngram", "num_speculative_tokens": 2}'),
            "asks for chains",
        ),
        ((CONFIG, '{"method": "eagle", "num_speculative_tokens": 1}'), "method 'eagle' is not"),
        ((CONFIG, "mtp"), "expected JSON"),
        ((CONFIG, "[]"), "expected an object with method and num_speculative_tokens"),
        (
            (CONFIG, '{"method": "eagle3", "num_speculative_tokens": 2}'),
            "method 'eagle3' is not there; expected mtp",
        ),
        (
            (CONFIG, '{"method": "mtp", "model": "m", "num_speculative_tokens": 2}'),
            "model cannot be given",
        ),
        ((CONFIG, '{"method": "mtp"}'), "from 1 to 7; got None"),
        ((CONFIG, '{"method": "mtp", "num_speculative_tokens": 8}'), "from 1 to 7; got 8"),
        ((CONFIG, '{"method": "mtp", "num_speculative_tokens": true}'), "got True"),
        (
            (NAME, "mtp", CONFIG, '{"method": "mtp", "num_speculative_tokens": 1}'),
            "give it alone",
        ),
    ],
)
def test_what_is_not_there_is_refused_by_name(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(StartError, match=says):
        asked(*words)


@pytest.mark.parametrize(
    "words",
    [(NAME, "EAGLE3"), ("--speculative-num-steps", "16"), ("--speculative-num-draft-tokens", "1")],
)
def test_words_out_of_range_are_refused_at_once(words: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError, match="Invalid value"):
        asked(*words)


def test_steps_and_tokens_say_the_same() -> None:
    """SGLang's rule for a chain: draft tokens are the steps and the newest token."""
    for steps in range(1, 8):
        asked_steps = asked(NAME, "mtp", "--speculative-num-steps", str(steps))
        asked_tokens = asked(NAME, "mtp", "--speculative-num-draft-tokens", str(steps + 1))
        by_vllm = asked(CONFIG, f'{{"method": "mtp", "num_speculative_tokens": {steps}}}')
        assert asked_steps == asked_tokens == by_vllm == Speculation(MTP, steps + 1)


def test_auto_runs_the_layer_where_there_is_one_and_mtp_always() -> None:
    assert [runs_mtp(each) for each in (OFF, NGRAM, AUTO, MTP)] == [False, False, None, True]


def test_windows_are_the_next_size_that_steps_have() -> None:
    def window(algorithm: SpeculativeAlgorithm, tokens: int) -> int:
        return EngineConfig(
            Path("m"), speculative_algorithm=algorithm, speculative_num_draft_tokens=tokens
        ).window

    assert [window(MTP, tokens) for tokens in range(2, 9)] == [2, 4, 4, 8, 8, 8, 8]
    assert [window(NGRAM, tokens) for tokens in (9, 16)] == [16, 16]
    assert window(OFF, 8) == 1
