"""The models of examples/mtp: their texts, their size, and how their MTP layers are trained."""

from pathlib import Path

import pytest
import torch
from mtp_models import TRAINED, draft, hidden_of
from step_driver import StepDriver

from baton.engine.assembly.loader import load_model
from baton.engine.settings.config import EngineConfig
from mtp.families import FAMILIES
from mtp.language import HELD_OUT, VOCABULARY, loop, text

MOST_BYTES = 1_000_000  # of a model's folder


def words(ids: tuple[int, ...]) -> list[str]:
    return [VOCABULARY[token] for token in ids]


def test_texts_are_equal_whenever_they_are_drawn_and_mostly_forced() -> None:
    drawn = [text(HELD_OUT + seed, 100) for seed in range(40)]
    assert drawn == [text(HELD_OUT + seed, 100) for seed in range(40)]
    assert len(set(drawn)) == 40
    assert sum(sum(each.forced) for each in drawn) > 0.7 * 40 * 100


def test_a_loop_repeats_its_phrase_from_the_second_time_on() -> None:
    drawn = loop(HELD_OUT + 5, start=20, phrase=9, length=80)
    said = words(drawn.ids)
    assert said[29] == "."
    assert said[20:70] == said[30:80]
    assert not any(drawn.forced[20:30]) and all(drawn.forced[30:])


@pytest.mark.parametrize("family", TRAINED)
def test_a_model_is_small(family: str) -> None:
    files = list(TRAINED[family].iterdir())
    assert 400_000 < sum(file.stat().st_size for file in files) < MOST_BYTES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_server_drafts_what_was_trained(family: str, tmp_path: Path) -> None:
    """Logits of three depths by the training forward, and by a model that was exported from it."""
    pytest.importorskip("transformers")
    from mtp.export import export
    from mtp.network import Drafter, made

    torch.manual_seed(1)
    model, drafter = made(FAMILIES[family], {}), Drafter(FAMILIES[family])
    with torch.no_grad():
        for parameter in (*model.parameters(), *drafter.parameters()):
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
            parameter.copy_(parameter.to(torch.bfloat16))
    export(FAMILIES[family], model, drafter, tmp_path)
    ids = list(text(3, 40).ids)
    with torch.no_grad():
        tokens = torch.tensor([ids])
        hidden = model.get_decoder()(tokens, use_cache=False).last_hidden_state
        found = drafter(hidden, model.get_input_embeddings()(tokens))
        expected = [model.lm_head(out[0]) for out in found]
    driver = StepDriver(load_model(EngineConfig(model=tmp_path, mtp=True, dtype=torch.float32)))
    place = 30  # of the newest token; then those of the text stand for drafts
    row = driver.start(ids[:place])
    driver.prefill(row)
    before = hidden_of(driver, [row])
    for depth, logits in enumerate(expected):
        own, before = draft(driver, [row], [ids[place + depth]], depth, before)
        want = logits[place + depth - 1]
        torch.testing.assert_close(own[0], want, rtol=0, atol=1e-3)
        assert float(want.std()) > 0.1
