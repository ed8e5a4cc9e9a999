"""A router asks requests back for workers that are idle, and leaves others where they are."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.router.placement.places import Places
from baton.router.sessions.recalls import AGAIN_S, LOOK_S, MOST_RETURNS, Bound, Recalls

CHUNK, TOKEN_US, STEP_US = 512, 1000.0, 50_000.0
STEP_S = (CHUNK * TOKEN_US + STEP_US) / 1e6


class Session:
    """A session with a rank, as far as recalls use it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def recall(self, stream: Any, *, computed: bool) -> None:
        self.asked.append((stream.name, computed))


class Router:
    """Recalls, what they see and what they ask for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.others_wait = False
        self.session = Session()
        self.seen = Places({"d0": 4}, [], {})
        self.recalls = Recalls(lambda: self.seen, lambda: not self.others_wait, lambda: self.now)

    def add(
        self, name: str, *, on: str = "p0", tokens: int = 100, cached: int = 0, returns: int = 0
    ) -> Bound:
        """Start a request whose prompt `on` computes."""
        status = SimpleNamespace(prompt_token_us=TOKEN_US, decode_step_us=STEP_US)
        worker = SimpleNamespace(
            worker_id=on, status=status, details=SimpleNamespace(prefill_chunk=CHUNK)
        )
        assignment = SimpleNamespace(
            here=on.startswith("d"),
            to_prefill=tokens - cached,
            reader=worker,
            rank=SimpleNamespace(worker_id="d0"),
        )
        live = SimpleNamespace(returns=returns, prefixes=[0] * tokens)
        stream = SimpleNamespace(name=name, next_index=0)
        return self.recalls.add(
            cast(Any, live), cast(Any, assignment), cast(Any, self.session), cast(Any, stream)
        )

    def look(self, **seen: Any) -> list[tuple[str, bool]]:
        """Look once. Return what was asked for."""
        self.seen = Places({"d0": 4}, seen.get("idle_prefills", []), seen.get("idle_ranks", {}))
        self.session.asked.clear()
        self.recalls.look()
        return [*self.session.asked]


@pytest.fixture
def router() -> Router:
    return Router()


def test_an_idle_rank_gets_the_newest_of_the_longest_queue(router: Router) -> None:
    for name, on in (("a", "p0"), ("b", "p1"), ("c", "p0"), ("d", "p1"), ("e", "p1")):
        router.add(name, on=on)
    assert router.look(idle_ranks={"d0": 1000}) == [("e", False)]


def test_a_recalled_prompt_leaves_its_prefill_worker_and_says_for_whom(router: Router) -> None:
    router.add("a")
    for_rank = router.add("b")
    assert router.look(idle_ranks={"d0": 1000}) == [("b", False)]
    assert (for_rank.avoid, for_rank.why) == (
        "p0",
        "d0 had no prompt to compute while it waited for p0",
    )

    router.add("c", on="p1")
    for_prefill = router.add("d", on="p1")
    assert router.look(idle_prefills=["p2"]) == [("d", False)]
    assert for_prefill.avoid == "p1"
    assert for_prefill.why == "another prefill worker was idle while it waited for p1"

    own = router.add("e", on="d0")
    assert router.look(idle_prefills=["p2", "p3", "p4"]) == [("e", True)]
    assert (own.avoid, own.why) == ("", "a prefill worker was idle while d0 had not begun it")


def test_each_idle_rank_gets_one(router: Router) -> None:
    for name, on in (("a", "p0"), ("b", "p1"), ("c", "p0"), ("d", "p1")):
        router.add(name, on=on)
    asked = router.look(idle_ranks={"d0": 1000, "d1": 1000})
    assert sorted(asked) == [("c", False), ("d", False)]


def test_the_only_prompt_of_a_prefill_worker_stays_there(router: Router) -> None:
    router.add("a", on="p0")
    router.add("b", on="p1")
    assert router.look(idle_ranks={"d0": 1000}, idle_prefills=["p2"]) == []


@pytest.mark.parametrize(("tokens", "cached"), [(101, 0), (100, 40)], ids=["too long", "cached"])
def test_a_rank_is_not_given_what_it_would_not_compute(
    router: Router, tokens: int, cached: int
) -> None:
    router.add("a")
    router.add("b", tokens=tokens, cached=cached)
    assert router.look(idle_ranks={"d0": 100}) == []


def test_a_rank_that_takes_none_of_those_that_wait_is_given_one_that_is_placed(
    router: Router,
) -> None:
    router.add("a")
    router.add("b")
    router.others_wait = True
    assert router.look(idle_ranks={"d0": 1000}) == [], "they may be on their way to it"
    assert router.look(idle_ranks={"d0": 1000}) == [("b", False)]


def test_a_rank_that_was_not_idle_at_the_last_look_is_left_to_those_that_wait(
    router: Router,
) -> None:
    router.add("a")
    router.add("b")
    router.others_wait = True
    assert router.look(idle_ranks={"d0": 1000}) == []
    assert router.look(idle_ranks={"d1": 1000}) == []


@pytest.mark.parametrize("others_wait", [False, True])
def test_an_idle_prefill_worker_gets_what_a_rank_was_given_last(
    router: Router, others_wait: bool
) -> None:
    router.add("a", on="d0")
    router.add("b", on="d1")
    router.others_wait = others_wait
    assert router.look(idle_prefills=["p0"]) == [("b", True)]
    assert router.look(idle_prefills=["p0"]) == [], "that one is on its way"


def test_what_a_rank_has_cached_stays_there(router: Router) -> None:
    router.add("a", on="d0", cached=50)
    assert router.look(idle_prefills=["p0"]) == []


def test_a_prompt_that_moved_stays_for_a_step(router: Router) -> None:
    router.add("a")
    router.add("b", returns=1)
    router.now += STEP_S * 0.9
    assert router.look(idle_ranks={"d0": 1000}) == []
    router.now += STEP_S * 0.2
    assert router.look(idle_ranks={"d0": 1000}) == [("b", False)]


def test_a_prompt_moves_a_few_times_at_most(router: Router) -> None:
    router.add("a")
    router.add("b", returns=MOST_RETURNS)
    router.now += STEP_S * 2
    assert router.look(idle_ranks={"d0": 1000}) == []


def test_what_was_kept_is_asked_for_again_later(router: Router) -> None:
    router.add("a", on="d0")
    assert router.look(idle_prefills=["p0"]) == [("a", True)]
    router.now += AGAIN_S - LOOK_S
    assert router.look(idle_prefills=["p0"]) == []
    router.now += LOOK_S
    assert router.look(idle_prefills=["p0"]) == [("a", True)]


def test_a_first_token_ends_it(router: Router) -> None:
    own = router.add("a", on="d0")
    router.add("b")
    ahead = router.add("c")
    for each in (own, ahead):
        cast(Any, each.stream).next_index = 1
    assert router.look(idle_prefills=["p1"], idle_ranks={"d0": 1000}) == []
