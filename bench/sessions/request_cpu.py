"""The CPU time that a router's process takes for a request, by the kind of its body."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.bench.sessions.bodies import chat_bodies, generate_bodies, turn_bodies
from baton.bench.sessions.http_client import post_all
from baton.deploy.client.router_options import RouterAddress


@dataclass(frozen=True)
class CountedRouter:
    """A router, and the CPU seconds that all its threads have used."""

    address: RouterAddress
    cpu_s: Callable[[], float]

    def cost(self, path: str, bodies: Sequence[bytes], connections: int) -> float:
        """Return the CPU microseconds of one of these requests. Raises RequestFailed."""
        before = self.cpu_s()
        post_all(f"{self.address.url}{path}", bodies, connections, self.address)
        return (self.cpu_s() - before) / len(bodies) * 1e6

    def costs(self, requests: int, connections: int, rng: random.Random) -> dict[str, float]:
        """Return the microseconds of each kind of request.

        requests: of the small kinds. connections: as many conversations take their turns.
        """
        chat = "/v1/chat/completions"
        first, later = turn_bodies(connections, rng)
        return {
            "cpu_us_request_generate": self.cost(
                "/generate", generate_bodies(requests, rng), connections
            ),
            "cpu_us_request_chat": self.cost(chat, chat_bodies(requests, rng), connections),
            "cpu_us_request_first_turn": self.cost(chat, first, connections),
            "cpu_us_request_turn": self.cost(chat, later, connections),
        }
