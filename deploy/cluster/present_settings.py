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
    config = cluster.config
    counts = {
        "prefill": len(cluster.members(Role.PREFILL)),
        "decode": len(cluster.members(Role.DECODE)) / config.decode_dp,
    }
    settled = _settled(config) | {"http-port": cluster.http_url.rpartition(":")[2]}
    return tuple(_present(each, counts, settled) for each in config.settings)


def _present(
    setting: Setting, counts: Mapping[str, float], settled: Mapping[str, object]
) -> Setting:
    count = counts.get(setting.name)
    if count is not None and count != setting.value:
        return replace(setting, value=count, source=f"baton scale; {setting.value} before")
    here = settled.get(setting.name)
    if here is not None and str(here) != str(setting.value):
        return replace(setting, source=f"{setting.source}; {here} here")
    return setting


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
