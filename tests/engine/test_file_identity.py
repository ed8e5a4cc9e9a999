"""The identity of files of prefixes: digests of weights, keys, names."""

import os
import random
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from baton.core.errors import ConfigError
from baton.core.supervised import child_thread
from baton.engine.layout.token_key import token_key
from baton.engine.loading import weights_digest as module
from baton.engine.loading.weights_digest import weights_digest
from baton.engine.tiers.file_names import MAC_BYTES, FileNames
from baton.engine.tiers.state_key import state_key

DEADLINE = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of three tensors of 300,000 bytes in each of two files."""
    folder = tmp_path / "model"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    for file in ("model-00001.safetensors", "model-00002.safetensors"):
        tensors = {
            name: torch.randint(0, 256, (300_000,), dtype=torch.uint8, generator=generator)
            for name in "abc"
        }
        save_file(tensors, folder / file)
    return folder


def test_one_byte_of_a_middle_tensor_makes_another_model(folder: Path, tmp_path: Path) -> None:
    first = weights_digest(folder, tmp_path)
    path = folder / "model-00001.safetensors"
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size and path.stat().st_mtime_ns == times.st_mtime_ns
    assert weights_digest(folder, tmp_path) != first


def test_the_digest_is_that_of_the_bytes_and_made_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    digest = module.file_digest

    def noted(file: Any, kind: Any) -> Any:
        read.append(file.name)
        return digest(file, kind)

    monkeypatch.setattr(module, "file_digest", noted)
    first = weights_digest(folder, tmp_path)
    assert len(read) == 2
    assert weights_digest(folder, tmp_path) == first and len(read) == 2
    other = tmp_path / "copy"
    other.mkdir()
    for path in folder.iterdir():  # the kept digest too, which is not of these files
        (other / path.name).write_bytes(path.read_bytes())
    assert weights_digest(other, tmp_path) == first and len(read) == 4


def test_a_folder_that_cannot_be_written_has_its_digest_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "files"
    elsewhere.mkdir()
    write = Path.write_text

    def refused(self: Path, *args: object, **options: object) -> int:
        if self.parent == folder:
            raise PermissionError(13, "read-only")
        return write(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", refused)
    first = weights_digest(folder, elsewhere)
    assert [path.name[:8] for path in elsewhere.iterdir()] == ["weights-"]
    assert sorted(path.suffix for path in folder.iterdir()) == [".safetensors"] * 2
    monkeypatch.setattr(module, "file_digest", None)
    assert weights_digest(folder, elsewhere) == first, "it is not made again"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": []}'])
def test_a_digest_that_cannot_be_read_is_made_again(
    folder: Path, tmp_path: Path, text: str
) -> None:
    first = weights_digest(folder, tmp_path)
    (kept,) = folder.glob(".baton*")
    kept.write_text(text)
    assert weights_digest(folder, tmp_path) == first


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "state"
    key = state_key(path)
    assert len(key) == 32 and state_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_processes_that_ask_at_once_get_one_key(tmp_path: Path) -> None:
    found: list[bytes] = []
    begin = threading.Barrier(8)

    def ask() -> None:
        begin.wait(DEADLINE)
        found.append(state_key(tmp_path / "key"))

    threads = [child_thread(ask, f"ask-{each}", lambda error: None) for each in range(8)]
    for thread in threads:
        thread.join(DEADLINE)
    assert len(found) == 8 and len(set(found)) == 1


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("ab" * 32, 0o644, "others may read the key. Make it 600"),
        ("ab" * 31, 0o600, "must hold 64 hexadecimal digits; got 62"),
        ("secret", 0o600, "cannot be used"),
    ],
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, text: str, mode: int, told: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=told):
        state_key(path)


def test_names_depend_on_key_model_salt_and_every_token_before(seeded: random.Random) -> None:
    tokens = [seeded.randrange(1 << 20) for _ in range(64)]
    names = FileNames(b"k" * 32, "model", 16)
    along = names.along(token_key(tokens), b"")
    assert len(along) == 4 and names.along(token_key(tokens[:40]), b"") == along[:2]
    at = seeded.randrange(16, 32)
    other = names.along(token_key([*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]), b"")
    assert other[0] == along[0] and not set(other[1:]) & set(along)
    for changed in (
        names.along(token_key(tokens), b"s" * 16),
        FileNames(b"l" * 32, "model", 16).along(token_key(tokens), b""),
        FileNames(b"k" * 32, "other", 16).along(token_key(tokens), b""),
    ):
        assert not set(changed) & set(along)
    assert names.folder() == FileNames(b"k" * 32, "other", 16).folder()
    assert names.folder(b"s" * 16) != names.folder()
    assert len(names.mac("a", b"x")) == MAC_BYTES
    assert len({names.mac("a", b"x"), names.mac("b", b"x"), names.mac("a", b"y")}) == 3
