"""The digests of a prompt's prefixes, in whatever order they are asked for."""

from array import array

from hypothesis import example, given
from hypothesis import strategies as st

from baton.text.prefix_digest import PrefixDigest, PromptPrefixes

TOKENS = 12
depths = st.sets(st.integers(0, TOKENS)).map(sorted)


@given(
    ids=st.lists(st.integers(0, 2**32 - 1), min_size=TOKENS, max_size=TOKENS),
    salt=st.sampled_from([b"", b"ada"]),
    asked=st.lists(depths, max_size=4),
)
@example(ids=[*range(TOKENS)], salt=b"ada", asked=[[4, 8], [6], [3, 7, 9], [8, 12]])
def test_a_prefix_has_one_digest_whenever_it_is_asked_for(
    ids: list[int], salt: bytes, asked: list[list[int]]
) -> None:
    prompt = PromptPrefixes(ids, salt)
    for lengths in asked:
        alone = [PrefixDigest(salt).add(array("I", ids[:n]).tobytes()) for n in lengths]
        assert prompt.digests(lengths) == alone


def test_an_array_of_token_ids_is_not_copied_and_others_become_one() -> None:
    ids = array("I", [1, 2, 70_000])
    assert PromptPrefixes(ids).token_ids is ids
    for same in ([*ids], tuple(ids), array("i", ids)):
        assert PromptPrefixes(same).token_ids == ids
        assert PromptPrefixes(same).digests([2, 3]) == PromptPrefixes(ids).digests([2, 3])
    assert len(PromptPrefixes(ids)) == 3
