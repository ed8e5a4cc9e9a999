"""The units for systemd, with the file of settings of docs/hosts.md."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from baton.deploy.commands.apply import apply
from baton.deploy.commands.router import router
from baton.deploy.commands.serve import serve
from baton.deploy.commands.worker import worker

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "examples" / "systemd").glob("*.service"))
PAGE = (ROOT / "docs" / "hosts.md").read_text().partition("## systemd and Slurm\n")[2]
COMMANDS: dict[str, click.Command] = {
    "serve": serve, "router": router, "worker": worker, "apply": apply
}  # fmt: skip
VARIABLES = {"ROLE": "decode", "PEER_HOST": "10.0.0.2", "PEER_PORT": "0"}


def settings(folder: Path) -> dict[str, object]:
    """Write the file of settings, and what it names. Return what it says."""
    section = PAGE.partition("the file then also has\n")[2].partition("\nand each process")[0]
    text = "model: m\ndrain: 30\n" + "\n".join(line[4:] for line in section.splitlines())
    (folder / "baton.yaml").write_text(text)
    (folder / "keys.json").write_text("{}")
    found: dict[str, object] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_the_commands_of_a_unit_take_their_options(unit: Path, tmp_path: Path) -> None:
    said = settings(tmp_path)
    text = unit.read_text().replace("\\\n", " ").replace("%i", "decode-0")
    lines = re.findall(r"^Exec\w+=/opt/baton/bin/baton (\w+) (.*)$", text, re.MULTILINE)
    assert {name for name, _ in lines} <= COMMANDS.keys() and lines
    for name, rest in lines:
        words = re.sub(r"\$\{(\w+)\}", lambda found: VARIABLES[found[1]], rest)
        words = words.replace("/etc/baton/baton.yaml", str(tmp_path / "baton.yaml"))
        with COMMANDS[name].make_context(name, shlex.split(words)) as context:
            params = context.params
        if name == "apply":
            assert params["path"] == tmp_path / "baton.yaml"
            continue
        assert params["drain"] == said["drain"]
        stop_s = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
        assert [float(each) > params["drain"] + 10 for each in stop_s] == [True]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_finds_nothing_to_say(tmp_path: Path) -> None:
    paths = []
    for unit in UNITS:
        there = tmp_path / unit.name.replace("@", "@decode-0")
        baton = Path(sys.executable).with_name("baton")
        there.write_text(unit.read_text().replace("/opt/baton/bin/baton", str(baton)))
        paths.append(there)
    done = subprocess.run(
        ["systemd-analyze", "verify", *paths], capture_output=True, text=True, timeout=120
    )
    told = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert not told and done.returncode == 0, done.stderr
