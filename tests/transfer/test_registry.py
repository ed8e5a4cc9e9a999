"""Every channel has the ends that it declares, and a worker's options choose among all of them."""

import pytest
from transfer.layouts import Pools
from transfer.wires import channel_context

from baton.proto.common_pb2 import WorkerIdentity
from baton.transfer.channels import registry
from baton.transfer.channels.base import Channel
from baton.transfer.channels.trusted_network import TrustedNetwork
from baton.transfer.errors import ChannelError
from baton.transfer.tickets import TicketTable
from baton.worker.config import CHANNELS

EVERY = pytest.mark.parametrize("kind", registry.CHANNELS, ids=lambda kind: kind.name)


@EVERY
def test_a_channel_overrides_the_ends_that_it_declares_and_no_others(kind: type[Channel]) -> None:
    own = {end for end in ("open_receiver", "connect_sender", "connect_reader", "open_lender")
           if getattr(kind, end) is not getattr(Channel, end)}  # fmt: skip
    declared = kind.capabilities
    push = {"open_receiver", "connect_sender"} if declared.push else set()
    pull = {"connect_reader", "open_lender"} if declared.pull else set()
    assert own == push | pull and own


@EVERY
async def test_an_end_that_is_not_declared_says_so(kind: type[Channel]) -> None:
    pools = Pools()
    channel = Channel(channel_context(pools, TicketTable(pools.memory, 0)))
    channel.name = kind.name  # type: ignore[misc]
    for end in (
        channel.open_receiver(),
        channel.connect_sender(b"", WorkerIdentity()),
        channel.connect_reader(b""),
    ):
        with pytest.raises(NotImplementedError, match=f"{kind.name} has no pu"):
            await end
    with pytest.raises(NotImplementedError, match="no pull"):
        channel.open_lender()


def test_the_option_names_every_channel_and_each_name_is_one_channel() -> None:
    assert CHANNELS == ("auto", *(kind.name for kind in registry.CHANNELS))
    assert len(set(registry.NAMES)) == len(registry.CHANNELS)
    for kind in registry.CHANNELS:
        assert registry.find(kind.name) is kind


def test_there_is_a_fenced_fallback_that_joins_any_two_workers() -> None:
    """Prefixes come by it where nothing else joins two workers; a fetch that is given up has its
    memory back at once."""
    for kind in (fallbacks := registry.fallbacks()):
        assert kind.capabilities.fenced and not kind.capabilities.in_process
    assert fallbacks


def test_auto_leaves_out_what_cannot_be_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    (one_sided,) = [kind for kind in registry.CHANNELS if kind.capabilities.one_sided]

    def missing(network: TrustedNetwork) -> None:
        raise ChannelError("it is not installed")

    assert registry.select("auto", alone=False) == list(registry.CHANNELS)
    monkeypatch.setattr(one_sided, "check_usable", missing)
    left = registry.select("auto", alone=True)
    assert left == [
        kind
        for kind in registry.CHANNELS
        if kind is not one_sided and not kind.capabilities.in_process
    ]
    with pytest.raises(ChannelError, match="not installed"):
        registry.select(one_sided.name, alone=True)


def test_a_channel_of_one_process_needs_another_engine_there() -> None:
    (inside,) = [kind for kind in registry.CHANNELS if kind.capabilities.in_process]
    assert registry.select(inside.name, alone=False) == [inside]
    with pytest.raises(ChannelError, match=f"--channel {inside.name} .* no other engine"):
        registry.select(inside.name, alone=True)
