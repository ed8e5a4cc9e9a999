"""Measure Baton with the load tools that the field uses: `make operate-tools`.

    PYTHONPATH=tests python -m load_tools.run canned small [--only aiperf vllm]

Each tool is a process in an environment of its own. A tool passes if it counts as many requests
and tokens as the router does, and its mean latencies agree with the router's histograms.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from load_tools.aiperf import AIPERF_WEKA
from load_tools.counted import counted, own_client, page_of
from load_tools.served import canned, small
from load_tools.tool import Load, Reported, Server, Tool
from load_tools.tools import TOOLS

SERVERS = {"canned": canned, "small": small}
LIMIT_S = 420.0
NEAR_SHARE, NEAR_MS = 0.1, 5.0
PATH = "/usr/local/bin:/usr/bin:/bin"


def differences(told: Reported, ours: Reported) -> list[str]:
    """Return the counts that a tool and the router do not share."""
    return [
        f"{name} {getattr(told, name)}, the router has {getattr(ours, name)}"
        for name in ("requests", "input_tokens", "output_tokens")
        if getattr(told, name) != getattr(ours, name)
    ]


def far(told: Reported, ours: Reported) -> list[str]:
    """Return the latencies that differ by more than a tenth and more than 5 ms."""
    return [
        f"{name} {getattr(told, name):.1f}, the router's histogram {getattr(ours, name):.1f}"
        for name in ("ttft_ms", "itl_ms")
        if abs(getattr(told, name) - getattr(ours, name))
        > max(NEAR_MS, NEAR_SHARE * getattr(ours, name))
    ]


def started(tool: Tool, server: Server, load: Load, home: Path) -> str:
    """Run a tool. Return why it failed, or an empty text."""
    environment = {"HOME": str(home), "PATH": PATH, "OMP_NUM_THREADS": "1"} | dict(tool.variables)
    ca = {name: os.environ[name] for name in ("SSL_CERT_FILE",) if name in os.environ}
    with (home / "output.txt").open("w") as output:
        try:
            done = subprocess.run(
                tool.command(server, load, home), cwd=home, env=environment | ca,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"it did not end within {LIMIT_S:.0f} s"
    said = (home / "output.txt").read_text(errors="replace")
    return "" if done.returncode == 0 else f"exit {done.returncode}: {said[-1500:]}"


def measured(tool: Tool, server: Server, load: Load, home: Path) -> tuple[list[str], list[str]]:
    """Run a tool once and print its line. Return its faults, and its latencies that are far."""
    home.mkdir()
    before, begun = page_of(server), time.monotonic()
    if reason := started(tool, server, load, home):
        return [reason], []
    told, ours = tool.read(home), counted(before, page_of(server))
    faults = differences(told, ours) + tool.check(home)
    show(tool.name, told, ours, time.monotonic() - begun)
    return faults, far(told, ours)


def show(name: str, told: Reported, ours: Reported, seconds: float) -> None:
    print(
        f"{name:12} {told.requests:4} requests"
        f"  {told.input_tokens:6} + {told.output_tokens:5} tokens"
        f"  TTFT {told.ttft_ms:6.1f} ms, ours {ours.ttft_ms:6.1f}"
        f"  ITL {told.itl_ms:5.1f} ms, ours {ours.itl_ms:5.1f}  ({seconds:.0f} s)",
        flush=True,
    )


def passed(tool: Tool, server: Server, load: Load, folder: Path, tries: int) -> bool:
    """Run a tool until its latencies agree: other work on this machine may delay a client alone."""
    for turn in range(tries):
        faults, distant = measured(tool, server, load, folder / f"{tool.name}-{turn}")
        if faults or not distant:
            break
    for fault in faults + distant:
        print(f"{tool.name}: {fault}", flush=True)
    return not faults and not distant


def own_line(server: Server, load: Load) -> None:
    """Print what Baton's own client measures under the same load."""
    before, begun = page_of(server), time.monotonic()
    told = own_client(server, load)
    show("baton bench", told, counted(before, page_of(server)), time.monotonic() - begun)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", nargs="+", choices=sorted(SERVERS))
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these tools alone")
    parser.add_argument("--tries", type=int, default=3, help="of a tool whose latencies differ")
    parser.add_argument("--keep", type=Path, help="a new folder for the files of all runs")
    parser.add_argument("--rate", type=float, default=Load.rate, help="requests a second")
    parser.add_argument("--requests", type=int, default=Load.requests)
    options = parser.parse_args(words)
    load = Load(options.requests, options.rate)
    good = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.servers:
            folder = (options.keep or Path(temporary)) / name
            folder.mkdir(parents=True)
            with SERVERS[name](folder) as server:
                print(f"{name}: {server.url}", flush=True)
                own_line(server, load)
                good += [
                    passed(tool, server, load, folder, options.tries)
                    for tool in (*TOOLS, AIPERF_WEKA)
                    if not options.only or tool.name in options.only
                ]
    print(f"{sum(good)} of {len(good)} runs passed")
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
