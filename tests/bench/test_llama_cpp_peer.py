"""The llama.cpp peer, with stand-ins for its converter and its Python."""

import json
import stat
from pathlib import Path

import pytest

from baton.bench.checkpoints import GRANITE_SMALL, write_tokenizer
from baton.bench.peers.llama_cpp_peer import LlamaCppPeer, PeerError, start
from baton.bench.peers.peers import Peers

# Writes what it was given, as the GGUF.
CONVERTER = """
import json, sys
from pathlib import Path
from conversion import base

def main():
    folder, out = Path(sys.argv[1]), Path(sys.argv[sys.argv.index("--outfile") + 1])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    found = {
        "layer_types": json.loads((folder / "config.json").read_text())["layer_types"],
        "merges": tokenizer["merges"],
        "pretokenizer": base.TextModel().get_vocab_base_pre(None),
        "tensors": sorted(path.name for path in folder.glob("*.safetensors")),
        "kind": sys.argv[-1],
    }
    out.write_text(json.dumps(found))
"""
# Answers as the child does; its first argument is the child's script.
CHILD = """#!/usr/bin/env python3
import json, sys
if json.load(open(sys.argv[2]))["kind"] == "bf16":
    sys.exit("no such thing")
for line in sys.stdin:
    asked = json.loads(line)
    count = len(asked["prompts"])
    print(json.dumps({"prefill_s": count, "step_s": [9, 1, 2][: asked["steps"]]}), flush=True)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "llama.cpp"
    (folder / "conversion").mkdir(parents=True)
    (folder / "convert_hf_to_gguf.py").write_text(CONVERTER)
    (folder / "conversion" / "base.py").write_text("class TextModel: pass\n")
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Path:
    file = tmp_path / "python"
    file.write_text(CHILD)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    newer = [name.replace("mamba", "linear_attention") for name in GRANITE_SMALL["layer_types"]]
    (folder / "config.json").write_text(json.dumps({**GRANITE_SMALL, "layer_types": newer}))
    (folder / "model.safetensors").write_bytes(b"")
    write_tokenizer(folder, 512)
    return folder


def test_it_converts_once_and_answers_with_seconds(source, python, model) -> None:
    peer = LlamaCppPeer(python, source, model, "f32", 1)
    made = json.loads((Path(peer._scratch.name) / "model.gguf").read_text())
    assert made == {
        "layer_types": GRANITE_SMALL["layer_types"],
        "merges": [["a", "b"]],
        "pretokenizer": "gpt-2",
        "tensors": ["model.safetensors"],
        "kind": "f32",
    }
    assert peer.prefill([(1, 2), (3, 4)]) == 2.0
    assert peer.decode_step([(1, 2)], 3) == 2.0
    peer.close()
    assert peer._process.returncode == 0 and not Path(peer._scratch.name).exists()


def test_one_that_stops_is_left_out_with_its_last_words(source, python, model) -> None:
    peer = start(python, source, model, "bf16", 1)
    assert isinstance(peer, LlamaCppPeer)
    peer._process.wait(30)
    peers = Peers({"llama_cpp": peer, "transformers": {"skipped": "not here"}})
    for _ in range(2):
        peers.measure(lambda one: {"prefill_s": one.prefill([(1,)])})
    skipped = peers.close()
    assert skipped["transformers"] == {"skipped": "not here"}
    assert skipped["llama_cpp"] == {"skipped": "llama.cpp stopped: no such thing"}


def test_without_llama_cpp_it_is_skipped(tmp_path, python, model) -> None:
    for left_out, words in (
        (start(None, None, model, "f32", 1), "--llama-cpp"),
        (start(python, tmp_path, model, "f32", 1), "convert_hf_to_gguf"),
    ):
        assert not isinstance(left_out, LlamaCppPeer) and words in str(left_out["skipped"])


def test_a_conversion_that_fails_says_why(source, python, model) -> None:
    (source / "convert_hf_to_gguf.py").write_text("def main(): raise ValueError('no such model')")
    with pytest.raises(PeerError, match="no such model"):
        LlamaCppPeer(python, source, model, "f32", 1)
