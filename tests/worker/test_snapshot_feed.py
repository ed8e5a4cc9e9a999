"""Tests of what routers are told of a worker's prefix cache."""

import random

from baton.engine.cache.snapshot_log import EVICTED
from baton.worker.snapshot_feed import KEPT_BATCHES, SnapshotFeed


class Reader:
    """A reader of reports, as a router is one."""

    def __init__(self) -> None:
        self.has: dict[int, int] = {}
        self.sequence: int | None = None
        self.wholes = 0

    def read(self, feed: SnapshotFeed) -> None:
        report = feed.whole() if self.sequence is None else feed.since(self.sequence)
        if report is None:
            return
        self.wholes += report.whole
        if report.whole:
            self.has = {}
        else:
            assert report.after == self.sequence
        for digest in report.evicted:
            self.has.pop(digest, None)
        self.has |= dict(zip(report.made, report.depths, strict=True))
        self.sequence = report.sequence


def test_readers_at_any_pace_have_what_the_cache_has() -> None:
    rng = random.Random(random.randrange(2**32))
    feed, truth = SnapshotFeed(), dict[int, int]()
    quick, slow, stopped = Reader(), Reader(), Reader()
    stopped.read(feed)
    for _ in range(3 * KEPT_BATCHES):
        changes = {}
        for digest in rng.sample(range(1, 60), rng.randrange(4)):
            changes[digest] = EVICTED if digest in truth else rng.randrange(1, 2**32)
        feed.add(changes)
        truth = {d: n for d, n in (truth | changes).items() if n != EVICTED}
        quick.read(feed)
        assert quick.has == truth
        if rng.random() < 0.1:
            slow.read(feed)
            assert slow.has == truth
    stopped.read(feed)
    assert stopped.has == truth
    assert (quick.wholes, slow.wholes, stopped.wholes) == (1, 1, 2), "the last missed too many"


def test_a_reader_who_has_everything_is_told_nothing() -> None:
    feed = SnapshotFeed()
    feed.add({7: 64})
    assert feed.since(feed.whole().sequence) is None
    feed.add({})
    assert feed.since(feed.whole().sequence) is None
