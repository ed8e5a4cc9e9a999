"""Do the books balance? Cheap enough to ask in production."""

from collections import Counter
from collections.abc import Iterable

from baton.engine.batch import Batch
from baton.engine.errors import InvariantError
from baton.engine.memory.id_pool import IdPool
from baton.engine.memory.owners import Owner
from baton.engine.prefix_cache import PrefixCache
from baton.engine.prefix_share import Loan
from baton.engine.request import Request, Reservation


def audit(
    slots: IdPool,
    pages: IdPool,
    page_size: int,
    requests: Iterable[Request],
    reservations: Iterable[Reservation],
    loans: Iterable[Loan],
    quarantined: Iterable[Reservation],
    cache: PrefixCache,
    in_flight: Iterable[Batch],
) -> list[str]:
    """What is wrong: every slot and page must be free or owned exactly once, and what is live,
    reserved, quarantined, cached or tracked must be what these requests, reservations, cache and
    steps say. [] when all is well."""
    findings: list[str] = []
    requests, reservations = list(requests), list(reservations)
    quarantined, loans = list(quarantined), list(loans)
    for books in (slots, pages, cache):
        try:
            books.check()
        except InvariantError as error:
            findings.append(str(error))
    for owner in (Owner.LIVE, Owner.TRANSFER):
        mine = [r for r in requests if r.owner is owner]
        findings += _compare(slots, owner, [r.slot for r in mine if r.slot])
        findings += _compare(pages, owner, [page for r in mine for page in r.owned])
    for owner, held in ((Owner.TICKET, reservations), (Owner.QUARANTINE, quarantined)):
        findings += _compare(slots, owner, [r.slot for r in held])
        findings += _compare(pages, owner, [page for r in held for page in r.owned])
    cached_pages, cached_slots = cache.owned()
    findings += _compare(slots, Owner.CACHE, cached_slots)
    findings += _compare(pages, Owner.CACHE, cached_pages)
    tracked = [t.slot for batch in in_flight for row in batch.rows for t in row.tracked]
    findings += _compare(slots, Owner.TRACK, tracked)
    findings += cache.lock_findings(
        [r.node for r in requests if r.node is not None]
        + [r.node for r in (*reservations, *quarantined) if r.node is not None]
        + [loan.node for loan in loans],
        [r.resumes_from for r in requests if r.resumes_from] + [loan.node for loan in loans],
    )
    for request in requests:
        if not request.owned <= set(request.pages):
            findings.append(f"request {request.request_id} owns pages that are not among its pages")
        if request.computed > len(request.pages) * page_size:
            findings.append(
                f"request {request.request_id} has computed {request.computed} tokens but owns "
                f"{len(request.pages)} pages of {page_size}"
            )
        if bool(request.slot) != bool(request.pages):
            findings.append(f"request {request.request_id} owns only one of slot and pages")
    return findings


def _compare(pool: IdPool, owner: Owner, expected: list[int]) -> list[str]:
    """The pool's view of `owner` against what its owners say they have."""
    findings = [
        f"{pool.what} {ident} is {owner} of {count} owners at once"
        for ident, count in Counter(expected).items()
        if count > 1
    ]
    marked = {ident for ident in range(1, pool.size) if pool.owner(ident) is owner}
    leaked, stray = marked - set(expected), set(expected) - marked
    if leaked:
        findings.append(f"{pool.what}s {sorted(leaked)} are {owner}, but no owner knows them")
    if stray:
        findings.append(f"{pool.what}s {sorted(stray)} have an owner, but are not {owner}")
    return findings
