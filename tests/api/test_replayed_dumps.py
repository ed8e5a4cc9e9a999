"""A request that was dumped and is sent again has the same parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from fake_backend import Connect, FakeBackend

from baton.api.backend import GenerateRequest, ModelInfo
from baton.bench.request_replay.bodies import Bodies
from baton.bench.request_replay.dumps import Dumped, read_dumps
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.router.dump.dump_options import DumpOptions
from baton.router.dump.request_dump import RequestDump

EVERY = SamplingParams(
    temperature=0.5, top_k=7, top_p=0.25, min_p=0.125, repetition_penalty=1.5,
    presence_penalty=0.75, frequency_penalty=-0.5, seed=2**63 + 5,
    logit_bias=((3, 1.5), (9, -100.0)), allowed_token_ids=(3, 9, 11), bad_words=("cat", "dog"),
    stop_token_ids=(4, 5), stop=("END", "\n"), stop_regex=("a+b",), include_stop=True,
    ignore_eos=True, min_tokens=2, max_tokens=9, logprobs=2, prompt_logprobs_start=0,
    prompt_logprobs=2,
)  # fmt: skip
GRAMMARS = (
    Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object","properties":{"a":{"type":"integer"}}}'),
    Grammar(GrammarKind.REGEX, "a+"),
    Grammar(GrammarKind.LARK, 'start: "a" | "b"'),
    Grammar(GrammarKind.EBNF, 'root ::= "a"'),
)
NO_FIELD = {"grammar", "logprob_token_ids"}
"""Parameters that EVERY lacks: grammars are in GRAMMARS, and no stream can ask for the other."""


@dataclass
class OwnDefaults(FakeBackend):
    """A model whose folder has sampling defaults."""

    async def models(self) -> Sequence[ModelInfo]:
        (model,) = await super().models()
        return [replace(model, sampling_defaults={"temperature": 0.25, "top_k": 3, "top_p": 0.5})]


@pytest.fixture
def backend(tokenizer) -> FakeBackend:  # type: ignore[no-untyped-def]
    return OwnDefaults(tokenizer)


def dumped(folder: Path, sampling: SamplingParams, *, prompts: bool = True) -> Dumped:
    """Write a dump of one request and read it again."""
    dump = RequestDump.open(DumpOptions(folder, prompts), "toy", lambda: 0.0)
    dump.ended(GenerateRequest("0" * 32, (5, 6, 7), sampling), 0.0, 4, "length")
    dump.close()
    (found,) = read_dumps(folder)
    return found


async def replayed(connect: Connect, backend: FakeBackend, request: Dumped) -> SamplingParams:
    """Send the body of a dumped request, and return the parameters that arrive."""
    body = Bodies(1, 200).body(request)
    async with connect() as client:
        reply = await client.post("/v1/completions", json=body | {"stream": True})
    assert reply.status_code == 200, reply.text
    return backend.seen[-1].sampling


def test_every_parameter_is_in_the_example() -> None:
    default = SamplingParams()
    same = {f.name for f in fields(EVERY) if EVERY.__dict__[f.name] == default.__dict__[f.name]}
    assert same == NO_FIELD


async def test_every_parameter_is_sent_again(
    connect: Connect, backend: FakeBackend, tmp_path: Path
) -> None:
    request = dumped(tmp_path, EVERY)
    assert Bodies(1, 200).lost(request) == []
    assert await replayed(connect, backend, request) == EVERY


@pytest.mark.parametrize("name", sorted({f.name for f in fields(SamplingParams)} - NO_FIELD))
async def test_one_parameter_is_sent_again_beside_a_models_own_defaults(
    connect: Connect, backend: FakeBackend, tmp_path: Path, name: str
) -> None:
    alone = {name: EVERY.__dict__[name]}
    if name in ("prompt_logprobs_start", "prompt_logprobs"):
        alone = {"logprobs": 2, "prompt_logprobs_start": 0, "prompt_logprobs": 2}
    sampling = SamplingParams(**{"seed": 1} | alone)
    assert await replayed(connect, backend, dumped(tmp_path, sampling)) == sampling


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: str(grammar.kind))
async def test_a_grammar_is_sent_again(
    connect: Connect, backend: FakeBackend, tmp_path: Path, grammar: Grammar
) -> None:
    sampling = replace(EVERY, grammar=grammar, min_tokens=0)
    found = await replayed(connect, backend, dumped(tmp_path, sampling))
    assert replace(found, grammar=grammar) == sampling
    assert found.grammar is not None and found.grammar.kind is grammar.kind
    if grammar.kind is not GrammarKind.JSON_SCHEMA:
        assert found.grammar == grammar


def test_what_no_stream_can_ask_for_is_named(tmp_path: Path) -> None:
    for number, (sampling, lost) in enumerate(
        (
            (SamplingParams(logprob_token_ids=(1,)), ["logprob_token_ids"]),
            (SamplingParams(prompt_logprobs_start=2), ["prompt_logprobs_start"]),
            (SamplingParams(prompt_logprobs_start=0, prompt_logprobs=3), ["logprobs"]),
            (SamplingParams(grammar=Grammar(GrammarKind.LARK, 'start: "::="')), ["grammar"]),
        )
    ):
        assert Bodies(1, 200).lost(dumped(tmp_path / str(number), sampling)) == lost


def test_a_redacted_dump_has_numbers_and_lengths_alone(tmp_path: Path) -> None:
    sampling = replace(EVERY, grammar=GRAMMARS[1], min_tokens=0, logprob_token_ids=(1, 2))
    record = dumped(tmp_path, sampling, prompts=False).record
    for name, value in record.sampling.items():
        assert isinstance(value, int | float), name
    assert "seed" not in record.sampling and "seed" not in record.lengths
    assert record.lengths == {
        "logit_bias": 2, "allowed_token_ids": 3, "bad_words": [3, 3], "stop_token_ids": 2,
        "stop": [3, 1], "stop_regex": [3], "logprob_token_ids": 2,
        "grammar": {"kind": "regex", "chars": 2},
    }  # fmt: skip
    told = {*record.sampling, *record.lengths, "seed", "min_tokens"}
    assert told == {field.name for field in fields(SamplingParams)}, "each is told in one way"
