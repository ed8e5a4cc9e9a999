"""The part of a `Backend` that is another one's."""

from collections.abc import Mapping, Sequence

from baton.api.backend import Backend, Health, ModelInfo


class WrappedBackend:
    """The methods of `backend` besides `generate`, which a subclass changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

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
