"""Every benchmark that exists can be called by its name."""

import importlib
from pathlib import Path

import click

from baton.bench.registry import BENCHES

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_every_command_in_the_room_is_listed_and_every_listed_one_exists() -> None:
    for name, (target, _) in BENCHES.items():
        module, _, command = target.partition(":")
        found = getattr(importlib.import_module(module), command)
        assert isinstance(found, click.Command) and found.name == name
    files = [p for p in BENCH.rglob("*.py") if "@click.command(" in p.read_text()]
    modules = {"baton.bench." + ".".join(p.relative_to(BENCH).with_suffix("").parts) for p in files}
    replay = "baton.bench.request_replay.replay"  # `baton replay`, which the room `cli` lists
    assert modules - {replay} == {target.partition(":")[0] for target, _ in BENCHES.values()}
