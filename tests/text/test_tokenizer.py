"""Reading a model folder's tokenizer, and what happens when it is bad."""

import json
from pathlib import Path

import pytest
import toy_tokenizer

from baton.text.errors import EncodingError, TokenizerFileError
from baton.text.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return toy_tokenizer.save_folder(tmp_path)


def test_text_comes_back_and_special_tokens_are_hidden_unless_asked_for(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("naïve 😀<|end|>")
    assert tokenizer.decode(ids) == "naïve 😀"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "naïve 😀<|end|>"


def test_ids_past_the_vocabulary_have_no_text(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("hello")
    assert tokenizer.decode([*ids, tokenizer.vocab_size, 2**31]) == "hello"
    assert max(ids) < tokenizer.vocab_size


def test_stop_ids_are_those_of_both_configs_and_the_tokenizers_own(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_id is not None
    assert tokenizer.stop_ids == {7, 8, 9, tokenizer.eos_id}
    (folder / "generation_config.json").unlink()
    assert Tokenizer.from_folder(folder).stop_ids == {9, tokenizer.eos_id}
    text_part = {"text_config": {"eos_token_id": 6}, "eos_token_id": [9]}
    (folder / "config.json").write_text(json.dumps(text_part))
    assert Tokenizer.from_folder(folder).stop_ids == {6, 9, tokenizer.eos_id}


def test_truncation_and_padding_saved_from_training_are_ignored(tmp_path: Path) -> None:
    backend = toy_tokenizer.byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    toy_tokenizer.save_folder(tmp_path, backend)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("hello wide world")) == "hello wide world"


def test_a_missing_tokenizer_says_which_file_and_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFileError, match=r"no tokenizer\.json in .*save_pretrained"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["{}", "not json", '{"version": "1.0"', "\x00"])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerFileError, match=r"tokenizer\.json is not a tokenizer file"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("tokenizer_config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", "[]", "expected an object"),
        ("tokenizer_config.json", '{"eos_token": 5}', "expected a string"),
        ("generation_config.json", '{"eos_token_id": "x"}', "expected an id or a list"),
        ("config.json", '{"eos_token_id": -1}', "expected an id or a list"),
    ],
)
def test_a_broken_config_is_named(folder: Path, file: str, content: str, complaint: str) -> None:
    (folder / file).write_text(content)
    with pytest.raises(TokenizerFileError, match=complaint) as caught:
        Tokenizer.from_folder(folder)
    assert file in str(caught.value)


def test_a_lone_surrogate_is_refused_and_the_next_text_is_fine(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    with pytest.raises(EncodingError, match="lone surrogate at character 3"):
        tokenizer.encode("bad\ud800")
    assert tokenizer.decode(tokenizer.encode("good")) == "good"
