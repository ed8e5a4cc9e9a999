"""The file of settings: what each command takes from it, and what is refused, with its line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from baton.core.metric_dialect import MetricDialect
from baton.core.options import Group, option
from baton.deploy.options.click_options import options_of, takes
from baton.deploy.options.config_file import KINDS, FileCommand, names_of, settings_for
from baton.deploy.options.file_option import FileOptions
from baton.deploy.options.yaml_document import MOST_BYTES, ConfigFileError, read_document

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples/baton.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "baton.yaml"
    path.write_text(text)
    return path


def parsed(command: str, path: Path, *words: str) -> Any:
    """Return the dataclass that a command makes of a file and a command line."""
    found: list[Any] = []

    @click.command(command, cls=FileCommand)
    @takes(KINDS[command])
    def catch(arguments: Any) -> None:
        found.append(arguments)

    CliRunner().invoke(catch, ["-f", str(path), *words], catch_exceptions=False)
    return found[0]


def refusal(folder: Path, text: str, *words: str, command: str = "serve") -> list[str]:
    """Return the lines of the error about a file, each without its folder."""
    with pytest.raises(ConfigFileError) as refused:
        parsed(command, written(folder, text), *words)
    return str(refused.value).replace(f"{folder}/", "").splitlines()


def test_a_key_is_an_option_of_every_command_that_has_it(tmp_path: Path) -> None:
    path = written(tmp_path, "decode: 3\nhost: 127.0.0.2\nlease: 1.5\nhttp-port: 7\n")
    serve = parsed("serve", path)
    assert (serve.cluster.decode, serve.listen.host, serve.listen.http_port) == (3, "127.0.0.2", 7)
    assert serve.router.lease_ms == 1500
    router = parsed("router", path, "--credentials", str(tmp_path))
    assert (router.listen.host, router.router.lease_ms) == ("127.0.0.2", 1500)
    worker = parsed("worker", path)
    assert (worker.host, worker.lease.lease_ms, worker.http_port) == ("127.0.0.2", 1500, 8000)


def test_a_section_is_for_one_command_and_beats_the_top(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "page-size: 16\nthreads: 1\nserve:\n  threads: 2\nworker:\n  threads: 3\n"
        "prefill-worker:\n  threads: 4\n  page-size: 32\ndecode-worker:\n  threads: 5\n",
    )
    assert parsed("serve", path).cluster.threads == 2
    for words, threads, page in (
        ((), 3, 16), (("--role", "prefill"), 4, 32), (("--role", "decode"), 5, 16)
    ):  # fmt: skip
        worker = parsed("worker", path, *words)
        assert (worker.threads, worker.engine.engine.page_size) == (threads, page)


def test_the_file_may_say_the_role_whose_section_counts(tmp_path: Path) -> None:
    text = "worker:\n  role: decode\ndecode-worker:\n  threads: 5\nprefill-worker:\n  threads: 4\n"
    path = written(tmp_path, text)
    assert parsed("worker", path).threads == 5
    assert parsed("worker", path, "--role", "prefill").threads == 4


def test_the_command_line_beats_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "decode: 3\nallowed-host: [a, b]\nprefill: 2\nno-graphs: false\n")
    serve = parsed("serve", path, "--decode", "4", "--allowed-host", "c", "--no-graphs")
    assert (serve.cluster.decode, serve.cluster.prefill) == (4, 2)
    assert serve.router.allowed_hosts == ("c",)
    assert not serve.engine.engine.graphs and parsed("serve", path).engine.engine.graphs


def test_names_that_the_command_line_has_after_commas_may_be_a_list(tmp_path: Path) -> None:
    path = written(tmp_path, "metric-aliases: [vllm, sglang]\n")
    both = parsed("worker", path, "--role", "decode").telemetry.metric_aliases
    assert both == (MetricDialect.VLLM, MetricDialect.SGLANG)
    wrong = written(tmp_path, "metric-aliases: [vllm, 7]\n")
    with pytest.raises(ConfigFileError, match="a text, or a list, each a text"):
        settings_for(wrong, "worker")


@dataclass(frozen=True, kw_only=True)
class Placed(FileOptions):
    """Options that the environment may give, one of them a secret."""

    region: str = option("here", Group.MODEL, "A region.", envvar="BATON_TEST_REGION")
    password: str = option("", Group.MODEL, "A key.", envvar="BATON_TEST_KEY", secret=True)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give `worker` these options alone."""
    monkeypatch.setitem(KINDS, "worker", Placed)
    names_of.cache_clear()
    yield
    names_of.cache_clear()


@pytest.mark.usefixtures("placed")
def test_the_file_beats_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_TEST_REGION", "there")
    assert parsed("worker", written(tmp_path, "worker:\n  region: far\n")).region == "far"
    assert parsed("worker", written(tmp_path, "")).region == "there"
    monkeypatch.delenv("BATON_TEST_REGION")
    assert parsed("worker", written(tmp_path, "")).region == "here"


@pytest.mark.usefixtures("placed")
def test_a_secret_in_a_file_is_refused_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refusal(tmp_path, "worker:\n  password: abracadabra\n", command="worker")
    assert said == [
        "baton.yaml:2: password is a secret: give it in the environment, as BATON_TEST_KEY"
    ]
    monkeypatch.setenv("BATON_TEST_KEY", "abracadabra")
    assert parsed("worker", written(tmp_path, "")).password == "abracadabra"


def test_relative_paths_are_from_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "keys.json").write_text("{}")
    monkeypatch.chdir("/")
    path = written(tmp_path, "model: m\napi-keys: keys.json\nserve:\n  authority: ca\n")
    serve = parsed("serve", path)
    assert serve.engine.model.model == str(tmp_path / "m")
    assert serve.router.api_keys == tmp_path / "keys.json"
    assert serve.authority.authority == tmp_path / "ca"
    for name, found in (("owner/name", "owner/name"), ("./m2", str(tmp_path / "m2"))):
        serve = parsed("serve", written(tmp_path, f"model: {name}\n"))
        assert serve.engine.model.model == found


WRONG = [
    ("decod: 2", 2, "decod is no option; did you mean decode?"),
    ("--decode: 2", 2, "--decode is no option; did you mean decode?"),
    ("max_running: 2", 2, "max_running is no option; did you mean max-running?"),
    ("xyzzy: 2", 2, "xyzzy is no option; `baton config schema` has all"),
    ("file: x", 2, "file is no option"),
    ("decode: two", 2, "decode is the text 'two'; expected a whole number from 1"),
    ("decode: 0", 2, "decode is 0; expected a whole number from 1"),
    ("decode: 1.5", 2, "decode is 1.5; expected a whole number from 1"),
    ("decode: '2'", 2, "decode is the text '2'; expected a whole number from 1"),
    ("decode: true", 2, "decode is true; expected a whole number from 1"),
    ("decode:", 2, "decode is empty; expected a whole number from 1; leave the line out"),
    ("decode: [2]", 2, "decode is [2]; expected a whole number from 1"),
    ("decode: {a: 2}", 2, "decode is a section; expected a whole number from 1"),
    ("http-port: 65536", 2, "http-port is 65536; expected a whole number from 0 to 65535"),
    ("lease: .inf", 2, "lease is the text '.inf'; expected a number"),
    ("key-slowdown: 0.5", 2, "key-slowdown is 0.5; expected 0, or a number above 1"),
    (
        "prefill-here: 0",
        2,
        "expected one of auto, off, or a whole number from 1",
    ),
    ("state-return: false", 2, "; write off in quotes"),
    ("policy: prefix-aware", 2, "; did you mean prefix_aware?"),
    ("offline: yes", 2, "offline is the text 'yes'; expected true or false"),
    ("revision: 1.0", 2, "revision is 1.0; expected a text; put it in quotes"),
    ("allowed-host: [1]", 2, "expected a text, or a list, each a text"),
    ("host: a\nhost: b", 3, "host stands twice; line 2 has it too"),
    ("port: 1\nhttp-port: 2", 3, "http-port and port (line 2) are one option; keep one"),
    ("serve: 3", 2, "serve is a section; expected indented lines of `option: value`"),
    ("router:\n  decode: 2", 3, "decode is no option of router, but of serve"),
    ("router:\n  polcy: x", 3, "polcy is no option of router; did you mean policy?"),
    ("worker:\n  serve:\n    decode: 2", 3, "serve is no option of worker"),
    ("a: &x 1\nb: *x", 2, "anchors and aliases are refused"),
    ("a: !!python/object:os.system x", 2, "is refused; leave it out"),
    ("a: [[[[[1]]]]]", 2, "nested too deeply"),
    ("allowed-host: [[a]]", 2, "a list has texts or numbers, one each"),
    ("? [a]\n: b", 2, "a key is the name of an option"),
    ("decode: 2\n---\ndecode: 3", 3, "but found another document"),
    ("decode: [2", 3, "expected ',' or ']'"),
    ("decode: 2\n  prefill: 2", 3, "those of a section indented alike"),
    ("- decode", 2, "expected"),
]


@pytest.mark.parametrize(("text", "line", "told"), WRONG, ids=[text for text, _, _ in WRONG])
def test_what_is_wrong_is_told_with_its_line_and_what_would_be_right(
    tmp_path: Path, text: str, line: int, told: str
) -> None:
    (said,) = refusal(tmp_path, f"# the first line\n{text}\n")
    assert said.startswith(f"baton.yaml:{line}: ") and told in said


def test_everything_that_is_wrong_is_told_at_once_in_order(tmp_path: Path) -> None:
    text = "router:\n  polcy: x\ndecode: 0\nworker:\n  tp: 0\n"
    said = refusal(tmp_path, text)
    assert [re.sub(r": .*", "", line) for line in said] == [f"baton.yaml:{n}" for n in (2, 3, 5)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("api-keys: nowhere.json", "baton.yaml:1: api-keys: File"),
        ("device: cpu\nmetric-aliases: vlm", "baton.yaml:2: --metric-aliases: 'vlm'"),
    ],
)
def test_what_only_the_option_itself_can_tell_has_its_line_too(
    tmp_path: Path, text: str, told: str
) -> None:
    (said,) = refusal(tmp_path, text)
    assert said.startswith(told)


def test_files_of_other_commands_need_not_be_here(tmp_path: Path) -> None:
    path = written(tmp_path, "router:\n  api-keys: nowhere.json\n")
    assert parsed("worker", path).server.api_keys is None


def test_a_file_is_bounded_and_may_be_empty(tmp_path: Path) -> None:
    assert read_document(written(tmp_path, "")) == ()
    assert read_document(written(tmp_path, "# nothing\n")) == ()
    path = written(tmp_path, "a: " + "x" * MOST_BYTES)
    with pytest.raises(ConfigFileError, match="bytes; expected fewer"):
        read_document(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigFileError, match="cannot be read"):
        read_document(path)


@pytest.mark.parametrize("command", KINDS)
def test_every_option_but_the_file_can_stand_in_a_file(command: str) -> None:
    names = {each.names[0].removeprefix("--") for each in options_of(KINDS[command])}
    assert names - set(names_of(command)) == {"file"}
    assert len(names) > 30


@pytest.mark.parametrize("command", KINDS)
def test_the_example_is_right_for_every_command(command: str) -> None:
    assert settings_for(EXAMPLE, command)
