"""A `Backend` that counts the tokens of answers for the API keys that asked for them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from baton.api.access.key_accounts import KeyAccounts
from baton.api.backend import Backend, GenerateRequest, TokenEvent, WrappedBackend
from baton.core.finish import Finished


class CountedBackend(WrappedBackend):
    """`backend`, whose answers `accounts` hears of."""

    def __init__(self, backend: Backend, accounts: KeyAccounts) -> None:
        super().__init__(backend)
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
