"""Every channel there is. A new channel is one file, and one line here."""

import contextlib
import logging

from baton.transfer.channels.base import Channel
from baton.transfer.channels.grpc.channel import GrpcChannel
from baton.transfer.channels.local import LocalChannel
from baton.transfer.channels.names import AUTO
from baton.transfer.channels.nixl.channel import NixlChannel
from baton.transfer.channels.trusted_network import LOCAL, TrustedNetwork
from baton.transfer.errors import ChannelError

log = logging.getLogger(__name__)

CHANNELS: tuple[type[Channel], ...] = (
    LocalChannel,
    NixlChannel,
    GrpcChannel,
)
"""The best first: `auto` offers and chooses them in this order."""

NAMES = tuple(channel.name for channel in CHANNELS)


def find(name: str) -> type[Channel]:
    """Return the channel of that name. Raises KeyError where there is none."""
    return {channel.name: channel for channel in CHANNELS}[name]


def select(wanted: str, *, alone: bool, network: TrustedNetwork = LOCAL) -> list[type[Channel]]:
    """Return the channels that `--channel wanted` means, the best first.

    alone: this worker's engine is the only one of its process.
    Raises ChannelError where the one that is named cannot be used here. With `auto` a channel that
    cannot be used is left out. Raises ConfigError for settings that contradict each other.
    """
    if wanted == AUTO:
        return [channel for channel in CHANNELS if _usable(channel, network, alone=alone)]
    channel = find(wanted)
    if not channel.capabilities.push:
        raise ChannelError(f"--channel {wanted} cannot carry hand-offs: it only reads prefixes")
    if channel.capabilities.in_process and alone:
        raise ChannelError(
            f"--channel {wanted} joins engines of one process; this process has no other engine"
        )
    channel.check_usable(network)
    return [channel]


def check_settings(wanted: str, network: TrustedNetwork) -> None:
    """Check the settings of every channel that `--channel wanted` may use, before a start.

    Raises as `Channel.check_settings` does; with `auto` a channel may be excluded.
    """
    for channel in CHANNELS:
        if wanted == channel.name:
            channel.check_settings(network)
        elif wanted == AUTO:
            with contextlib.suppress(ChannelError):
                channel.check_settings(network)


def check_room(wanted: str, ends: int) -> None:
    """Raise ChannelError where this machine lacks room for as many ends of a channel that
    `--channel wanted` may use.
    """
    for channel in CHANNELS:
        if wanted in (AUTO, channel.name):
            channel.check_room(ends)


def fallbacks() -> list[type[Channel]]:
    """Return the channels that every worker serves, whatever `--channel` says."""
    return [channel for channel in CHANNELS if channel.capabilities.fallback]


def maps_peers() -> bool:
    """Return whether any channel lets this process write into others without their help."""
    return any(channel.maps_peers() for channel in CHANNELS)


def maps_namespaces(*, on_device: bool) -> bool:
    """Return whether any channel does so across pid namespaces. See `Channel.maps_namespaces`."""
    return any(channel.maps_namespaces(on_device=on_device) for channel in CHANNELS)


def _usable(channel: type[Channel], network: TrustedNetwork, *, alone: bool) -> bool:
    if channel.capabilities.in_process and alone:
        return False
    try:
        channel.check_usable(network)
    except ChannelError as error:
        log.warning("no %s channel: %s", channel.name, error)
        return False
    return True
