"""Recorded requests of a client, without anything that names the machine."""

import json
import re
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients.prefixes import continued
from clients.scripted_server import Exchange

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "api" / "recorded" / "sessions"
HEADERS = ("accept", "anthropic-beta", "anthropic-version", "user-agent")
MOST_CHARS = 160  # of a text: agents' instructions are long, and not ours to publish
MOST_DESCRIBED = 40  # of a tool's description
HOME = "/home/ada"
NAMING = (str(ROOT), str(Path.home()), tempfile.gettempdir(), socket.gethostname(), "127.0.0.1:")


def write_recording(name: str, version: str, exchanges: Sequence[Exchange], home: str) -> None:
    """Write the requests of a client to its file, with the answer that each was given.

    home: the client's folder, which is named otherwise. Raises ValueError for a text that names
    this machine.
    """
    asked = [each for each in exchanges if each.prompt]
    requests: list[dict[str, Any]] = []
    for number, each in enumerate(asked):
        prompts = [e.prompt for e in asked[: number + 1]]
        turn = continued(prompts, [e.answer for e in asked[: number + 1]])
        request = {
            "path": each.path,
            "headers": {key: _header(each.headers[key]) for key in HEADERS if key in each.headers},
            "body": _scrubbed(each.body, home),
            "answer": _renamed(each.answer, home),
            "ignored": each.ignored,
        }
        if turn is not None:
            request |= {"continues": turn[0], "kept": turn[1].value}
        requests.append(request)
    lines = ",\n".join(json.dumps(request, ensure_ascii=False) for request in requests)
    for naming in NAMING:
        if naming in lines:
            raise ValueError(f"the requests of {name} have {naming}")
    about = json.dumps({"client": name, "version": version})[1:-1]
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(
        f'{{{about}, "requests": [\n{lines}\n]}}\n', encoding="utf-8"
    )


def _header(value: str) -> str:
    return value if "," in value else value.split(" ")[0]


def _scrubbed(value: Any, home: str) -> Any:
    """Return a body with the client's folder renamed, ids of sessions blanked and long texts
    replaced by others of a few words.
    """
    if isinstance(value, dict):
        return {
            _scrubbed(key, home): _blanked(each, MOST_DESCRIBED)
            if key == "description" and isinstance(each, str)
            else _scrubbed(each, home)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_scrubbed(each, home) for each in value]
    if not isinstance(value, str):
        return value
    value = _renamed(value, home)
    if "\n" not in value and value.startswith(("{", "[")):
        return value
    return _blanked(value, MOST_CHARS)


def _blanked(text: str, most: int) -> str:
    return text if len(text) <= most else "A long text."


def _renamed(text: str, home: str) -> str:
    # Codex calls its first agent /root, which is also the home of many machines that record.
    text = text.replace(home, HOME).replace("/root", "/first")
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}", "0" * 8, text)
