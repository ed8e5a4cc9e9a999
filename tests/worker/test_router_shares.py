"""The division of a worker's room among routers: pure, and checked over random demands."""

import random

from hypothesis import given
from hypothesis import strategies as st

from baton.worker.router_shares import LEAST, RouterDemand, RouterShare, RouterShares, divide

MOST = 12


def demand(wanted: int = 0, held: int = 0, share: int = 0) -> RouterDemand:
    return RouterDemand(wanted, held, MOST, share)


@given(st.integers(1, 100), st.lists(st.integers(0, 150), min_size=1, max_size=6))
def test_all_is_divided_and_nobody_is_behind_who_wants_more(total: int, wanted: list[int]) -> None:
    parts = divide(total, wanted)
    assert min(parts) >= LEAST
    assert sum(parts) == max(total, LEAST * len(wanted))
    for mine, want in zip(parts, wanted, strict=True):
        if mine < want:
            assert mine >= max(parts) - 1, "one that lacks units has no fewer than another"


def test_routers_that_want_nothing_have_equal_parts() -> None:
    assert divide(12, [0, 0, 0]) == [4, 4, 4]


def test_the_part_of_an_idle_router_is_used_by_a_busy_one() -> None:
    assert divide(12, [0, 20, 0]) == [1, 10, 1]
    assert divide(12, [3, 20, 20]) == [3, 5, 4]


def read(shares: RouterShares, share: RouterShare, wanted: int, held: int) -> None:
    shares.heard(share, demand(wanted, held, share.number))


def test_one_router_alone_has_no_share() -> None:
    shares = RouterShares()
    only = shares.join("router-0", demand(wanted=5))
    assert not shares.divided and only.number == 0


def test_a_second_router_is_given_what_the_first_says_that_it_does_not_use() -> None:
    shares = RouterShares()
    first = shares.join("router-0", demand(wanted=12, held=12))
    second = shares.join("router-1", demand(wanted=12))
    assert shares.divided and shares.names == ["router-0", "router-1"]
    assert (first.units, second.units) == (6, LEAST), "the first still has 12 requests there"
    read(shares, first, wanted=12, held=9)
    assert (first.units, second.units) == (6, 3)
    read(shares, first, wanted=12, held=6)
    assert (first.units, second.units) == (6, 6)
    shares.leave(second)
    assert not shares.divided


def test_a_router_that_was_alone_for_a_while_gives_up_what_it_took() -> None:
    shares = RouterShares()
    first = shares.join("router-0", demand())
    second = shares.join("router-1", demand())
    for each in (first, second):
        read(shares, each, wanted=0, held=0)
    number = first.number
    shares.leave(second)
    again = shares.join("router-1", demand(wanted=6))
    assert first.number > number, "the router has to say that it knows of its share again"
    assert again.units == LEAST, "the first may have taken everything"
    read(shares, first, wanted=0, held=0)
    assert again.units == 6


def test_only_changes_are_told() -> None:
    told: list[int] = []
    shares = RouterShares(lambda: told.append(1))
    first = shares.join("router-0", demand())
    shares.join("router-1", demand())
    read(shares, first, wanted=0, held=0)
    told.clear()
    read(shares, first, wanted=1, held=1)
    assert not told, "both have their halves still"
    read(shares, first, wanted=12, held=1)
    assert told


def test_an_unread_share_counts_until_it_is_read() -> None:
    shares = RouterShares()
    first = shares.join("router-0", demand())
    second = shares.join("router-1", demand())
    read(shares, first, wanted=0, held=0)
    read(shares, second, wanted=0, held=0)
    assert (first.units, second.units) == (6, 6)
    before = first.number
    read(shares, second, wanted=12, held=6)
    assert (first.units, second.units) == (1, 6), "the first may act on 6 still"
    shares.heard(first, demand(0, 0, before))
    assert second.units == 6, "it has not read of its 1 yet"
    read(shares, first, wanted=0, held=0)
    assert second.units == 11


@given(st.integers(0, 2**32 - 1))
def test_routers_that_obey_never_have_more_than_there_is(seed: int) -> None:
    """Each router acts on the last share that it has read, which may be old."""
    rng = random.Random(seed)
    shares = RouterShares()
    here: list[tuple[RouterShare, dict[str, int]]] = []
    for number in range(3):
        share = shares.join(f"router-{number}", demand())
        here.append((share, {"limit": LEAST, "held": 0, "read": 0}))
    for _ in range(200):
        share, router = rng.choice(here)
        match rng.randrange(4):
            case 0:  # it fills its share
                router["held"] = max(router["held"], router["limit"])
            case 1 if router["held"]:  # some of its requests end
                router["held"] -= rng.randrange(1, router["held"] + 1)
            case 2:
                router["limit"], router["read"] = share.units, share.number
            case 3:
                wanted = router["held"] + rng.randrange(10)
                shares.heard(share, demand(wanted, router["held"], router["read"]))
        assert sum(router["held"] for _, router in here) <= MOST + LEAST * (len(here) - 1)
