"""The tables of ports in docs/hosts.md name all ports there are, their defaults, and who dials."""

import re
from pathlib import Path

import click
from kit.narrowing import of_type
from ray.scripts.scripts import start as ray_start

from baton.deploy.commands.router import router
from baton.deploy.commands.serve import serve
from baton.deploy.commands.worker import worker
from baton.rpc.access import CALLERS
from baton.rpc.identity import ProcessRole

PAGE = Path(__file__).parents[2] / "docs/hosts.md"
COMMANDS = {"router": router, "worker": worker}
KINDS = {
    ProcessRole.ROUTER: "routers",
    ProcessRole.PREFILL: "workers",
    ProcessRole.DECODE: "workers",
}
OFFERED_BY_ROUTERS = {"baton.v1.Registry"}
"""The services inside a cluster that routers have; workers have the others."""


def rows(header: str) -> list[list[str]]:
    """Return the cells of the table with this first line."""
    lines = PAGE.read_text().partition(f"{header}\n")[2].splitlines()[1:]
    table = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


OURS = rows("| from | to | option | default | what |")
RAYS = rows("| from | to | option of `ray start` | default |")


def ports_of(command: click.Command) -> dict[str, int]:
    """Return the defaults of a command's options that name a port of its own."""
    return {
        option.opts[0]: of_type(int, option.default)
        for option in command.params
        if isinstance(option, click.Option)
        and isinstance(option.type, click.IntRange)
        and option.type.max == 65535
    }


def test_every_port_stands_in_the_table_with_its_default() -> None:
    told = {cells[2].strip("`"): int(cells[3]) for cells in OURS}
    assert told == {
        f"baton {name} {option}": default
        for name, command in COMMANDS.items()
        for option, default in ports_of(command).items()
    }


def test_serve_has_the_defaults_of_a_router() -> None:
    assert ports_of(serve) == ports_of(router)


def test_every_way_by_which_processes_dial_stands_in_the_table() -> None:
    told = {(cells[0], cells[1]) for cells in OURS}
    for path, callers in CALLERS.items():
        service = path.split("/")[1]
        offered = "routers" if service in OFFERED_BY_ROUTERS else "workers"
        if service.startswith("baton."):  # health checks are for whoever is joined anyway
            for role in callers - {ProcessRole.OPERATOR}:
                assert (KINDS[role], offered) in told, path


def test_ray_has_the_options_that_its_table_names() -> None:
    known = {name for option in ray_start.params for name in option.opts}
    named = {name for cells in RAYS for name in re.findall(r"`(--[\w-]+)`", cells[2])}
    assert named and named <= known
