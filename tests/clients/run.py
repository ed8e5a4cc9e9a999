"""Run real clients against Baton's API over a scripted model: `make clients`.

    PYTHONPATH=tests python -m clients.run sdks [--only openai] [--record]

Each client is a process in an environment of its own under `.clients`. It passes if it reads what
the model said, and no request of its was refused.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from clients.groups import GROUPS
from clients.prefixes import continued
from clients.program import Program
from clients.recording import write_recording
from clients.scripted_server import Exchange, ScriptedServer, scripted_server

LIMIT_S = 150.0


async def outcome(program: Program, url: str, home: Path) -> str:
    """Run a client in a folder of its own. Return why it failed, or an empty text."""
    program.prepare(home, url)
    process = await asyncio.create_subprocess_exec(
        *program.command(home, url),
        env=program.environment(home, url),
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"it did not end within {LIMIT_S:.0f} s"
    said = output.decode(errors="replace").strip()
    if process.returncode != 0:
        return f"exit {process.returncode}: {said[-500:]}"
    return program.check(home, said)


def refusals(exchanges: list[Exchange], right: Sequence[int]) -> list[str]:
    """Return the refused requests, unless `right` are their statuses."""
    refused = [each for each in exchanges if each.status != 200]
    if [each.status for each in refused] == list(right):
        return []
    return [
        f"{each.method} {each.path} -> {each.status} {each.reply.decode(errors='replace')[:300]}"
        for each in refused
    ] or [f"no request was refused, and {len(right)} should have been"]


def kept(exchanges: list[Exchange]) -> str:
    """Return how often a client sent an answer back as it was."""
    asked = [each for each in exchanges if each.prompt]
    prompts, answers = [e.prompt for e in asked], [e.answer for e in asked]
    turns = [continued(prompts[: n + 1], answers[: n + 1]) for n in range(len(asked))]
    counts = Counter(turn[1].value for turn in turns if turn is not None)
    return ", ".join(f"{name} {count}" for name, count in counts.items())


async def run_one(server: ScriptedServer, program: Program, *, record: bool) -> bool:
    """Run a client and print its line. Return whether it passed."""
    server.exchanges.clear()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        server.backend.scripts = program.scripts(home)
        reason = await outcome(program, server.url, home)
    faults = [reason] * bool(reason) + refusals(server.exchanges, program.refused)
    seconds = time.monotonic() - begun
    verdict = f"FAILED: {'; '.join(faults)}" if faults else "passed"
    print(
        f"{program.name:16} {program.version:9} {len(server.exchanges):3} requests"
        f" {seconds:5.1f} s  {verdict}; answers kept: {kept(server.exchanges)}",
        flush=True,
    )
    if record and not faults:
        write_recording(program.name, program.version, server.exchanges, str(home))
    return not faults


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("groups", nargs="+", choices=sorted(GROUPS))
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--record", action="store_true", help="write tests/api/recorded/sessions")
    options = parser.parse_args()
    programs = [program for group in options.groups for program in GROUPS[group]]
    passed = []
    with tempfile.TemporaryDirectory() as folder:
        async with scripted_server(Path(folder), "strict_text") as server:
            for program in programs:
                if options.only in ("", program.name):
                    passed.append(await run_one(server, program, record=options.record))
    print(f"{sum(passed)} of {len(passed)} clients passed")
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
