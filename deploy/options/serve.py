"""The options of the commands that start a cluster."""

from dataclasses import dataclass

from baton.core.options import Group, option
from baton.deploy.options.access import (
    ClientTlsOptions,
    ExposureOptions,
    ListenOptions,
    StopOptions,
    check_access,
    check_exposed,
)
from baton.deploy.options.cluster import (
    AuthorityOptions,
    ClusterOptions,
    RankOptions,
    authority_of,
)
from baton.deploy.options.file_option import FileOptions
from baton.deploy.options.model import EngineArguments
from baton.deploy.options.placement import PlacementOptions, placement_of
from baton.deploy.options.records import (
    ProfileOptions,
    check_dump,
    check_profiles,
    check_telemetry,
)
from baton.router.options import RouterOptions


@dataclass(frozen=True, kw_only=True)
class ClusterArguments:
    """All options of a cluster but where clients reach it."""

    engine: EngineArguments
    cluster: ClusterOptions
    ranks: RankOptions
    router: RouterOptions
    client_tls: ClientTlsOptions
    placement: PlacementOptions
    authority: AuthorityOptions
    profiles: ProfileOptions


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ServeArguments(ClusterArguments):
    """All options of `baton serve`."""

    file: FileOptions
    listen: ListenOptions
    exposure: ExposureOptions
    stop: StopOptions
    name: str | None = option(
        None, Group.COMMAND,
        "Name of the cluster, by which other commands find it; one is made up when left out.",
        names=("--cluster",), metavar="NAME")
    detach: bool = option(
        False, Group.COMMAND,
        "Return when the cluster serves, which then outlives this command and its terminal, until "
        "`baton stop`.")
    verbose: bool = option(
        False, Group.COMMAND, "Print the whole traceback if the start fails.")
# fmt: on


def check_arguments(arguments: ServeArguments) -> None:
    """Check what can be checked without the model and the devices. Raises StartError."""
    router, host = arguments.router, arguments.listen.host
    check_exposed(host, router.api_keys, insecure=arguments.exposure.insecure)
    check_access(router)
    authority_of(arguments.authority)
    check_dump(router.dump)
    check_telemetry(router.telemetry)
    placement_of(arguments.placement)
    check_profiles(arguments.profiles)
