"""Backend requests from what a client asked for."""

from baton.api.requests import nth_seed


def test_the_answers_of_one_request_have_seeds_of_their_own() -> None:
    seeds = [nth_seed(1234, i) for i in range(100)]
    assert seeds[0] == 1234
    assert len(set(seeds)) == 100
    assert seeds == [nth_seed(1234, i) for i in range(100)]
    assert all(0 <= seed < 2**64 for seed in seeds if seed is not None)
    assert nth_seed(None, 3) is None
