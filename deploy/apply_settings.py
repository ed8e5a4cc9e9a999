"""The handling of `baton apply` where the cluster runs: from a file's settings to what is done."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from baton.core.errors import ConfigError
from baton.core.role import ROUTED_ROLES, Role
from baton.deploy.cluster.change_requests import APPLY, ApplyRequest, OptionChange
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.config_change import change_of
from baton.deploy.cluster.device_choice import ChosenDevice
from baton.deploy.cluster.newest_config import with_changes
from baton.deploy.cluster.preflight import settle_state_return, with_ends
from baton.deploy.cluster.present_settings import scaled_settings
from baton.deploy.cluster.wiring import Wiring
from baton.deploy.config_from import serve_config_from
from baton.deploy.errors import ControlError, ScaleError, StartError
from baton.deploy.messages.control import Handlers
from baton.deploy.messages.start_progress import StartProgress
from baton.deploy.options.config_file import names_of
from baton.deploy.options.in_force import default_of, read_settings
from baton.deploy.options.serve import ServeArguments, check_arguments
from baton.deploy.options.setting import Setting

Settings = dict[str, Setting]
_AT_START = {"detach", "verbose", "device", "gpus-per-worker"}  # settled at the start alone


def apply_handlers(cluster: Cluster) -> Handlers:
    """Return the handler of `ApplyRequest`."""
    return {APPLY: partial(handle_apply, cluster)}


def handle_apply(
    cluster: Cluster, arguments: Mapping[str, object], progress: StartProgress
) -> dict[str, object]:
    """Make a cluster's settings those of a file, and return what that changes. Raises DeployError.

    arguments: see `ApplyRequest`.
    """
    request = ApplyRequest.parse(arguments)
    here = {each.name: each for each in scaled_settings(cluster)}
    if not here:
        raise ControlError("this cluster was not started by `baton serve`, so it has no settings")
    wanted = wanted_settings(here, {each.name: each for each in request.settings})
    before = _plain_config(cluster.config, cluster.config.settings)
    config = _wanted_config(cluster.config, before, wanted)
    differing = [each for name, each in wanted.items() if each.value != here[name].value]
    changes = [_change(cluster.wiring, before, here, each, config) for each in differing]
    if not any(each.new_start for each in changes):
        cluster.rolling.check(replace(cluster.wiring, config=config))
    if not request.dry_run and wanted != here:
        _refuse_new_start(changes)
        _apply(cluster, config, wanted, request.drain_s, progress)
    return {"changes": [each.as_json() for each in changes]}


def wanted_settings(here: Settings, file: Settings) -> Settings:
    """Return what is wanted of each option: what the file says; the default of one that a file said
    before and does not any more; of all others what there is, such as what the command line said.
    """
    names = names_of("serve")
    unknown = file.keys() - here.keys()
    if unknown:
        raise ControlError(f"this cluster's release has no option {', '.join(sorted(unknown))}")
    return {
        name: file.get(name) or (default_of(names[name]) if _from_file(now) else now)
        for name, now in here.items()
    }


def _from_file(setting: Setting) -> bool:
    return setting.source.startswith("/")


def _change(
    wiring: Wiring, before: ClusterConfig, here: Settings, after: Setting, whole: ClusterConfig
) -> OptionChange:
    """Return what one option's new value asks for. whole: the config with all new values."""
    try:
        config = _wanted_config(wiring.config, before, here | {after.name: after})
    except StartError:  # it needs one of the others
        config = whole
    change = change_of(wiring, config)
    new_start = change.new_start or after.name in _AT_START
    return OptionChange(here[after.name], after, tuple(sorted(change.restarts)), new_start)


def _wanted_config(here: ClusterConfig, before: ClusterConfig, wanted: Settings) -> ClusterConfig:
    """Return a cluster's config with what is wanted, but for the numbers of workers.

    before: what its present settings make. Raises StartError.
    """
    try:
        return _changed(here, before, wanted)
    except ConfigError as err:
        raise StartError(str(err)) from err


def _changed(here: ClusterConfig, before: ClusterConfig, wanted: Settings) -> ClusterConfig:
    counts = {each.name: each for each in here.settings if each.name in tuple(ROUTED_ROLES)}
    after = _plain_config(here, (wanted | counts).values())
    config = with_changes(here, before, after)
    if before.state_return is not after.state_return:
        config = replace(config, state_return=settle_state_return(config)[0])
    return config


def _plain_config(here: ClusterConfig, settings: Iterable[Setting]) -> ClusterConfig:
    """Return what `baton serve` makes of settings, before anything is settled. Raises StartError
    or ConfigError.

    here: the config that gives what a start has chosen.
    """
    given = tuple(settings)
    arguments = read_settings(ServeArguments, given)
    check_arguments(arguments)
    arguments = replace(arguments, name=arguments.name or here.name)
    device = ChosenDevice(here.engine.device, "", here.placement.gpus)
    config = serve_config_from(arguments, device, given)
    return replace(config, engine=with_ends(config.engine, config.router.template))


def _refuse_new_start(changes: Iterable[OptionChange]) -> None:
    """Raise ScaleError if only a new start of the cluster can change an option."""
    refused = [f"{each.after.name} ({each.after.source})" for each in changes if each.new_start]
    if refused:
        raise ScaleError(
            f"only a new start can change {', '.join(refused)}, so nothing was changed: `baton "
            "stop`, then `baton serve -f`"
        )


def _apply(
    cluster: Cluster,
    config: ClusterConfig,
    wanted: Settings,
    drain_s: float,
    progress: StartProgress,
) -> None:
    """Let the workers leave that are too many, restart what must be, then let others join."""
    counts = {
        Role.PREFILL: round(_count(wanted, Role.PREFILL)),
        Role.DECODE: round(_count(wanted, Role.DECODE) * config.decode_dp),
    }
    for role, count in counts.items():
        if count < len(cluster.members(role)):
            cluster.scale(role, count, drain_s, progress)
    cluster.reconfigure(config, change_of(cluster.wiring, config).restarts, drain_s, progress)
    for role, count in counts.items():
        if count > len(cluster.members(role)):
            cluster.scale(role, count, drain_s, progress)
    cluster.reconfigure(replace(config, settings=tuple(wanted.values())), (), drain_s, progress)


def _count(wanted: Settings, role: Role) -> float:
    count = wanted[role.value].value
    assert isinstance(count, int | float)
    return count
