"""The hashes by which both sides of a hand-off know that they mean the same request."""

from baton.core.cache_salt import SHARED, make_salt
from baton.transfer.hashes import prompt_hash


def test_a_prompt_under_another_salt_is_another_prompt() -> None:
    salts = [SHARED, make_salt("ada"), make_salt("bob")]
    assert len({prompt_hash((1, 2, 3), salt) for salt in salts}) == 3
    assert prompt_hash((1, 2, 3)) == prompt_hash((1, 2, 3), SHARED)
    assert prompt_hash((1, 2, 3)) != prompt_hash((1, 2))
