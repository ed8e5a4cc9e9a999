"""Digests that stand for salts."""

import pytest

from baton.core.cache_salt import SALT_BYTES, SHARED, is_salt, key_part, key_salt, make_salt


def test_a_salt_is_a_digest_of_fixed_length_that_shows_nothing_of_its_parts() -> None:
    salts = [make_salt("ada"), make_salt("ada", b"x" * SALT_BYTES), make_salt("", b"")]
    assert {len(salt) for salt in salts} == {SALT_BYTES} and len(set(salts)) == 3
    assert not any(b"ada" in salt for salt in salts)
    assert make_salt("ada") == make_salt("ada"), "every router of a cluster makes the same"


def test_all_salts_of_a_key_begin_alike_and_those_of_other_keys_do_not() -> None:
    parts = SHARED, make_salt("x"), make_salt("y")
    ours, theirs = ([key_salt(name, part) for part in parts] for name in ("ada", "bob"))
    assert all(is_salt(salt) and salt.startswith(key_part("ada")) for salt in ours)
    assert not any(salt.startswith(key_part("ada")) for salt in theirs)
    assert len({*ours, *theirs, *parts}) == 9


def test_no_part_is_the_shared_salt() -> None:
    assert make_salt() == SHARED
    assert make_salt("") != SHARED


@pytest.mark.parametrize(
    "other", [("a", "bc"), ("abc",), ("", "abc"), ("ab", "c", ""), ("c", "ab")]
)
def test_where_one_part_ends_makes_a_difference(other: tuple[str, ...]) -> None:
    assert make_salt("ab", "c") != make_salt(*other)


@pytest.mark.parametrize("length", [1, SALT_BYTES - 1, SALT_BYTES + 1, 64])
def test_other_lengths_are_no_salts(length: int) -> None:
    assert not is_salt(bytes(length))
    assert is_salt(SHARED) and is_salt(bytes(SALT_BYTES))
