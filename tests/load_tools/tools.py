"""The load tools that people measure servers with, each with its command line and its report."""

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from load_tools.aiperf import AIPERF, AIPERF_CHAT
from load_tools.tool import Load, Reported, Server, Tool, program
from tokenizers import Tokenizer

from baton.bench.sessions.chat_model import sources

OFFLINE = {"HF_HUB_OFFLINE": "1"}
ONE_PROCESS = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}  # of ten, which a small machine starves


def _vllm(server: Server, load: Load, home: Path) -> list[str]:
    return [
        program("vllm", "vllm"), "bench", "serve", "--backend", "openai",
        "--base-url", server.url, "--model", server.model, "--tokenizer", str(server.folder),
        "--dataset-name", "random", "--random-input-len", str(load.input_len),
        "--random-output-len", str(load.output_len), "--num-prompts", str(load.requests),
        "--request-rate", str(load.rate), "--ignore-eos", "--disable-tqdm",
        "--save-result", "--result-dir", str(home), "--result-filename", "report.json",
    ]  # fmt: skip


def _sglang(server: Server, load: Load, home: Path, backend: str) -> list[str]:
    return [
        program("sglang", "python"), "-m", "sglang.benchmark.serving", "--backend", backend,
        "--base-url", server.url, "--model", server.model, "--tokenizer", str(server.folder),
        "--dataset-name", "custom", "--dataset-path", str(_prompts(server, load, home)),
        "--sharegpt-output-len", str(load.output_len),
        "--num-prompts", str(load.requests), "--request-rate", str(load.rate),
        "--warmup-requests", "0", "--disable-tqdm", "--output-file", str(home / "report.json"),
    ]  # fmt: skip


def _prompts(server: Server, load: Load, home: Path) -> Path:
    """Write texts of about the load's length. Its own are ids that no text gives back."""
    tokenizer = Tokenizer.from_file(str(server.folder / "tokenizer.json"))
    ids = tokenizer.encode("\n".join(islice(sources(), 20))).ids
    texts = [
        tokenizer.decode(ids[at : at + load.input_len])
        for at in range(0, load.requests * load.input_len, load.input_len)
    ]
    path = home / "prompts.jsonl"
    path.write_text("".join(
        json.dumps({"conversations": [{"content": text}, {"content": ""}]}) + "\n"
        for text in texts
    ))  # fmt: skip
    return path


def _guidellm(server: Server, load: Load, home: Path) -> list[str]:
    return [
        program("guidellm", "guidellm"), "run",
        "--backend", f"kind=openai_http,target={server.url},model={server.model},"
        "request_format=/v1/completions",
        "--profile", f"kind=constant,rate={load.rate}",
        "--constraint", f"kind=max_requests,count={load.requests}",
        "--tokenizer", f"kind=hf_auto,model={server.folder}",
        "--data", f"kind=synthetic_text,prompt_tokens={load.input_len},"
        f"output_tokens={load.output_len}",
        "--output", f"kind=json,path={home / 'report.json'}", "--disable-progress",
    ]  # fmt: skip


def _report(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "report.json").read_text())
    return found


def _of_bench(home: Path) -> Reported:
    """Read what vLLM's and SGLang's clients write, one object of the same keys."""
    found = _report(home)
    return Reported(
        requests=found["completed"],
        input_tokens=found["total_input_tokens"],
        output_tokens=found["total_output_tokens"],
        ttft_ms=found["mean_ttft_ms"],
        itl_ms=found["mean_tpot_ms"],  # their ITL is of chunks, which may have several tokens
    )


def _of_guidellm(home: Path) -> Reported:
    found = _report(home)["benchmarks"][0]["metrics"]
    return Reported(
        requests=found["request_totals"]["successful"],
        input_tokens=int(found["prompt_token_count"]["successful"]["total_sum"]),
        output_tokens=int(found["output_token_count"]["successful"]["total_sum"]),
        ttft_ms=found["time_to_first_token_ms"]["successful"]["mean"],
        itl_ms=found["inter_token_latency_ms"]["successful"]["mean"],
    )


TOOLS = (
    AIPERF,
    AIPERF_CHAT,
    Tool("guidellm", _guidellm, _of_guidellm, OFFLINE | ONE_PROCESS),
    Tool("vllm", _vllm, _of_bench, OFFLINE | {"VLLM_LOGGING_LEVEL": "WARNING"}),
    Tool("sglang", partial(_sglang, backend="sglang"), _of_bench, OFFLINE),
    Tool("sglang-oai", partial(_sglang, backend="sglang-oai"), _of_bench, OFFLINE),
)
