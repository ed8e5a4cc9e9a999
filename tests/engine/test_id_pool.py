"""The free lists, against a dictionary."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton.core.errors import InvariantError
from baton.engine.layout.owners import Owner
from baton.engine.memory.id_pool import IdPool

SIZE = 12
HOLDERS = st.sampled_from([o for o in Owner if o is not Owner.FREE])


class Books(RuleBasedStateMachine):
    """owned: the truth. fenced: freed ids and the forward that may still touch them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = IdPool(SIZE, "slot")
        self.owned: dict[int, Owner] = {}
        self.fenced: dict[int, int] = {}
        self.launched = self.completed = 0

    @rule(owner=HOLDERS, count=st.integers(0, 4))
    def take(self, owner: Owner, count: int) -> None:
        free = set(range(1, SIZE)) - set(self.owned)
        if owner is Owner.TICKET:
            free -= set(self.fenced)
        got = self.pool.take_many(count, owner)
        if len(free) < count:
            assert got is None
            return
        assert got is not None and len(set(got)) == count and set(got) <= free
        for ident in got:
            self.owned[ident] = owner
            self.fenced.pop(ident, None)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(sorted(self.owned)))
        self.pool.free(ident, self.owned.pop(ident), after=self.launched)
        if self.launched > self.completed:
            self.fenced[ident] = self.launched

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), owner=HOLDERS)
    def move(self, data: st.DataObject, owner: Owner) -> None:
        ident = data.draw(st.sampled_from(sorted(self.owned)))
        self.pool.move(ident, self.owned[ident], owner)
        self.owned[ident] = owner

    @rule()
    def launch(self) -> None:
        self.launched += 1

    @precondition(lambda self: self.completed < self.launched)
    @rule()
    def complete(self) -> None:
        self.completed += 1
        self.pool.complete(self.completed)
        self.fenced = {i: s for i, s in self.fenced.items() if s > self.completed}

    @rule(count=st.integers(0, SIZE), taken=st.integers(0, 4), fails=st.booleans())
    def group(self, count: int, taken: int, fails: bool) -> None:
        try:
            with self.pool.group(count):
                for _ in range(taken):
                    ident = self.pool.take(Owner.LIVE)
                    if ident is not None:
                        self.owned[ident] = Owner.LIVE
                        self.fenced.pop(ident, None)
                    self.pool.check()
                if fails:
                    raise KeyError
        except KeyError:
            pass

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def wrong_owner(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(sorted(self.owned)))
        wrong = Owner.CACHE if self.owned[ident] is not Owner.CACHE else Owner.LIVE
        for mistake in (
            lambda: self.pool.free(ident, wrong),
            lambda: self.pool.move(ident, wrong, Owner.LIVE),
            lambda: self.pool.free(0, Owner.LIVE),
            lambda: self.pool.free(SIZE, Owner.LIVE),
        ):
            with pytest.raises(InvariantError):
                mistake()

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        assert self.pool.available == SIZE - 1 - len(self.owned)
        assert self.pool.available_to_channels == self.pool.available - len(self.fenced)
        counts = self.pool.counts()
        for owner in Owner:
            if owner is not Owner.FREE:
                assert counts[owner] == list(self.owned.values()).count(owner)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
