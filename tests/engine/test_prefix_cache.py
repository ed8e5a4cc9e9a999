"""The prefix cache against a model that keeps every prefix in a dictionary."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from baton.core.cache_salt import SHARED, make_salt
from baton.core.errors import InvariantError
from baton.engine.cache.prefix_cache import Inserted, Match, PrefixCache
from baton.engine.cache.prefix_node import Node, Snapshot
from baton.engine.layout.token_key import token_key

PAGE = 4
Name = tuple[bytes, bytes]  # of a prefix: its cache salt, and its token key
salts = st.sampled_from([SHARED, make_salt("ada"), make_salt("bob")])
tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(
    lambda pages: [page * 100 + offset for page in pages for offset in range(PAGE)]
)


class Books:
    """Hands out page and slot ids, and knows who has them."""

    def __init__(self) -> None:
        self.next = 1
        self.ours: set[int] = set()

    def take(self, count: int) -> list[int]:
        ids = list(range(self.next, self.next + count))
        self.next += count
        self.ours |= set(ids)
        return ids


def new_cache(stateful: bool = True) -> tuple[PrefixCache, list[int], list[int]]:
    pages: list[int] = []
    slots: list[int] = []

    def evicted(gone_pages: list[int], gone_slots: list[int]) -> None:
        pages.extend(gone_pages)
        slots.extend(gone_slots)

    return PrefixCache(PAGE, stateful, evicted), pages, slots


def run(*pages: int) -> list[int]:
    return [page * 100 + offset for page in pages for offset in range(PAGE)]


def test_a_match_ends_at_the_deepest_snapshot_and_says_how_far_kv_goes() -> None:
    cache, _, _ = new_cache()
    cache.insert(token_key(run(1, 2, 3)), [11, 12, 13], [Snapshot(8, 7)])
    match = cache.match(token_key([*run(1, 2, 3), 5]), limit=12)
    assert (match.depth, match.snapshot, match.pages, match.kv_depth) == (8, 7, (11, 12), 12)


def test_the_last_prompt_token_is_always_computed() -> None:
    cache, _, _ = new_cache()
    cache.insert(token_key(run(1, 2)), [11, 12], [Snapshot(4, 7), Snapshot(8, 8)])
    match = cache.match(token_key(run(1, 2)), limit=7)
    assert (match.depth, match.snapshot) == (4, 7)


def test_a_split_leaves_the_upper_part_without_a_snapshot_and_shows_the_branch_point() -> None:
    cache, _, _ = new_cache()
    cache.insert(token_key(run(1, 2, 3)), [11, 12, 13], [Snapshot(12, 7)])
    cache.insert(token_key(run(1, 2, 4)), [21, 22, 23], [Snapshot(12, 8)])
    match = cache.match(token_key(run(1, 2, 5)), limit=11)
    assert (match.depth, match.snapshot, match.kv_depth) == (0, None, 8)
    assert cache.branch_point(match, grid=4) == 8
    assert cache.branch_point(match, grid=16) is None


def test_inserting_again_keeps_what_the_cache_had_and_revives_a_tombstone() -> None:
    cache, _, gone = new_cache()
    cache.insert(token_key(run(1, 2)), [11, 12], [Snapshot(4, 7), Snapshot(8, 8)])
    cache.match(token_key([*run(1, 2), 0]), limit=8)  # the inner snapshot is now the oldest
    assert cache.evict_snapshots(1) == 1 and gone == [7]
    again = cache.insert(token_key(run(1, 2)), [21, 22], [Snapshot(4, 9), Snapshot(8, 10)])
    assert again == Inserted(again.node, (11, 12), (21, 22), (10,))
    assert cache.match(token_key(run(1, 5)), limit=7).snapshot == 9
    cache.check()


def test_evicting_a_leafs_snapshot_frees_its_pages_and_the_dead_above_it() -> None:
    cache, pages, slots = new_cache()
    cache.insert(token_key(run(1)), [11])
    cache.insert(token_key(run(1, 2)), [11, 12], [Snapshot(8, 7)])
    assert cache.evict_snapshots(5) == 1
    assert sorted(pages) == [11, 12] and slots == [7] and not cache.nodes


def test_locked_pages_and_snapshots_stay() -> None:
    cache, pages, slots = new_cache()
    node = cache.insert(token_key(run(1, 2)), [11, 12], [Snapshot(4, 7), Snapshot(8, 8)]).node
    cache.lock(node)
    assert cache.evict_pages(9) == 0
    assert cache.evict_snapshots(9) == 1 and slots == [7]  # the inner one is nobody's resume point
    cache.unlock_snapshot(node)
    assert cache.evict_snapshots(9) == 1 and slots == [7, 8] and not pages
    cache.unlock_pages(node)
    assert cache.evict_pages(9) == 2 and sorted(pages) == [11, 12]


def test_pages_go_from_the_least_recently_used_leaf() -> None:
    cache, pages, _ = new_cache()
    cache.insert(token_key(run(1, 2)), [11, 12], [Snapshot(8, 7)])
    cache.insert(token_key(run(3, 4)), [13, 14], [Snapshot(8, 8)])
    cache.match(token_key([*run(1, 2), 0]), limit=8)
    assert cache.evict_pages(1) == 2 and sorted(pages) == [13, 14]


def test_a_match_refreshes_the_snapshot_that_it_uses_and_no_other() -> None:
    cache, _, slots = new_cache()
    cache.insert(token_key(run(1, 2)), [11, 12], [Snapshot(4, 7), Snapshot(8, 8)])
    cache.insert(token_key(run(3)), [13], [Snapshot(4, 9)])
    cache.match(token_key([*run(1, 2), 0]), limit=8)
    cache.evict_snapshots(2)
    assert slots == [7, 9]


def test_hopeful_snapshots_go_first_until_they_are_used() -> None:
    cache, _, slots = new_cache()
    cache.insert(token_key(run(1)), [10], [Snapshot(4, 6)])
    hopeful = [Snapshot(4, 7, opportunistic=True), Snapshot(8, 8, opportunistic=True)]
    cache.insert(token_key(run(5, 6, 7)), [11, 12, 13], [*hopeful, Snapshot(12, 9)])
    cache.match(token_key([*run(5), 0, 0, 0, 0]), limit=8)
    cache.evict_snapshots(3)
    assert slots == [8, 6, 9]


def test_without_recurrent_layers_every_page_boundary_can_be_resumed_from() -> None:
    cache, _, _ = new_cache(stateful=False)
    cache.insert(token_key(run(1, 2, 3)), [11, 12, 13])
    assert cache.match(token_key(run(1, 2, 3)), limit=11).pages == (11, 12)
    assert cache.match(token_key([*run(1, 2), 9, 9, 9, 9]), limit=11).pages == (11, 12)
    cache.check()


def test_unlocking_what_is_not_locked_is_an_error() -> None:
    cache, _, _ = new_cache()
    node = cache.insert(token_key(run(1)), [11], [Snapshot(4, 7)]).node
    with pytest.raises(InvariantError, match="not locked"):
        cache.unlock(node)


def test_requests_that_found_a_salt_empty_fill_one_tree_of_it() -> None:
    """Each begins below the root that it was given, though another has become the salt's."""
    cache, pages, _ = new_cache()
    salt = make_salt("ada")
    keys = [token_key(run(1, 2)), token_key(run(3)), token_key(run(1, 4))]
    roots = [cache.match(key, 3, salt).node for key in keys]
    cache.insert(keys[0], [11, 12], [Snapshot(8, 7)], below=roots[0])
    cache.insert(keys[1], [13], [Snapshot(4, 8)], below=roots[1])
    cache.check()
    assert [cache.match(key, 8, salt).depth for key in keys] == [8, 4, 0]
    cache.flush()
    assert sorted(pages) == [11, 12, 13]
    cache.insert(keys[2], [21, 22], [Snapshot(8, 9)], below=roots[2])
    cache.check()
    assert cache.match(keys[2], 8, salt).depth == 8 and cache.match(keys[2], 8).kv_depth == 0


def test_a_hot_leaf_does_not_make_the_books_grow() -> None:
    cache, _, _ = new_cache()
    node = cache.insert(token_key(run(1)), [11], [Snapshot(4, 7)]).node
    for _ in range(1000):
        cache.lock(node)
        cache.unlock(node)
    assert len(cache._leaves) == 1


class CacheAgainstDictionary(RuleBasedStateMachine):
    """`kv`: every page-aligned prefix that the cache should hold, with its salt -> its page.
    `states`: the same -> snapshot slot."""

    @initialize(stateful=st.booleans())
    def start(self, stateful: bool) -> None:
        self.books = Books()
        self.stateful = stateful
        self.cache = PrefixCache(PAGE, stateful, self.evicted)
        self.kv: dict[Name, int] = {}
        self.states: dict[Name, int] = {}
        self.locked: list[tuple[Node, Name, bool]] = []

    def evicted(self, pages: list[int], slots: list[int]) -> None:
        for held, gone in ((self.kv, pages), (self.states, slots)):
            for ident in gone:
                prefix = next(p for p, held_id in held.items() if held_id == ident)
                del held[prefix]
                self.books.ours.remove(ident)

    def prefixes(self, whole: Name) -> list[Name]:
        salt, key = whole
        return [(salt, key[: end * PAGE * 4]) for end in range(1, len(key) // (PAGE * 4) + 1)]

    @rule(tokens=tokens_of, salt=salts, data=st.data())
    def insert(self, tokens: list[int], salt: bytes, data: st.DataObject) -> None:
        key = token_key(tokens)
        ends = self.prefixes((salt, key))
        marks = data.draw(st.sets(st.sampled_from(range(1, len(ends) + 1)))) if ends else set()
        pages = self.books.take(len(ends))
        snapshots = [
            Snapshot(end * PAGE, slot)
            for end, slot in zip(sorted(marks), self.books.take(len(marks)), strict=True)
        ]
        done = self.cache.insert(key, pages, snapshots if self.stateful else [], salt=salt)
        spare = set(done.spare_pages) | set(done.spare_slots)
        for prefix, page in zip(ends, pages, strict=True):
            assert (page in spare) == (prefix in self.kv)
            self.kv.setdefault(prefix, page)
        assert list(done.pages) == [self.kv[prefix] for prefix in ends]
        for depth, slot, _ in snapshots:
            prefix = salt, key[: depth * 4]
            if self.stateful:
                assert (slot in spare) == (prefix in self.states)
                self.states.setdefault(prefix, slot)
            else:
                spare.add(slot)
        self.books.ours -= spare

    @rule(
        tokens=tokens_of,
        salt=salts,
        tail=st.integers(0, 5),
        limit=st.sampled_from([28, 28, 28, 13, 8, 3, 0]),
        keep=st.sampled_from([True, True, False]),
    )
    def match(self, tokens: list[int], salt: bytes, tail: int, limit: int, keep: bool) -> None:
        key = token_key([*tokens, *([7] * tail)])
        match = self.cache.match(key, limit, salt)
        known = [p for p in self.prefixes((salt, key)) if p in self.kv]
        usable = [
            p for p in known if len(p[1]) // 4 <= limit and (not self.stateful or p in self.states)
        ]
        assert match.kv_depth == len(known) * PAGE
        assert match.depth == (len(usable[-1][1]) // 4 if usable else 0)
        found = salt, key[: match.depth * 4]
        assert list(match.pages) == [self.kv[p] for p in self.prefixes(found)]
        if self.stateful and usable:
            assert match.snapshot == self.states[usable[-1]]
        if keep:
            self.lock(match, found)

    def lock(self, match: Match, found: Name) -> None:
        self.cache.lock(match.node)
        self.locked.append((match.node, found, True))

    @rule(tokens=tokens_of, salt=salts)
    def hold_kv(self, tokens: list[int], salt: bytes) -> None:
        """Hold the KV of a prefix, with a snapshot or without, for a ticket."""
        key = token_key(tokens)
        node, pages = self.cache.hold_kv(key, salt)
        known = [p for p in self.prefixes((salt, key)) if p in self.kv]
        assert list(pages) == [self.kv[p] for p in known]
        assert node.depth == len(known) * PAGE
        self.locked.append((node, (salt, key[: node.depth * 4]), False))

    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        if not self.locked:
            return
        at = data.draw(st.sampled_from(range(len(self.locked))))
        node, prefix, whole = self.locked.pop(at)
        if whole and data.draw(st.booleans()):
            self.cache.unlock_snapshot(node)
            self.locked.append((node, prefix, False))
        elif whole:
            self.cache.unlock(node)
        else:
            self.cache.unlock_pages(node)

    @rule(count=st.integers(1, 5))
    def evict_pages(self, count: int) -> None:
        before = len(self.kv)
        freed = self.cache.evict_pages(count)
        assert before - len(self.kv) == freed
        if freed < count:  # all that is left is on a locked path
            held = {p for _, name, _ in self.locked for p in self.prefixes(name)}
            assert set(self.kv) == held

    @rule(count=st.integers(1, 3))
    def evict_snapshots(self, count: int) -> None:
        before = len(self.states)
        freed = self.cache.evict_snapshots(count)
        assert before - len(self.states) == freed
        if freed < count:
            assert set(self.states) <= {prefix for _, prefix, whole in self.locked if whole}

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        pages, slots = self.cache.tree.owned()
        assert sorted(pages + slots) == sorted([*self.kv.values(), *self.states.values()])
        for _, prefix, whole in self.locked:
            assert all(p in self.kv for p in self.prefixes(prefix))
            assert not (whole and self.stateful and prefix[1]) or prefix in self.states
        salts_in_use = {salt for salt, _ in self.kv} | {SHARED}
        assert set(self.cache.tree.roots) == salts_in_use, "a salt without a prefix costs nothing"


TestCacheAgainstDictionary = CacheAgainstDictionary.TestCase
TestCacheAgainstDictionary.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None
)


def test_long_conversations_share_their_prefixes() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    cache, pages, _ = new_cache()
    turns: list[int] = []
    for turn in range(1, 40):
        turns += [rng.randrange(1000) for _ in range(PAGE * 3)]
        match = cache.match(token_key(turns), len(turns) - 1)
        assert match.depth == (turn - 1) * PAGE * 3
        cache.insert(token_key(turns), [turn * 1000 + i for i in range(turn * 3)],
                     [Snapshot(len(turns), turn)])  # fmt: skip
    assert cache.tree.pages == 39 * 3 and not pages
