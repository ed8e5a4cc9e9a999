"""A worker's registrations: one with each router of its cluster."""

import asyncio
from collections.abc import Iterator, Mapping

from baton.core.supervised import OnFailure, spawn
from baton.worker.context import WorkerContext
from baton.worker.registration import Registration
from baton.worker.reporter import Reporter
from baton.worker.router_shares import RouterShares


class Registrations:
    """The registrations with the routers at fixed addresses, and with those that move, which are
    known by their names.
    """

    def __init__(self, context: WorkerContext, reporter: Reporter) -> None:
        """Begin with the configured routers. All run until the worker ends."""
        self._context = context
        self._reporter = reporter
        self._shares = RouterShares(self._tell_shares)
        self._fixed = [self._begin(address) for address in context.config.routers]
        self._named: dict[str, Registration] = {}

    def __iter__(self) -> Iterator[Registration]:
        yield from self._fixed
        yield from self._named.values()

    def meet(self, addresses: Mapping[str, str]) -> None:
        """Register with routers at new addresses, by their names; those of before are left."""
        for name, address in addresses.items():
            known = self._named.get(name)
            if known is None:
                self._named[name] = self._begin(address, name)
            else:
                known.move(address)

    async def heard_leaving(self) -> bool:
        """Wait until all routers know that this worker leaves; return False if there are none."""
        await asyncio.gather(*(each.heard_leaving() for each in self))
        return any(True for _ in self)

    async def close(self) -> None:
        """End all registrations for good; return when no router has this worker any more."""
        await asyncio.gather(*(each.close() for each in self))

    def _begin(self, address: str, name: str | None = None) -> Registration:
        context = self._context
        registration = Registration(
            address,
            context.hello,
            context.credentials,
            self._reporter,
            context.config.lease_ms,
            self._shares,
            name,
        )
        # ANEW: each connection begins with all that the router has to know.
        named = f"registration with {name or address}"
        spawn(registration.run, context.owner, OnFailure.ANEW, named, may_return=True)
        return registration

    def _tell_shares(self) -> None:
        for registration in self:
            registration.divided()
