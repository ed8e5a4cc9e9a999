"""`baton keys`."""

from pathlib import Path

import click

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, read_keys, write_keys
from baton.api.backend import MAX_PRIORITY
from baton.core.errors import ConfigError
from baton.deploy.errors import DeployError

_FILE = click.option(
    "--file", "path", type=click.Path(dir_okay=False, path_type=Path),
    default=Path(click.get_app_dir("baton")) / "keys.json", show_default=True,
    help="The file of keys that `baton serve --api-keys` reads.",
)  # fmt: skip


@click.group()
def keys() -> None:
    """Add, list and remove API keys. A running cluster follows within a second or two."""


@keys.command()
@click.argument("name")
@click.option("--scope", "scopes", type=click.Choice([s.value for s in KeyScope]), multiple=True,
              default=(KeyScope.INFER.value,), show_default=True,
              help="What the key opens; may be given several times.")  # fmt: skip
@click.option("--requests-per-minute", type=click.IntRange(1), default=None,
              help="Most requests of scope infer; no limit when left out.")  # fmt: skip
@click.option("--tokens-per-minute", type=click.IntRange(1), default=None,
              help="Most tokens of prompts and answers; no limit when left out.")  # fmt: skip
@click.option("--concurrent-requests", type=click.IntRange(1), default=None,
              help="Most answers at once; no limit when left out.")  # fmt: skip
@click.option("--max-n", type=click.IntRange(1), default=None,
              help="Most answers to one prompt; no limit when left out.")  # fmt: skip
@click.option("--max-priority", type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY), default=None,
              help="Highest priority of a request; no limit when left out.")  # fmt: skip
@click.option("--share", type=click.IntRange(1), default=None,
              help="Share of the tokens where requests wait; 1 when left out.")  # fmt: skip
@_FILE
def add(name: str, scopes: tuple[str, ...], path: Path, **caps: int | None) -> None:
    """Add a key and print it, this once: the file holds its digest only."""
    present = _read(path) if path.exists() else ()
    if name in {key.name for key in present}:
        raise DeployError(f"{path} has a key {name!r} already; remove it first, or choose a name")
    text = new_key()
    added = Key(name, digest_of(text), frozenset(map(KeyScope, scopes)), **caps)
    _write(path, [*present, added])
    click.echo(text)


@keys.command("list")
@_FILE
def list_keys(path: Path) -> None:
    """List names, scopes and caps."""
    for key in _read(path):
        caps = "".join(f"  {name}={most}" for name, most in key.caps.items())
        click.echo(f"{key.name}  {','.join(sorted(key.scopes))}{caps}")


@keys.command()
@click.argument("name")
@_FILE
def rm(name: str, path: Path) -> None:
    """Remove a key."""
    present = _read(path)
    left = [key for key in present if key.name != name]
    if len(left) == len(present):
        raise DeployError(f"{path} has no key {name!r}; `baton keys list` shows those that it has")
    _write(path, left)


def _read(path: Path) -> tuple[Key, ...]:
    try:
        return read_keys(path)
    except ConfigError as err:
        raise DeployError(str(err)) from err


def _write(path: Path, present: list[Key]) -> None:
    try:
        write_keys(path, present)
    except OSError as err:
        raise DeployError(f"cannot write the API keys: {err}") from err
