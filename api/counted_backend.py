"""A `Backend` that counts the tokens of answers for the API keys that asked for them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from baton.api.backend import Backend, GenerateRequest, Health, ModelInfo, TokenEvent
from baton.api.key_accounts import KeyAccounts
from baton.core.finish import Finished


class CountedBackend:
    """`backend`, whose answers `accounts` hears of."""

    def __init__(self, backend: Backend, accounts: KeyAccounts) -> None:
        self._backend = backend
        self._accounts = accounts

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        accounts, request_id = self._accounts, request.request_id
        try:
            async with aclosing(self._backend.generate(request)) as events:
                async for event in events:
                    if isinstance(event, TokenEvent):
                        accounts.used(request_id, len(event.token_ids))
                    yield event
        finally:
            accounts.settle(request_id)

    def check_room(self, owner: str | None) -> None:
        self._backend.check_room(owner)

    async def cancel(self, request_id: str) -> None:
        await self._backend.cancel(request_id)

    async def abort(self, name: str | None, owner: str | None = None) -> int:
        return await self._backend.abort(name, owner)

    async def models(self) -> Sequence[ModelInfo]:
        return await self._backend.models()

    async def server_info(self) -> Mapping[str, object]:
        return await self._backend.server_info()

    async def health(self) -> Health:
        return await self._backend.health()

    async def flush_cache(self, timeout_s: float) -> None:
        await self._backend.flush_cache(timeout_s)
