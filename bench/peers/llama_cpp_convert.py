"""Conversion of a checkpoint to GGUF by llama.cpp's converter.

python llama_cpp_convert.py SOURCE MODEL OUT TYPE

A program of its own, since the converter's modules conflict with ours. SOURCE is a llama.cpp source
tree. The converter needs two things that a checkpoint of random weights may lack: layer types by
their old names, and a tokenizer with merges that it knows.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

_OLD_NAMES = {"full_attention": "attention", "linear_attention": "mamba"}


def _rewrite(model: Path, folder: Path) -> None:
    """Copy `model` in the form that the converter needs, with links to its tensors."""
    for file in model.iterdir():
        if file.name.endswith((".safetensors", ".safetensors.index.json")):
            (folder / file.name).symlink_to(file.resolve())
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    if "layer_types" in config:
        config["layer_types"] = [_OLD_NAMES.get(name, name) for name in config["layer_types"]]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer: dict[str, Any] = json.loads((model / "tokenizer.json").read_text())
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"].get("merges")
    if merges == []:  # prompts are token ids: the text of tokens does not matter
        vocab["ab"] = vocab.pop(max(vocab, key=vocab.__getitem__))
        merges.append(["a", "b"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    tokenizer_config = model / "tokenizer_config.json"
    (folder / tokenizer_config.name).write_text(tokenizer_config.read_text())


def main(source: str, model: str, out: str, kind: str) -> None:
    sys.path[:0] = [f"{source}/gguf-py", source]
    base = importlib.import_module("conversion.base")
    base.TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
    with tempfile.TemporaryDirectory() as folder:
        _rewrite(Path(model), Path(folder))
        sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, "--outtype", kind]
        importlib.import_module("convert_hf_to_gguf").main()


if __name__ == "__main__":
    main(*sys.argv[1:])
