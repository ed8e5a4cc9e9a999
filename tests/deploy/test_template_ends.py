"""The ends of an operator's chat template reach engines on machines that do not have its file."""

from pathlib import Path

import pytest
import toy_tokenizer

from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.preflight import check_model, with_ends
from baton.deploy.errors import StartError
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.text.template_options import TemplateOptions
from baton.text.tokenizer import Tokenizer

PLAIN = SamplingParams(temperature=0.0, max_tokens=8)


def test_the_end_of_an_operators_template_becomes_an_option_of_engines(tmp_path: Path) -> None:
    model = toy_tokenizer.save_folder(tmp_path)
    config = EngineConfig(model)
    assert with_ends(config, TemplateOptions(variables={"a": 1})) is config
    file = tmp_path / "mended.jinja"
    file.write_text("{% for m in messages %}{{ m.role }}{{ m.content }}<|user|>{% endfor %}")
    ends = with_ends(config, TemplateOptions(file)).end_ids
    pieces = {Tokenizer.from_folder(model).piece(token) for token in ends}
    assert pieces == {"<|end|>", "<|user|>"}


def test_an_engine_ends_answers_at_such_an_id(tiny: Path) -> None:
    config = EngineConfig(tiny, memory_bytes=64 << 20)
    (whole,) = Engine.load(config).generate([(5, 6, 7)], PLAIN)
    end = whole.token_ids[3]
    (short,) = Engine.load(EngineConfig(tiny, memory_bytes=64 << 20, end_ids=(end,))).generate(
        [(5, 6, 7)], PLAIN
    )
    assert list(short.token_ids) == list(whole.token_ids[: whole.token_ids.index(end) + 1])


def test_an_operators_template_takes_the_place_of_one_that_does_not_compile(
    tiny: Path, tmp_path: Path
) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    (tmp_path / "chat_template.jinja").write_text("{% for")
    mended = tmp_path / "mended.jinja"
    mended.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    config = EngineConfig(tmp_path, memory_bytes=64 << 20)
    with pytest.raises(StartError, match="does not compile"):
        check_model(config)
    check_model(config, TemplateOptions(mended))
    assert with_ends(config, TemplateOptions(mended)).end_ids == (2,), "its eos_token_id"
