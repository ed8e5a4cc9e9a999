"""The options of a cluster: its workers, their certificates, the Ray that they run on."""

from dataclasses import dataclass
from pathlib import Path

from baton.core.options import File, Folder, Group, Number, Whole, option
from baton.deploy.certs.authority import AuthorityFiles
from baton.deploy.errors import StartError
from baton.transfer.channels.options import TransferOptions
from baton.worker.state_options import SendSnapshots, StateReturn


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ClusterOptions(TransferOptions):
    """The routers and workers of a cluster."""

    prefill: int = option(
        1, Group.WORKERS, "Number of workers that compute prompts.", Whole(1))
    decode: int = option(
        1, Group.WORKERS, "Number of groups of workers that write answers.", Whole(1))
    decode_dp: int = option(
        1, Group.WORKERS,
        "Number of ranks (workers) in each decode group; requests may name a rank.", Whole(1))
    routers: int = option(
        1, Group.WORKERS,
        "Number of routers; router i has each port plus i. Each serves with all workers, and a "
        "part of every API key's caps.", Whole(1))
    threads: int | None = option(
        None, Group.WORKERS,
        "Compute threads of each worker; an even share of the cores when left out.", Whole(1))
    state_return: StateReturn = option(
        StateReturn.AUTO, Group.TRANSFER,
        "Return the state of a conversation's last turn to the worker that computes the next "
        "turn: when that comes (demand), then where fetching is sooner than computing, as measured "
        "(auto), or at once (eager).")
    send_snapshots: SendSnapshots = option(
        SendSnapshots.OFF, Group.TRANSFER,
        "Also send a prompt's last snapshot to the rank's prefix cache.")
    ray_address: str | None = option(
        None, Group.RAY,
        "A Ray cluster to join; a Ray of its own when left out. Start one with "
        "RAY_worker_niceness=0, or workers run at low priority.")
    # On a joined Ray.
    worker_interface: str | None = option(
        None, Group.RAY,
        "Network interface, on each host, whose address workers listen on and register; the "
        "address by which their host joined Ray when left out.", metavar="NAME")
    start_deadline_s: float = option(
        600.0, Group.COMMAND, "Seconds after which a start counts as failed.",
        Number(0, above=True, unit="seconds"), names=("--start-timeout",))


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """The tensor-parallel ranks of workers."""

    tp: int = option(
        1, Group.WORKERS,
        "Tensor-parallel ranks of each worker, a process each, which share its threads, or have a "
        "GPU each.", Whole(1))
    prefill_tp: int | None = option(
        None, Group.WORKERS, "Ranks of each prefill worker; as many as --tp when left out.",
        Whole(1))
    decode_tp: int | None = option(
        None, Group.WORKERS, "Ranks of each decode worker; as many as --tp when left out.",
        Whole(1))

    @property
    def of_prefill(self) -> int:
        return self.prefill_tp or self.tp

    @property
    def of_decode(self) -> int:
        return self.decode_tp or self.tp


@dataclass(frozen=True, kw_only=True)
class AuthorityOptions:
    """The authority that signs the certificates of router and workers."""

    authority: Path | None = option(
        None, Group.INSIDE,
        "Folder that `baton certs init` made, which then holds the certificates of router and "
        "workers: `baton certs` lists, revokes and rotates them while the cluster serves.",
        Folder())
    tls_ca: Path | None = option(
        None, Group.INSIDE,
        "Certificate (PEM) of the authority that signs those of router and workers; one for this "
        "cluster alone when left out.", File())
    tls_ca_key: Path | None = option(
        None, Group.INSIDE, "Key (PEM) of --tls-ca. It stays in this process.", File())
# fmt: on


def authority_of(options: AuthorityOptions) -> AuthorityFiles | Path | None:
    """Return the authority's files, its folder, or None. Raises StartError if only one file is
    given, or both files and a folder.
    """
    cert, key = options.tls_ca, options.tls_ca_key
    if options.authority is not None and (cert or key):
        raise StartError("--authority and --tls-ca exclude each other: give one of them")
    if options.authority is not None:
        return options.authority
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise StartError("--tls-ca and --tls-ca-key belong together: give both")
    return AuthorityFiles(cert, key)
