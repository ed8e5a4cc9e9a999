"""`baton certs`."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import click

from baton.core.errors import ConfigError
from baton.deploy.certs.authority_folder import AuthorityFolder, RotationStep
from baton.deploy.errors import DeployError
from baton.rpc.identity import ProcessRole

P = ParamSpec("P")
_STEPS = {
    RotationStep.TRUSTED: "1 of 3: every process trusts the old authority and the new one.",
    RotationStep.ISSUED: "2 of 3: every process has a certificate of the new authority.",
    None: "3 of 3: only the new authority is trusted. The rotation has ended.",
}
_THEN = "Copy each process's folder to its machine; processes read it within two seconds."

_folder = click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path),
    default=Path(click.get_app_dir("baton")) / "authority", show_default=True,
    help="Folder of the authority, which only you can read.",
)  # fmt: skip
_role = click.argument("role", type=click.Choice([role.value for role in ProcessRole]))


def _in_one_line(command: Callable[P, None]) -> Callable[P, None]:
    """Turn a name that no certificate can carry, or a file that cannot be written, into an error
    of one line.
    """

    @wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> None:
        try:
            command(*args, **options)
        except (ConfigError, OSError) as err:
            raise DeployError(str(err)) from err

    return run


@click.group()
def certs() -> None:
    """Keep an authority of your own for processes that `baton worker` starts: each proves itself
    to the others by a certificate. `baton serve` needs none of this.
    """


@certs.command()
@click.argument("cluster")
@_folder
@_in_one_line
def init(cluster: str, folder: Path) -> None:
    """Make the authority of a cluster of this name."""
    AuthorityFolder.create(folder, cluster)
    click.echo(f"{folder} holds the authority of {cluster}; keep its ca.key to yourself")


@certs.command()
@_role
@click.argument("name")
@click.option("--days", type=click.IntRange(1), default=365, show_default=True,
              help="Days until the certificate ends.")  # fmt: skip
@click.option("--to", type=click.Path(file_okay=False, path_type=Path),
              help="Folder for the certificate; when left out, one in that of the authority, "
              "where `list` and `revoke` find it. Otherwise nothing is written there.")  # fmt: skip
@_folder
@_in_one_line
def issue(role: str, name: str, days: int, to: Path | None, folder: Path) -> None:
    """Issue a process's certificate, or a new one in place of the last. NAME is its worker id."""
    made = AuthorityFolder(folder).issue(ProcessRole(role), name, days, to)
    reader = "router" if ProcessRole(role) is ProcessRole.ROUTER else "worker"
    click.echo(f"{made}  (`baton {reader} --credentials` reads it)")


@certs.command("list")
@_folder
@_in_one_line
def list_certs(folder: Path) -> None:
    """List what was issued, and to when it is valid."""
    authority = AuthorityFolder(folder)
    for each in authority.issued():
        state = "revoked" if each.revoked else f"until {each.ends:%Y-%m-%d %H:%M} UTC"
        click.echo(f"{each.identity.role}  {each.identity.name}  {state}")
    if authority.rotation is not None:
        click.echo(f"rotation, step {_STEPS[authority.rotation]}")


@certs.command()
@_role
@click.argument("name")
@_folder
@_in_one_line
def revoke(role: str, name: str, folder: Path) -> None:
    """Revoke a process's certificates for good: its name is never issued again."""
    AuthorityFolder(folder).revoke(ProcessRole(role), name)
    click.echo(f"{role} {name} is revoked. {_THEN} They then end its connections.")


@certs.command()
@_folder
@_in_one_line
def rotate(folder: Path) -> None:
    """Take the next of three steps to a new authority, without the loss of a stream."""
    step = AuthorityFolder(folder).rotate()
    click.echo(f"step {_STEPS[step]} {_THEN}")
    if step is not None:
        click.echo("Run `baton certs rotate` again when all have it.")
