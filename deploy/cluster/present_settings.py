"""The options of a running cluster as they are now: as given, scaled since, and settled here."""

from collections.abc import Mapping
from dataclasses import replace

from baton.core.role import Role
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.wiring import threads_of
from baton.deploy.options.setting import Setting


def present_settings(cluster: Cluster) -> tuple[Setting, ...]:
    """Return each option with its present value. The source tells what an open value, as `auto`,
    stands for here.
    """
    settled = _settled(cluster.config) | {"http-port": cluster.http_url.rpartition(":")[2]}
    return tuple(_told(each, settled) for each in scaled_settings(cluster))


def scaled_settings(cluster: Cluster) -> tuple[Setting, ...]:
    """Return each option as it was given, with the numbers of workers that there are now."""
    counts = {
        "prefill": len(cluster.members(Role.PREFILL)),
        "decode": len(cluster.members(Role.DECODE)) / cluster.config.decode_dp,
    }
    return tuple(_counted(each, counts) for each in cluster.config.settings)


def _counted(setting: Setting, counts: Mapping[str, float]) -> Setting:
    count = counts.get(setting.name, setting.value)
    if count == setting.value:
        return setting
    assert isinstance(count, int | float)
    whole = int(count) if count == int(count) else count  # a scaled group may lack ranks
    return replace(setting, value=whole, source=f"baton scale; {setting.value} before")


def _told(setting: Setting, settled: Mapping[str, object]) -> Setting:
    here = settled.get(setting.name)
    if here is None or str(here) == str(setting.value):
        return setting
    return replace(setting, source=f"{setting.source}; {here} here")


def _settled(config: ClusterConfig) -> dict[str, object]:
    """Return what stands for values that are left open, by option."""
    return {
        "model": config.engine.model,
        "device": config.engine.device,
        "dtype": str(config.engine.dtype).removeprefix("torch."),
        "threads": threads_of(config),
        "channel": config.channel,
        "state-return": config.state_return,
        "cluster": config.name,
    }
