"""The options of `baton worker`."""

from dataclasses import dataclass
from pathlib import Path

from baton.api.server.server_options import ClientServerOptions
from baton.core.options import Folder, Group, Whole, option
from baton.core.role import Role
from baton.core.telemetry_options import TelemetryOptions
from baton.deploy.options.access import PORT, ClientTlsOptions, ExposureOptions, StopOptions
from baton.deploy.options.file_option import FileOptions
from baton.deploy.options.model import EngineArguments
from baton.deploy.options.records import ProfileOptions
from baton.rpc.lease_options import LeaseOptions
from baton.transfer.channels.options import TransferOptions


# fmt: off
@dataclass(frozen=True, kw_only=True)
class WorkerArguments:
    """All options of one worker by hand."""

    file: FileOptions
    engine: EngineArguments
    server: ClientServerOptions
    exposure: ExposureOptions
    client_tls: ClientTlsOptions
    transfer: TransferOptions
    lease: LeaseOptions
    telemetry: TelemetryOptions
    profiles: ProfileOptions
    stop: StopOptions
    role: Role = option(Role.BOTH, Group.WORKERS, "Role in a cluster; both: stand alone.")
    threads: int | None = option(
        None, Group.WORKERS, "Compute threads; every core when left out.", Whole(1))
    tp: int = option(
        1, Group.WORKERS,
        "Tensor-parallel ranks, a process each, which share the threads, or have a GPU each.",
        Whole(1))
    worker_id: str | None = option(
        None, Group.WORKERS,
        "Kept through restarts; generated when left out. A decode worker's ends with its number, "
        "as decode-3.")
    host: str = option(
        "127.0.0.1", Group.ADDRESSES,
        "Address to listen on for clients; peers too without --peer-host.")
    http_port: int = option(
        8000, Group.ADDRESSES, "HTTP port for clients; 0: any.", PORT, names=("--http",))
    grpc_port: int = option(0, Group.ADDRESSES, "gRPC port for clients; 0: any.", PORT)
    routers: tuple[str, ...] = option(
        (), Group.INSIDE,
        "Internal address of a router to join; may be given several times.",
        names=("--router",), metavar="HOST:PORT")
    peer_host: str | None = option(
        None, Group.INSIDE,
        "Address to listen on for routers and other workers, which show certificates; --host when "
        "left out.")
    peer_port: int = option(
        0, Group.INSIDE, "gRPC port for routers and other workers; 0: any.", PORT)
    advertise_host: str | None = option(
        None, Group.INSIDE,
        "Address at which routers and other workers reach this one, where it is not the one that "
        "it listens on.")
    credentials: Path | None = option(
        None, Group.INSIDE,
        "Folder of this worker's certificate (tls.crt, tls.key, ca.crt), which names its role and "
        "--worker-id, for roles prefill and decode.", Folder())
# fmt: on
