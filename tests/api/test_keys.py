"""The file of API keys, and the keyring that follows it."""

import json
import logging
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from baton.api.access.keys import (
    Key,
    Keyring,
    KeyScope,
    digest_of,
    new_key,
    read_keys,
    write_keys,
)
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, ConfigError
from baton.rpc.file_watcher import RECHECK_S

TEXT = new_key()
KEY = Key("ada", digest_of(TEXT), frozenset({KeyScope.INFER, KeyScope.METRICS}), 6)


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    write_keys(file, [KEY])
    return file


@pytest.fixture
def keys(path: Path, clock: Clock) -> Keyring:
    return Keyring(path, clock=clock)


def refused(keys: Keyring, text: str | None, scope: KeyScope) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        keys.admit(text, scope)
    return error.value.code


def test_a_file_keeps_digests_and_is_its_owners_alone(path: Path) -> None:
    assert read_keys(path) == (KEY,)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TEXT not in path.read_text()
    assert KEY.sha256 not in repr(KEY)
    assert [each.name for each in path.parent.iterdir()] == ["keys.json"]


def test_keys_are_long_and_never_twice_the_same() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100 and all(len(text) > 40 for text in made)


def test_a_key_opens_its_scopes(keys: Keyring) -> None:
    assert keys.admit(TEXT, KeyScope.INFER).name == "ada"
    assert keys.admit(TEXT, KeyScope.METRICS).name == "ada"
    assert refused(keys, TEXT, KeyScope.ADMIN) is ErrorCode.PERMISSION_DENIED
    for wrong in (None, "", TEXT[:-1], TEXT + "x", TEXT.upper(), KEY.sha256, "ada", "\u00e9"):
        assert refused(keys, wrong, KeyScope.INFER) is ErrorCode.UNAUTHENTICATED


def test_a_change_of_the_file_is_followed(keys: Keyring, path: Path, clock: Clock) -> None:
    other = new_key()
    write_keys(path, [replace(KEY, name="ben", sha256=digest_of(other))])
    clock.now += RECHECK_S / 2
    keys.admit(TEXT, KeyScope.METRICS)
    clock.now += RECHECK_S
    assert refused(keys, TEXT, KeyScope.METRICS) is ErrorCode.UNAUTHENTICATED
    assert keys.admit(other, KeyScope.METRICS).name == "ben"


@pytest.mark.parametrize("broken", ["{", "[]", '{"keys": [{"name": "x"}]}', None])
def test_a_broken_file_keeps_the_keys_of_before_and_is_logged_once(
    keys: Keyring, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    with caplog.at_level(logging.ERROR):
        path.unlink() if broken is None else path.write_text(broken)
        for _ in range(3):
            clock.now += 2 * RECHECK_S
            assert keys.admit(TEXT, KeyScope.METRICS).name == "ada"
    (record,) = caplog.records
    assert "stays in use" in record.message and TEXT not in record.message
    write_keys(path, [])
    clock.now += 2 * RECHECK_S
    assert refused(keys, TEXT, KeyScope.METRICS) is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "12"}, "64 hexadecimal"),
        ({"sha256": "x" * 64}, "no file of API keys"),
        ({"scopes": ["all"]}, "'all' is not a valid KeyScope"),
        ({"requests_per_minute": 0}, "requests_per_minute of 'ada' .* at least 1"),
        ({"tokens_per_minute": 0}, "at least 1"),
        ({"concurrent_requests": 1.5}, "whole number"),
        ({"max_n": True}, "whole number"),
        ({"max_priority": -1001}, "at least -1000"),
        ({"name": ""}, "must be text"),
        ({"tokens": 1}, "unknown fields tokens"),
    ],
)
def test_an_entry_that_is_wrong_is_named(path: Path, change: dict[str, object], words: str) -> None:
    (entry,) = json.loads(path.read_text())["keys"]
    path.write_text(json.dumps({"keys": [entry | change]}))
    with pytest.raises(ConfigError, match=words):
        read_keys(path)


def test_two_keys_of_one_name_are_refused(path: Path) -> None:
    write_keys(path, [KEY, KEY])
    with pytest.raises(ConfigError, match="two API keys of one name"):
        read_keys(path)
