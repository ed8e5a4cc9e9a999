"""The log of the prefix cache's snapshots follows the cache."""

import random
from array import array

from engine.engines import assert_clean, greedy, make_engine, random_prompt, run, step_or_fail

from baton.core.cache_salt import SHARED, make_salt
from baton.engine.cache.snapshot_log import EVICTED
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec
from baton.text.prefix_digest import PrefixDigest


def digest(token_ids: tuple[int, ...], salt: bytes = SHARED) -> int:
    return PrefixDigest(salt).add(array("I", token_ids).tobytes())


def held(engine: Engine) -> dict[int, int]:
    """Digest to depth of every snapshot in the cache."""
    tree = engine._pools.cache.tree
    found = {}
    for node in tree:
        if node.snapshot is not None:
            salt, tokens = tree.path_key(node)
            found[PrefixDigest(salt).add(tokens)] = node.depth
    return found


def test_what_is_logged_adds_up_to_what_the_cache_has() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    engine = make_engine(pages=24, max_running=3)  # so few that it evicts all the time
    log = engine.prefixes.log_snapshots()
    has: dict[int, int] = {}
    gone = most = 0
    prompts = [random_prompt(rng, 20, 60) for _ in range(4)]
    salts = [SHARED, make_salt("ada")]
    for number in range(60):
        prompt = rng.choice(prompts)[: rng.randrange(17, 61)] + random_prompt(rng, 1, 30)
        spec = RequestSpec(f"r{number}", prompt, greedy(20), cache_salt=rng.choice(salts))
        engine.submit(spec)
        for _ in range(rng.randrange(8)):
            step_or_fail(engine)
        if rng.random() < 0.05:
            engine.flush_cache()
        assert_clean(engine)
        changes = log.take()
        gone += sum(depth == EVICTED for depth in changes.values())
        has = {d: n for d, n in (has | changes).items() if n != EVICTED}
        assert has == held(engine)
        most = max(most, len(has))
    assert gone > 20 and most > 1, "the test must evict, and keep some"


def test_a_digest_is_that_of_the_prompts_salt_and_tokens() -> None:
    engine = make_engine()
    log = engine.prefixes.log_snapshots()
    prompt, salt = tuple(range(40)), make_salt("ada")
    engine.submit(RequestSpec("r", prompt, greedy(1), cache_salt=salt))
    run(engine)
    made = log.take()
    assert made and all(made[digest(prompt[:depth], salt)] == depth for depth in made.values())
    assert log.take() == {}


def test_a_later_log_begins_with_what_the_cache_has() -> None:
    """The worker that an engine gets after another, as one that is started again in its process."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    engine = make_engine(pages=24, max_running=3)
    engine.prefixes.log_snapshots()
    engine.submit(RequestSpec("first", random_prompt(rng, 60, 61), greedy(5)))
    run(engine)
    log = engine.prefixes.log_snapshots()
    has = log.take()
    assert has and has == held(engine)
    for number in range(8):  # until those of the first are evicted
        engine.submit(RequestSpec(f"r{number}", random_prompt(rng, 60, 61), greedy(5)))
        run(engine)
    changes = log.take()
    assert any(changes.get(each) == EVICTED for each in has)
    assert {d: n for d, n in (has | changes).items() if n != EVICTED} == held(engine)
