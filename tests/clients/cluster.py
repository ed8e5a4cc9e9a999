"""Run the first turns of agents beside a real cluster of a small random model: `make
clients-cluster`.

    PYTHONPATH=tests python -m clients.cluster [--only claude-code]

A router, a prefill worker and a decode rank serve each request, of up to 100,000 tokens. The model
writes random text until its end, with which an agent ends its turn. A client passes if it ends by
itself and no request failed.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import toy_tokenizer
from clients.agents import AIDER, CLAUDE, CLINE, CODEX, OPENCODE, QWEN, prepare
from clients.program import trusted
from clients.run import outcome
from clients.scripted_server import CONTEXT, TEMPLATES
from deploy.tiny_worker import TINY

from baton.bench.checkpoints import write_checkpoint
from baton.text.tokenizer import Tokenizer

AIDER_SETTINGS = """
- name: openai/toy
  edit_format: diff
  use_temperature: false
  extra_params: {max_tokens: 500}
"""
"""Settings that bound an answer: aider asks for temperature 0 otherwise, at which a random model
repeats itself up to the end of its context."""
START_S = 120.0
STOP_S = 30.0
ANSWERED = frozenset({"stop", "length"})
COUNTED = re.compile(r'^baton_router_requests_total\{.*outcome="(\w+)".*\} (\S+)$', re.MULTILINE)


def prepare_aider(home: Path, url: str) -> None:
    prepare(home, url)
    (home / ".aider.model.settings.yml").write_text(AIDER_SETTINGS)


AGENTS = (CLAUDE, CODEX, QWEN, OPENCODE, CLINE, replace(AIDER, prepare=prepare_aider))


def write_model(folder: Path) -> Path:
    """Write a model of random weights with the strict template."""
    vocab = toy_tokenizer.byte_level().get_vocab_size()
    eos = toy_tokenizer.byte_level().token_to_id("<|end|>")
    named = {"max_position_embeddings": CONTEXT, "vocab_size": vocab, "eos_token_id": eos}
    write_checkpoint(folder, TINY | named)
    toy_tokenizer.save_folder(folder)
    (folder / "chat_template.jinja").write_text((TEMPLATES / "strict_text.jinja").read_text())
    assert Tokenizer.from_folder(folder).vocab_size == vocab
    return folder


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """Yield the address of `baton serve` of a model."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("baton")), "serve", "--model", str(folder),
        "--served-model-name", "toy,*", "--port", "0", "--grpc-port", "0",
        "--prefill", "1", "--decode", "1", "--memory-gb", "1",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield await asyncio.wait_for(_address(process), START_S)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), STOP_S)


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if found := re.search(r"^  HTTP  (\S+)", line.decode()):
            return found[1]
    raise SystemExit("baton serve ended")


async def outcomes(url: str) -> dict[str, int]:
    """Return how many requests ended, by finish reason or error code."""
    async with httpx.AsyncClient(timeout=START_S) as client:
        metrics = (await client.get(f"{url}/metrics")).text
    return {name: int(float(count)) for name, count in COUNTED.findall(metrics)}


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="NAME")
    wanted = parser.parse_args().only
    passed = []
    with tempfile.TemporaryDirectory() as folder:
        async with served(write_model(Path(folder) / "model")) as url:
            for program in AGENTS:
                if wanted not in ("", program.name):
                    continue
                home = Path(folder) / program.name
                home.mkdir()
                before, begun = await outcomes(url), time.monotonic()
                reason = await outcome(replace(program, check=trusted), url, home)
                after, seconds = await outcomes(url), time.monotonic() - begun
                ended = {name: after[name] - before.get(name, 0) for name in after}
                ended = {name: count for name, count in ended.items() if count}
                passed.append(not reason and bool(ended) and ended.keys() <= ANSWERED)
                verdict = "passed" if passed[-1] else f"FAILED: {reason}"
                print(
                    f"{program.name:16} {program.version:9} {seconds:5.1f} s  {ended} {verdict}",
                    flush=True,
                )
    print(f"{sum(passed)} of {len(passed)} clients passed")
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
