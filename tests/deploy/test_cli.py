"""The `baton` command: what fails before anything starts is one clear line and exit code 1."""

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.cli.main import main

TINY = {**GRANITE_SMALL, "hidden_size": 64, "mamba_n_heads": 4, "num_attention_heads": 4}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny", TINY, torch.float32)


def _fails(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Run the command, which must fail, and return its standard error."""
    monkeypatch.setattr(sys, "argv", ["baton", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said
    return said


def test_a_model_folder_that_is_not_there(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = _fails(capfd, monkeypatch, "serve", "--model", str(tmp_path / "nowhere"))
    assert "nowhere: no such folder" in said


def test_a_family_that_is_not_supported(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (model / "config.json").write_text(json.dumps(config))
    said = _fails(capfd, monkeypatch, "serve", "--model", str(model))
    assert "'gpt2' is not supported" in said and "granitemoehybrid" in said


def test_weights_that_were_cut_short(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    said = _fails(capfd, monkeypatch, "serve", "--model", str(model))
    assert "model.safetensors" in said


def test_a_chat_template_that_does_not_compile(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}")
    said = _fails(capfd, monkeypatch, "serve", "--model", str(model))
    assert f"--model {model}" in said and "chat template does not compile" in said


def test_a_port_that_is_in_use(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = _fails(capfd, monkeypatch, "serve", "--model", str(model), "--http-port", port)
    assert f"--http-port {port}" in said


def test_memory_that_does_not_suffice(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    words = ("--model", str(model), "--http-port", "0", "--grpc-port", "0", "--memory-gb", "0.0001")
    said = _fails(capfd, monkeypatch, "serve", *words)
    assert "prefill-0" in said and "budget" in said, "the first that takes in states"


@pytest.mark.parametrize("words", [("status",), ("generate", "hello"), ("stop",)])
def test_no_cluster_to_talk_to(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert "baton serve" in _fails(capfd, monkeypatch, *words)


def test_a_router_that_does_not_answer(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _fails(capfd, monkeypatch, "status", "--url", "http://127.0.0.1:1")
    assert "no router answers at http://127.0.0.1:1" in said


@pytest.mark.parametrize("command", ["", "status", "scale", "stop", "generate", "explain"])
def test_what_should_be_there_at_once_imports_neither_torch_nor_ray(command: str) -> None:
    words = ["baton", *command.split(), "--help"]
    code = (
        f"import sys; sys.argv = {words}\n"
        "from baton.cli.main import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'ray', 'grpc'} & set(sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "Usage: " in ran.stdout, ran.stderr
