"""The audit of owners. It is cheap enough to run in production."""

from collections import Counter
from collections.abc import Iterable

from baton.core.errors import InvariantError
from baton.engine.cache.cached_pools import CachedPools
from baton.engine.handoff.prefix_share import Loan
from baton.engine.handoff.reservations import Reservations
from baton.engine.layout.owners import Owner
from baton.engine.memory.id_pool import IdPool
from baton.engine.request.request import Request
from baton.engine.step.batch import Batch


def audit(
    pools: CachedPools,
    requests: Iterable[Request],
    reservations: Reservations,
    loans: Iterable[Loan],
    in_flight: Iterable[Batch],
) -> list[str]:
    """Describe every fault in the ownership of memory. Every slot, page and row must be free or
    owned exactly once, and what is live, reserved, quarantined, cached or tracked must be what
    these requests, reservations, cache and steps say. [] when all is well.
    """
    findings: list[str] = []
    slots, pages, rows, cache = pools.slots, pools.pages, pools.rows, pools.cache
    requests, loans = list(requests), list(loans)
    reserved, quarantined = list(reservations), reservations.quarantined
    if pools.backup is not None:
        findings += pools.backup.audit()
    for pool in (slots, pages, rows, cache):
        try:
            pool.check()
        except InvariantError as error:
            findings.append(str(error))
    for owner in (Owner.LIVE, Owner.TRANSFER):
        mine = [r for r in requests if r.owner is owner]
        findings += _compare(slots, owner, [r.slot for r in mine if r.slot])
        findings += _compare(pages, owner, [page for r in mine for page in r.owned])
    findings += _compare(rows, Owner.LIVE, [r.table_row for r in requests if r.table_row])
    for owner, held in ((Owner.TICKET, reserved), (Owner.QUARANTINE, quarantined)):
        findings += _compare(slots, owner, [r.state.slot for r in held])
        findings += _compare(pages, owner, [page for r in held for page in r.owned])
    cached_pages, cached_slots = cache.tree.owned()
    findings += _compare(slots, Owner.CACHE, cached_slots)
    findings += _compare(pages, Owner.CACHE, cached_pages)
    tracked = [t.slot for batch in in_flight for row in batch.rows for t in row.tracked]
    findings += _compare(slots, Owner.TRACK, tracked)
    findings += cache.tree.lock_findings(
        [r.node for r in requests if r.node is not None]
        + [r.node for r in (*reserved, *quarantined) if r.node is not None]
        + [loan.node for loan in loans],
        [r.resumes_from for r in requests if r.resumes_from] + [loan.node for loan in loans],
    )
    for request in requests:
        if not request.owned <= set(request.pages):
            findings.append(f"request {request.request_id} owns pages that its page list lacks")
        computed = request.lengths.computed
        if computed > len(request.pages) * pools.page_size:
            findings.append(
                f"request {request.request_id} has computed {computed} tokens but owns "
                f"{len(request.pages)} pages of {pools.page_size}"
            )
        if not bool(request.slot) == bool(request.pages) == bool(request.table_row):
            findings.append(
                f"request {request.request_id} owns some of a slot, a row and pages, but not all"
            )
    return findings


def _compare(pool: IdPool, owner: Owner, expected: list[int]) -> list[str]:
    """Compare the ids that the pool marks with `owner` with those that its owners have."""
    findings = [
        f"{pool.what} {ident} is {owner} of {count} owners at once"
        for ident, count in Counter(expected).items()
        if count > 1
    ]
    marked = {ident for ident in range(1, pool.size) if pool.owner(ident) is owner}
    leaked, stray = marked - set(expected), set(expected) - marked
    if leaked:
        findings.append(
            f"{pool.what}s {sorted(leaked)} are marked {owner}, but no owner lists them"
        )
    if stray:
        findings.append(
            f"{pool.what}s {sorted(stray)} are listed by an owner, but not marked {owner}"
        )
    return findings
