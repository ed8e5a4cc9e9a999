"""The contexts that a cluster takes for a choice, and those that it takes for a fault."""

import random

import pytest

from baton.core.errors import RequestError
from baton.proto.common_pb2 import DECODE, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.router.cluster_view.contexts import LEAST_CONTEXT, SET_ASIDE_S, Contexts
from baton.router.cluster_view.worker_table import WorkerTable

OWN = 4096


class Table:
    """Contexts with a clock of the test, and workers that ask again when they are set aside."""

    def __init__(self, own: int = OWN) -> None:
        self.now = 0.0
        self.contexts = Contexts(lambda: self.now, own)
        self.told: dict[str, int] = {}

    def tell(self, **told: int) -> set[str]:
        """Report as these workers, in order, and then all again until nothing changes. Return
        those that are set aside."""
        self.told |= told
        aside: set[str] | None = None
        names = list(told)
        while True:
            before, aside = aside, {name for name in names if not self._taken(name)}
            if aside == before and names == list(self.told):
                return aside
            names = list(self.told)

    def _taken(self, name: str) -> bool:
        try:
            self.contexts.check(name, self.told[name])
        except RequestError as refused:
            assert name in str(refused)
            return False
        return True


@pytest.mark.parametrize(
    ("told", "aside", "of_all"),
    [
        ({"p0": 64}, set(), 64),
        ({"p0": 64, "d0": 4096}, {"p0"}, 4096),
        ({"d0": 4096, "p0": 64}, {"p0"}, 4096),
        ({"p0": 4096, "d0": 128, "d1": 128}, set(), 128),
        ({"p0": 512, "d0": 4096}, set(), 512),
        ({"p0": 511, "d0": 4096}, {"p0"}, 4096),
        ({"p0": 64, "p1": 64, "d0": 4096, "d1": 4096}, {"p0", "p1"}, 4096),
        ({"p0": 1 << 30, "d0": 4096}, set(), 4096),
        ({"p0": 0, "d0": 4096}, set(), 4096),
        ({"p0": 0}, set(), 0),
    ],
)
def test_the_usual_context_decides_in_any_order(
    told: dict[str, int], aside: set[str], of_all: int
) -> None:
    table = Table()
    assert table.tell(**told) == aside
    assert table.contexts.of_all() == of_all


def test_the_order_of_random_workers_does_not_matter() -> None:
    rng = random.Random(7)
    for _ in range(200):
        told = {f"w{i}": rng.choice([8, 64, 100, 512, 4096, 1 << 20]) for i in range(5)}
        results = set()
        for _ in range(4):
            table = Table()
            names = rng.sample(sorted(told), len(told))
            aside = table.tell(**{name: told[name] for name in names})
            results.add((frozenset(aside), table.contexts.of_all()))
            voices = sorted(min(tokens, OWN) for tokens in told.values())
            assert table.contexts.usual == voices[2]
            assert all((told[name] < voices[2] / 8) == (name in aside) for name in told)
        assert len(results) == 1


def test_a_worker_that_is_about_to_be_set_aside_does_not_count() -> None:
    contexts = Table().contexts
    contexts.check("p0", 64)
    assert contexts.of_all() == 64
    contexts.check("d0", 4096)
    assert contexts.of_all() == 4096
    with pytest.raises(RequestError, match="p0 is set aside: its context of 64 tokens"):
        contexts.check("p0", 64)


def test_workers_that_have_gone_have_no_voice() -> None:
    table = Table()
    assert table.tell(p0=4096, d0=64) == {"d0"}
    del table.told["p0"]
    table.contexts.forget("p0")
    assert table.tell(d0=64) == set() and table.contexts.of_all() == 64
    assert table.tell(p0=4096) == {"d0"}
    table.now += SET_ASIDE_S + 1  # d0 asks no more
    assert table.contexts.of_all() == table.contexts.usual == 4096
    del table.told["d0"]
    assert table.tell(d1=512) == set()


def test_what_is_less_than_the_least_is_refused_whatever_others_tell() -> None:
    contexts = Table(own=2).contexts
    contexts.check("p0", 0)
    assert contexts.least == LEAST_CONTEXT
    with pytest.raises(RequestError):
        contexts.check("p0", LEAST_CONTEXT - 1)


def test_a_worker_whose_lease_is_over_has_no_voice_until_it_is_back() -> None:
    table = WorkerTable(1.0, lambda: 0.0, OWN)
    hello = Hello(
        protocol_major=PROTOCOL_MAJOR,
        protocol_minor=PROTOCOL_MINOR,
        worker=WorkerIdentity(worker_id="d0", address="h:1", role=DECODE, incarnation=1),
    )
    worker = table.register(hello, 512)
    table.check_context(worker, 600)
    assert table.contexts.of_all() == 600
    while table.workers():
        table.tick()
    table.check_context(worker, 512)  # on the stream that has not ended yet
    table.remove(worker, "its stream ended")
    assert table.contexts.of_all() == 0
    table.register(hello, 700)
    table.check_context(worker, 512)
    assert table.contexts.of_all() == 700
