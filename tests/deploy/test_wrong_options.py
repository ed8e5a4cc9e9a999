"""Wrong values of every option: refused before Ray is started, most before torch is imported."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.cli.main import baton
from baton.deploy.cluster import ray_start
from baton.deploy.commands.router import router
from baton.deploy.commands.serve import serve
from baton.deploy.commands.worker import worker
from baton.deploy.errors import DeployError
from baton.deploy.options.number_types import TokensOrWord

COMMANDS = {"serve": serve, "worker": worker, "router": router}
ANY_TEXT = {
    "--model": "its folder is checked below",
    "--revision": "below, with a model that is a folder",
    "--device": "below: torch knows the names",
    "--nixl-interface": "below: the machine knows the names",
    "--allowed-host": "below", "--cors-origin": "below", "--host": "below",
    "--internal-host": "below",
    "--served-model-name": "below", "--forwarded-allow-ips": "below",
    "--otlp-traces-endpoint": "below", "--metric-aliases": "below",
    "--default-chat-template-kwargs": "test_options.py: an object of JSON",
    "--speculative-config": "test_speculation_options.py: an object of JSON",
    "--speculative-draft-model-path": "test_speculation_options.py: all are refused",
    "--tool-call-parser": "test_options.py", "--reasoning-parser": "test_options.py",
    "--ray-address": "Ray alone can tell whether a Ray is there",
    "--prefill-label": "test_options.py", "--decode-label": "test_options.py",
    "--prefill-resource": "test_options.py", "--decode-resource": "test_options.py",
    "--worker-interface": "test_ray_placement.py: each host has its own names",
    "--cluster": "test_state_file.py",
    "--worker-id": "any name; a decode worker's is checked below",
    "--router": "the worker looks for it as long as it runs",
    "--credentials": "below",
    "--peer-host": "test_by_hand.py: the worker binds it",
    "--advertise-host": "test_by_hand.py; whether peers reach it is seen only when they try",
}  # fmt: skip
"""Options of text -> where wrong values are, besides the table that is made of the types."""

HEAVY = ("torch", "ray", "nixl", "starlette", "pydantic")
IN_ONE_PROCESS = """
import json, sys
from click.testing import CliRunner
from baton.cli.main import baton
for words in json.load(sys.stdin):
    result = CliRunner().invoke(baton, words, standalone_mode=False)
    heavy = [name for name in {heavy} if name in sys.modules]
    error = result.exception
    said = error.format_message() if hasattr(error, "format_message") else str(error)
    print(json.dumps([type(error).__name__, said, heavy]), flush=True)
"""


def refusals(cases: list[list[str]]) -> list[tuple[str, str, list[str]]]:
    """Run each command line in one new process. Return the kind of each one's error, what it
    said, and the heavy modules that were imported by then.
    """
    script = IN_ONE_PROCESS.format(heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(cases), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return [(kind, said, heavy) for kind, said, heavy in map(json.loads, done.stdout.splitlines())]


def wrong_values(option: click.Option) -> list[str]:
    """Return values that the option's type does not have."""
    kind = option.type
    if isinstance(kind, click.Choice):
        return ["nonsense", ""]
    if isinstance(kind, click.IntRange | click.FloatRange):
        found = ["nonsense", ""]
        if isinstance(kind, click.IntRange):
            found.append("1.5")
        if kind.min is not None:
            found.append(str(kind.min if kind.min_open else kind.min - 1))
        if kind.max is not None:
            found.append(str(kind.max + 1))
        return found
    if isinstance(kind, TokensOrWord):
        return ["nonsense", "", "-1", "0", "1.5"]
    if isinstance(kind, click.Path):
        if kind.exists:
            return ["/nowhere/at/all"]
        return ["/etc"] if kind.file_okay else ["/etc/passwd"]  # a folder, for a file; or that
    return []


def table(name: str) -> list[tuple[list[str], str]]:
    """Return command lines of a wrong value each, with the option that it must name."""
    found = []
    for param in COMMANDS[name].params:
        if isinstance(param, click.Option) and not param.is_flag:
            for value in wrong_values(param):
                words = [name, "--model", "m", param.opts[0], value]
                found.append((words, param.opts[0]))
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_that_takes_a_value_has_wrong_ones(name: str) -> None:
    options = [param for param in COMMANDS[name].params if isinstance(param, click.Option)]
    free = {o.opts[0] for o in options if not o.is_flag and not wrong_values(o)}
    assert free <= set(ANY_TEXT)


@pytest.mark.parametrize("name", COMMANDS)
def test_values_that_no_option_has_are_refused_without_torch_or_ray(name: str) -> None:
    cases = table(name)
    assert len(cases) > 60
    for (words, option), (kind, said, heavy) in zip(
        cases, refusals([words for words, _ in cases]), strict=True
    ):
        assert kind in ("BadParameter", "StartError"), (words, kind, said)
        assert option in said, (words, said)
        assert heavy == [], words


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), GRANITE_SMALL, torch.float32)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_contradicts_itself_is_refused_without_torch_or_ray(
    name: str, tmp_path: Path, model: Path
) -> None:
    (tmp_path / "garbage").write_text("garbage")
    (tmp_path / "empty").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.json").write_text('{"model_type": "x"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    garbage = str(tmp_path / "garbage")
    cases = [
        (["--model", str(tmp_path / "nowhere")], "no such folder"),
        (["--model", garbage], "no such folder"),
        (["--model", str(tmp_path / "empty")], "no config.json"),
        (["--model", str(tmp_path)], f"empty; {tmp_path}/broken and {tmp_path}/config have one"),
        (["--model", str(tmp_path / "config")], "no tokenizer.json"),
        (["--model", str(tmp_path / "broken")], "not valid JSON"),
        (["--revision", "main"], "a revision (main) goes with the id"),
        (["--model", "no/such-model", "--offline"], "offline mode"),
        (["--host", "0.0.0.0"], "--insecure"),
        (["--api-keys", garbage], "--api-keys"),
        (["--cache-scope", "key"], "--cache-scope key needs --api-keys"),
        (["--allowed-host", "http://x"], "--allowed-host"),
        (["--allowed-host", ""], "--allowed-host"),
        (["--cors-origin", "example.org"], "--cors-origin"),
        (["--cors-origin", "https://example.org/page"], "--cors-origin"),
        (["--cors-origin", "*"], "--cors-origin"),
        (["--forwarded-allow-ips", "proxy.example"], "--forwarded-allow-ips"),
        (["--ssl-certfile", garbage], "belong together"),
        (["--ssl-certfile", garbage, "--ssl-keyfile", garbage], "garbage"),
        (["--served-model-name", ""], "--served-model-name"),
        (["--profile-folder", f"{garbage}/below"], "--profile-folder"),
        (["--otlp-traces-endpoint", "127.0.0.1:4317"], "--otlp-traces-endpoint"),
        (["--otlp-traces-endpoint", "http://127.0.0.1:x"], "--otlp-traces-endpoint"),
        (["--otlp-traces-endpoint", "http://h:4318/v1/traces"], "--otlp-traces-endpoint"),
        (["--metric-aliases", "vllm,sglng"], "--metric-aliases: 'sglng' is not one of vllm,"),
        (["--nonsense"], "--nonsense"),
        (["--port"], "No such option" if name == "worker" else "requires an argument"),
    ]
    cases += {
        "serve": [
            (["--tls-ca", garbage], "belong together"),
            (["--authority", "a", "--tls-ca", garbage], "exclude each other"),
            (["--dump-prompts"], "--dump-requests"),
            (["--dump-requests", f"{garbage}/below"], "--dump-requests"),
        ],
        "router": [
            (["--dump-prompts"], "--dump-requests"),
            (["--dump-requests", f"{garbage}/below"], "--dump-requests"),
        ],
        "worker": [
            (["--router", "x:1"], "--router needs --role"),
            (["--role", "decode"], "needs --credentials"),
            (["--credentials", str(tmp_path)], "--credentials is for"),
        ],
    }[name]
    base = [name, "--model", str(model)]
    if name == "router":
        base += ["--credentials", str(tmp_path)]
    given = [[*base, *words] for words, _ in cases]
    for (words, expected), (kind, said, heavy) in zip(cases, refusals(given), strict=True):
        assert kind in ("StartError", "NoSuchOption", "BadOptionUsage"), (words, kind, said)
        assert expected in said, (words, said)
        assert heavy == [], words


class ReachedRayError(Exception):
    """Raised where Ray would be started."""


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(config: object) -> None:
        raise ReachedRayError

    monkeypatch.setattr(ray_start, "connect", connect)


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


@pytest.mark.usefixtures("no_ray")
def test_what_only_the_machine_and_the_model_can_tell_is_refused_before_ray(
    model: Path, tmp_path: Path, taken: str
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_text("garbage")
    cases = [
        (["--device", "nonsense"], "--device nonsense"),
        (["--device", "cuda:999"], "--device cuda:999: Ray gives each worker a GPU"),
        (["--device", "meta"], "--device meta"),
        (["--memory-gb", "0.0001"], "a larger --memory-gb"),
        (["--memory-gb", "40000"], "2 workers together may take"),
        (["--memory-fraction", "0.0000001"], "a larger --memory-fraction"),
        (["--max-running", "1000000000"], "the largest max_running that fits"),
        (["--max-model-len", "1000000000"], "max_model_len must be"),
        (["--page-size", "3"], "--page-size 3"),
        (["--page-size", "100000000"], "not even one request fits"),
        (["--snapshots-per-prefill", "100000000"], "not even one request fits"),
        (["--mamba-scheduler-strategy", "no_buffer"], "needs --page-size 1"),
        (["--prefill", "20000"], "not even one request fits"),
        (["--nixl-interface", "nonsense0"], "--nixl-interface nonsense0: no such interface"),
        (["--tls-ca", str(garbage), "--tls-ca-key", str(garbage)], "certificate"),
        (["--authority", str(tmp_path)], "has no authority"),
        (["--host", "192.0.2.1", "--insecure"], "192.0.2.1"),
        (["--host", "nosuch.invalid", "--insecure"], "--host nosuch.invalid"),
        (["--internal-host", "nosuch.invalid"], "--internal-host nosuch.invalid"),
        (["--internal-host", "0.0.0.0"], "--internal-host is 0.0.0.0; name the one address"),
        (["--http-port", taken], f"--http-port {taken}"),
        (["--grpc-port", taken], f"--grpc-port {taken}"),
        (["--internal-port", taken], f"--internal-port {taken}"),
    ]
    base = ["serve", "--model", str(model), "--http-port", "0", "--grpc-port", "0"]
    for words, expected in cases:
        with pytest.raises(DeployError) as refused:
            CliRunner().invoke(
                baton, [*base, *words], standalone_mode=False, catch_exceptions=False
            )
        assert expected in str(refused.value), (words, str(refused.value))
    with pytest.raises(ReachedRayError):
        CliRunner().invoke(baton, base, standalone_mode=False, catch_exceptions=False)
