"""The options of `baton router`."""

from dataclasses import dataclass
from pathlib import Path

from baton.core.options import Folder, Group, Whole, option
from baton.deploy.options.access import (
    ClientTlsOptions,
    ExposureOptions,
    ListenOptions,
    StopOptions,
)
from baton.deploy.options.file_option import FileOptions
from baton.deploy.options.model import ModelOptions
from baton.router.options import RouterOptions


# fmt: off
@dataclass(frozen=True, kw_only=True)
class RouterArguments:
    """All options of one router by hand."""

    file: FileOptions
    model: ModelOptions
    router: RouterOptions
    exposure: ExposureOptions
    client_tls: ClientTlsOptions
    listen: ListenOptions
    stop: StopOptions
    credentials: Path = option(
        Path(), Group.INSIDE,
        "Folder of this router's certificate (tls.crt, tls.key, ca.crt), as `baton certs issue "
        "router NAME` makes it.", Folder(), required=True)
    routers: int = option(
        1, Group.WORKERS,
        "Number of routers that the cluster has; this one serves a part of every API key's caps.",
        Whole(1))
# fmt: on
