"""The replay of a trace against the prefix cache: grids, the clairvoyant, division of memory."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.bench.prefix import clairvoyant
from baton.bench.prefix.budget import CacheBudget, PrefixBytes
from baton.bench.prefix.clairvoyant import Reuse, reuses
from baton.bench.prefix.cluster import STEP_S, PlacedReplay
from baton.bench.prefix.prefix import SIZES, TRACE_GRID, prefix
from baton.bench.prefix.replay import Replay, Replayed
from baton.bench.prefix.tiers import TierBudget
from baton.bench.prefix.trace import BLOCK, TokenRuns, TraceRequest
from baton.router.policies.registry import POLICIES

PAGE = 64
CAUSES = ("not_begun", "no_snapshot", "evicted", "elsewhere")
UNIT = PrefixBytes(state=0, kv=1)  # a prefix of n tokens takes n bytes


@pytest.fixture
def seed() -> int:
    """A seed that the output names; two processes collect the tests, so no name may have it."""
    drawn = random.randrange(1 << 31)
    print(f"seed {drawn}")
    return drawn


def request(tokens: int, *hash_ids: int) -> TraceRequest:
    assert len(hash_ids) == -(-tokens // BLOCK)
    return TraceRequest(0, tokens, 1, hash_ids)


def conversation(turns: int, each: int, name: int = 0) -> list[TraceRequest]:
    """Turns that grow by `each` tokens. A last block that is partly filled has a name of its own,
    as in the published traces.
    """
    made = []
    for turn in range(1, turns + 1):
        whole, rest = divmod(turn * each, BLOCK)
        names = [1000 * name + block for block in range(whole)]
        made.append(request(turn * each, *names, *([1000 * name + 500 + turn] if rest else [])))
    return made


def replayed(requests: list[TraceRequest], grid: int, budget: CacheBudget) -> Replayed:
    replay = Replay(PAGE, grid, budget, 1, SIZES)
    sums = replay.run(TokenRuns(7).keys(requests))
    replay.check()
    return sums


def test_snapshots_in_a_partly_filled_block_never_match() -> None:
    """Each turn ends 300 tokens into a block: on the model's grid its last snapshot lies in it."""
    turns = conversation(6, 2 * BLOCK + 300)
    plenty = CacheBudget(10_000, 10_000)
    assert replayed(turns, BLOCK, plenty).hit > replayed(turns, 256, plenty).hit


def test_a_reuse_is_the_longest_prefix_on_the_grid_that_was_computed_before() -> None:
    requests = [
        request(3 * BLOCK, 1, 2, 3),
        request(BLOCK + 10, 9, 8),
        request(4 * BLOCK, 1, 2, 7, 6),
        request(2 * BLOCK, 1, 2),  # its last token is computed in any case
        request(2 * BLOCK + 100, 1, 2, 7),  # block 7 again, but not all of it
    ]
    assert reuses(requests, BLOCK) == [
        Reuse(0, 2, 2 * BLOCK), Reuse(2, 3, BLOCK), Reuse(3, 4, 2 * BLOCK)
    ]  # fmt: skip
    assert reuses(requests, 64)[-1] == Reuse(2, 4, 2 * BLOCK + 64)
    assert reuses(requests, 64)[1] == Reuse(2, 3, 2 * BLOCK - 64)


def test_a_block_elsewhere_is_not_the_same_prefix() -> None:
    assert reuses([request(2 * BLOCK, 1, 2), request(3 * BLOCK, 5, 2, 3)], BLOCK) == []


def test_the_clairvoyant_keeps_what_saves_most_a_byte_and_a_request_of_waiting() -> None:
    requests = [
        request(5 * BLOCK, *range(10, 15)),
        *(request(BLOCK, 20 + n) for n in range(4)),
        request(2 * BLOCK, 30, 31),
        request(3 * BLOCK, 30, 31, 32),  # two blocks, one request later
        request(6 * BLOCK, *range(10, 16)),  # five blocks, seven requests later
    ]
    total = sum(each.input_length for each in requests)
    for budget, saved in ((BLOCK, 0), (2 * BLOCK, 2), (5 * BLOCK, 2), (7 * BLOCK, 7)):
        rate = clairvoyant.hit_rate(requests, BLOCK, budget, UNIT)
        assert rate == pytest.approx(saved * BLOCK / total), budget


def test_with_room_for_all_the_clairvoyant_is_the_infinite_cache(seed: int) -> None:
    rng = random.Random(seed)
    turns = [conversation(rng.randint(1, 5), rng.randint(100, 3000), n) for n in range(9)]
    requests = [each for talk in turns for each in talk]
    rng.shuffle(requests)
    for grid in (64, 256, BLOCK):
        replay = Replay(PAGE, grid, CacheBudget(100_000, 100_000), 10**9, SIZES)
        best = replay.run(TokenRuns(7).keys(requests))
        rate = clairvoyant.hit_rate(requests, grid, 10**18, SIZES)
        assert rate == pytest.approx(best.hit_rate), grid


def test_a_budget_is_divided_in_the_ratio_of_bytes() -> None:
    sizes = PrefixBytes(state=1000, kv=1)
    assert CacheBudget.divided(300_000, 2.0, 100, sizes) == CacheBudget(1000, 200)
    assert CacheBudget.divided(300_000, 0.5, 100, sizes) == CacheBudget(2000, 100)


@pytest.mark.parametrize(("pages", "slots", "share"), [(40, 1000, 0.0), (10_000, 4, 1.0)])
def test_evictions_name_the_pool_that_ran_short(pages: int, slots: int, share: float) -> None:
    requests = [request(4 * BLOCK, *range(10 * n, 10 * n + 4)) for n in range(12)]
    done = replayed(requests, BLOCK, CacheBudget(pages, slots))
    assert done.for_slots + done.for_pages > 0
    assert done.short_of_slots == share


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    talks = [conversation(4, 700, n) for n in range(5)]
    path = tmp_path / "trace.jsonl"
    turns = [each for turn in zip(*talks, strict=True) for each in turn]
    rows = [vars(each) | {"timestamp": 1000 * number} for number, each in enumerate(turns)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def printed(trace: Path, *arguments: str) -> dict[str, dict[str, float]]:
    words = ["--trace", str(trace), "--json", "--seed", "5", *arguments]
    result = CliRunner().invoke(prefix, words)
    assert result.exit_code == 0, result.output
    report: dict[str, dict[str, float]] = json.loads(result.output.splitlines()[-1])
    return report


def test_both_kinds_of_grid_are_printed_with_a_clairvoyant_each(trace: Path) -> None:
    report = printed(trace, "--budgets", "1,2")
    results = report["results"]
    assert report["config"]["grid"] == TRACE_GRID == 512
    for grid in ("", "grid256_"):
        for size in ("1", "2"):
            rate, best = results[f"{grid}hit_rate_{size}"], results[f"{grid}best_hit_rate"]
            assert 0 <= rate <= best <= 1
            assert 0 < results[f"{grid}clairvoyant_{size}"] <= best
    assert results["best_hit_rate"] == results["grid256_best_hit_rate"]
    assert results["hit_rate"] == results["hit_rate_2"]


SMALL = CacheBudget(60, 4)  # room for one prompt of `arrivals`, and little more
PLENTY = CacheBudget(10_000, 10_000)


@pytest.mark.parametrize("files", [False, True])
def test_tiers_that_hold_all_make_a_small_pool_hit_as_an_infinite_one(
    files: bool, seed: int
) -> None:
    prompts = [key for _, key in arrivals(random.Random(seed))]
    behind = TierBudget(SMALL, 10**15) if files else TierBudget(PLENTY)
    best, alone, tiered = (
        Replay(PAGE, BLOCK, at, 1, SIZES, tiers)
        for at, tiers in ((PLENTY, None), (SMALL, None), (SMALL, behind))
    )
    wanted, found, few = best.run(prompts), tiered.run(prompts), alone.run(prompts)
    tiered.check()
    assert few.hit < found.hit == wanted.hit
    assert (found.file > 0) == files
    assert 0 < found.host + found.file <= found.hit


def test_files_over_their_budget_go(seed: int) -> None:
    prompts = [key for _, key in arrivals(random.Random(seed))]
    few_bytes = 4 * SIZES.of(BLOCK)
    some, all_of_them = (
        Replay(PAGE, BLOCK, SMALL, 1, SIZES, TierBudget(SMALL, nbytes)).run(prompts)
        for nbytes in (few_bytes, 10**15)
    )
    assert some.hit < all_of_them.hit


def test_a_trace_is_replayed_with_tiers_behind_each_budget(trace: Path) -> None:
    report = printed(trace, "--budgets", "1", "--host-gb", "2", "--file-gb", "100")
    results = report["results"]
    assert results["pools_1"] < results["hit_rate_1"] == results["best_hit_rate"]
    assert results["of_best_1"] == 1
    assert results["file_1"] > 0 and results["host_1"] + results["file_1"] <= 1
    assert report["config"]["host_gb"] == 2 and report["config"]["file_gb"] == 100


def test_one_grid_and_several_divisions_can_be_asked_for(trace: Path) -> None:
    report = printed(trace, "--budgets", "1", "--grid", "128", "--mamba-full-memory-ratio", "2,0.5")
    results = report["results"]
    assert report["config"]["grid"] == 128
    assert not any(name.startswith("grid256") for name in results)
    assert results["hit_rate_1"] == results["hit_rate_1_ratio_2"]
    assert {"hit_rate_1_ratio_0.5", "short_of_slots_1_ratio_0.5"} <= results.keys()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--grid", "100"), "must be a multiple of --page-size; got 64"),
        (("--mamba-full-memory-ratio", "1,0"), "expected positive numbers"),
        (("--file-gb", "8"), "--file-gb needs --host-gb"),
        (("--cluster", "--host-gb", "8"), "leave it out with --cluster"),
        (("--budgets", "many"), "expected positive numbers"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    trace: Path, arguments: tuple[str, ...], told: str
) -> None:
    result = CliRunner().invoke(prefix, ["--trace", str(trace), *arguments])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def cache() -> Replay:
    return Replay(PAGE, BLOCK, CacheBudget(500, 40), 1, SIZES)


def arrivals(rng: random.Random) -> list[tuple[float, bytes]]:
    """Conversations of growing prompts, whose turns come in any order but their own."""
    keys = [iter(TokenRuns(7).keys(conversation(6, BLOCK, name))) for name in range(12)]
    order = [name for name in range(12) for _ in range(6)]
    rng.shuffle(order)
    return [(3.0 * number, next(keys[name])) for number, name in enumerate(order)]


def test_one_worker_behind_a_router_hits_what_its_cache_hits_alone(seed: int) -> None:
    prompts = arrivals(random.Random(seed))
    alone = cache().run(key for _, key in prompts)
    placed = PlacedReplay(1, "prefix_aware", cache, 1000.0, BLOCK).run(prompts)
    assert (placed.tokens, placed.hit) == (alone.tokens, alone.hit)
    assert placed.computed == [alone.tokens - alone.hit]
    assert placed.imbalance == 1 and len(placed.waits_s) == alone.requests


def test_prompts_wait_for_those_before_them_and_for_their_own_tokens() -> None:
    first, second = (TokenRuns(7).key(request(BLOCK, name)) for name in (1, 2))
    placed = PlacedReplay(1, "round_robin", cache, BLOCK / 2, BLOCK).run(
        [(0.0, first), (0.5, second)]
    )
    assert placed.waits_s == [2.0, 3.5]
    placed = PlacedReplay(2, "round_robin", cache, BLOCK / 2, BLOCK).run(
        [(0.0, first), (0.5, second)]
    )
    assert placed.waits_s == [2.0, 2.0]


def test_an_idle_rank_computes_what_would_wait_for_a_prefill_worker() -> None:
    """The second one; the third, while the rank still writes the answer to it, and with steps of
    that answer between its parts."""
    keys = [TokenRuns(7).key(request(BLOCK, name)) for name in (1, 2, 3)]
    speed = BLOCK / 2
    placed = PlacedReplay(1, "prefix_aware", cache, speed, BLOCK, ranks=1).run(
        [(0.0, keys[0]), (0.5, keys[1]), (2.6, keys[2])], [0, 1000, 1]
    )
    assert placed.waits_s == pytest.approx([2.0, 2.0, 2.0])
    assert placed.on_ranks == 1, "nothing waits at the prefill worker then"
    placed = PlacedReplay(1, "prefix_aware", cache, speed, BLOCK, ranks=1).run(
        [(0.0, keys[0]), (0.1, keys[1]), (2.2, keys[0] + keys[2]), (2.3, keys[1] + keys[2])],
        [0, 1000, 1, 1],
    )
    steps_s = BLOCK / 64 * STEP_S
    assert placed.waits_s == pytest.approx([2.0, 2.0, 2.0, 2.0 + steps_s])
    assert (placed.on_ranks, placed.rank_share) == (2, 0.5)


def test_idle_workers_hit_as_one_large_cache_where_prompts_are_placed_by_prefix(seed: int) -> None:
    prompts = arrivals(random.Random(seed))
    shared = Replay(PAGE, BLOCK, CacheBudget(5000, 500), 1, SIZES)
    best = shared.run(key for _, key in prompts)
    by_prefix, by_turns = (
        PlacedReplay(4, policy, cache, 1000.0, BLOCK).run(prompts)
        for policy in ("prefix_aware", "round_robin")
    )
    assert by_turns.hit < by_prefix.hit == best.hit
    assert sum(by_prefix.computed) + by_prefix.hit == by_turns.tokens


def test_a_trace_is_replayed_on_a_cluster_by_every_policy(trace: Path) -> None:
    found = printed(trace, "--cluster", "--workers", "3", "--budgets", "8")["results"]
    for load in ("0.5", "0.9"):
        for policy in POLICIES:
            assert 0 <= found[f"hit_rate_{policy}_{load}"] <= found["best_hit_rate"] + 1e-9
            assert 1 <= found[f"imbalance_{policy}_{load}"] <= 3
            causes = [found[f"missed_{each}_{policy}_{load}"] for each in CAUSES]
            assert found[f"of_best_{policy}_{load}"] + sum(causes) == pytest.approx(1)
        assert 0 <= found[f"hit_rate_ranks_{load}"] <= found["best_hit_rate"] + 1e-9
        assert 0 <= found[f"rank_share_ranks_{load}"] < 1
    assert 0 < found["of_best_clairvoyant"] <= 1 + 1e-9
    assert 0 < found["of_best_pooled"] <= 1 + 1e-9


def test_a_trace_without_times_cannot_be_replayed_on_a_cluster(trace: Path) -> None:
    words = ["--trace", str(trace), "--cluster", "--requests", "1"]
    result = CliRunner().invoke(prefix, words)
    assert result.exit_code == 2 and "all requests of the trace come at once" in result.output
