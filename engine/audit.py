"""Do the books balance? Cheap enough to ask in production."""

from collections import Counter
from collections.abc import Iterable

from baton.engine.errors import InvariantError
from baton.engine.memory.id_pool import IdPool
from baton.engine.memory.owners import Owner
from baton.engine.request import Request, Reservation


def audit(
    slots: IdPool,
    pages: IdPool,
    page_size: int,
    requests: Iterable[Request],
    reservations: Iterable[Reservation],
) -> list[str]:
    """What is wrong: every slot and page must be free or owned exactly once, and what is live or
    reserved must be what these requests and reservations say. [] when all is well."""
    findings: list[str] = []
    for pool in (slots, pages):
        try:
            pool.check()
        except InvariantError as error:
            findings.append(str(error))
    requests, reservations = list(requests), list(reservations)
    live_slots = [r.slot for r in requests if r.slot]
    live_pages = [page for r in requests for page in r.pages]
    ticket_pages = [page for r in reservations for page in r.pages]
    findings += _compare(slots, Owner.LIVE, live_slots)
    findings += _compare(pages, Owner.LIVE, live_pages)
    findings += _compare(slots, Owner.TICKET, [r.slot for r in reservations])
    findings += _compare(pages, Owner.TICKET, ticket_pages)
    for request in requests:
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
