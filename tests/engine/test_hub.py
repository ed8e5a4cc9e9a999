"""Models by hub id, offline, from a folder in the layout of the hub library's cache."""

import os
import random
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from parsed_arguments import parse

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.core.errors import ConfigError
from baton.core.sampling_params import SamplingParams
from baton.deploy.config_from import engine_from
from baton.deploy.options.model import EngineArguments
from baton.engine.engine import Engine
from baton.engine.loading.hub import find_model
from baton.engine.settings.config import EngineConfig
from baton.text.model_folder import model_name

ID = "Some-Lab/Tiny-Hybrid-0.1B"
TINY = {**GRANITE_SMALL, "hidden_size": 64, "mamba_d_head": 8}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two commits of a sharded checkpoint: files are links into blobs, branches name commits."""
    root = tmp_path / "hub"
    repository = root / "models--Some-Lab--Tiny-Hybrid-0.1B"
    for branch, commit, seed in (("main", "a" * 40, 1), ("fp32-old", "b" * 40, 2)):
        whole = write_checkpoint(tmp_path / commit, TINY, seed=seed, shard_bytes=1 << 20)
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (repository / "blobs").mkdir(exist_ok=True)
        for path in whole.iterdir():
            blob = repository / "blobs" / f"{seed}{random.getrandbits(128):032x}"
            path.rename(blob)
            (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / branch).write_text(commit)
    return root


def test_a_model_in_the_cache_is_found_and_runs(cache: Path) -> None:
    folder = find_model(ID, offline=True, cache=cache)
    engine = Engine.load(EngineConfig(model=folder, memory_bytes=1 << 28, max_running=2))
    (answer,) = engine.generate([[5, 6, 7]], [SamplingParams(max_tokens=3, ignore_eos=True)])
    assert len(answer.token_ids) == 3


@pytest.mark.parametrize("revision", ["fp32-old", "b" * 40])
def test_a_revision_is_a_branch_or_a_commit(cache: Path, revision: str) -> None:
    found = find_model(ID, revision, offline=True, cache=cache)
    assert found.name == "b" * 40
    assert find_model(ID, offline=True, cache=cache).name == "a" * 40


def test_the_model_is_called_by_its_id_wherever_it_lies(cache: Path, tmp_path: Path) -> None:
    assert model_name(find_model(ID, offline=True, cache=cache)) == ID
    assert model_name(tmp_path / "granite") == "granite"


def test_what_the_cache_lacks_is_an_error_that_names_it(cache: Path) -> None:
    with pytest.raises(ConfigError, match="no whole copy of Some-Lab/Other; nothing is down"):
        find_model("Some-Lab/Other", offline=True, cache=cache)
    with pytest.raises(ConfigError, match=f"no whole copy of {ID} at revision v9"):
        find_model(ID, "v9", offline=True, cache=cache)


def test_a_folder_is_a_folder_even_where_its_name_could_be_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_model("models/mine") == Path("models/mine")
    assert find_model("/no/such/folder") == Path("/no/such/folder")
    with pytest.raises(ConfigError, match=r"a revision .* goes with the id"):
        find_model("models/mine", "main")


ANSWER: Any = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (GatedRepoError("no", response=ANSWER), "is gated: accept its terms"),
        (RevisionNotFoundError("no", response=ANSWER), "but no revision v2 of it"),
        (RepositoryNotFoundError("no", response=ANSWER), "the hub has no model of that id"),
        (OSError("disk full"), "cannot download Some-Lab/Other at revision v2: disk full"),
    ],
)
def test_what_the_hub_says_becomes_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def refuse(*args: Any, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ConfigError, match=said):
        find_model("Some-Lab/Other", "v2")


def test_weights_alone_are_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def download(model: str, **options: Any) -> str:
        asked.update(options, model=model)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_model(ID, offline=True) == tmp_path
    assert asked["local_files_only"] and asked["revision"] is None
    assert find_model(ID, "v2") == tmp_path
    assert asked["model"] == ID and asked["revision"] == "v2" and not asked["local_files_only"]
    files = ["config.json", "model-1.safetensors", "pytorch_model.bin", "original/x.safetensors"]
    wanted = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(wanted) == files[:2]


def test_the_command_line_takes_an_id(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    arguments = parse(EngineArguments, "--model", ID, "--offline", "--revision", "fp32-old")
    assert engine_from(arguments).model.name == "b" * 40
