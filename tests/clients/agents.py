"""The command lines of agents, each through a session that reads a file, edits it and runs a
command.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from clients.program import ENVIRONMENTS, Program, locked_version, npm_version
from clients.scenarios import Scripts, call, thought

BINARIES = ENVIRONMENTS / "agents" / "node_modules" / ".bin"
NOTES = "notes.txt"
TASK = "Mend notes.txt and show it: scenario session"
BEFORE, AFTER = "plums are blue\n", "plums are ripe\n"
THOUGHT, END = "First I read it.", "Plums are ripe now."


def prepare(home: Path, url: str) -> None:
    (home / NOTES).write_text(BEFORE)


def check(home: Path, said: str) -> str:
    """Return what the session left undone."""
    if (home / NOTES).read_text() != AFTER:
        return f"the file was not edited; it said {said[-300:]}"
    return "" if END in said else f"the last answer is missing; it said {said[-300:]}"


def claude_scripts(home: Path) -> Scripts:
    notes = str(home / NOTES)
    return {
        "session": [
            thought(THOUGHT) + call("Read", file_path=notes),
            "I mend it." + call("Edit", file_path=notes, old_string="blue", new_string="ripe"),
            call("Bash", command="cat notes.txt", description="Show it")
            + call("Bash", command="cat missing.txt", description="Fail"),
            END,
        ]
    }


def claude_variables(home: Path, url: str) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "toy",
        "ANTHROPIC_SMALL_FAST_MODEL": "toy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    }


CLAUDE = Program(
    "claude-code",
    npm_version("agents", "@anthropic-ai/claude-code"),
    lambda home, url: [str(BINARIES / "claude"), "-p", TASK, "--output-format", "json",
                       "--allowedTools", "Read,Edit,Bash"],
    claude_scripts,
    claude_variables,
    prepare,
    check,
)  # fmt: skip


CODEX_CONFIG = """
model = "toy"
model_provider = "baton"
[model_providers.baton]
name = "Baton"
base_url = "{url}/v1"
env_key = "BATON_KEY"
wire_api = "responses"
"""


def codex_scripts(home: Path) -> Scripts:
    return {
        "session": [
            thought(THOUGHT) + call("exec_command", cmd="cat notes.txt"),
            "I mend it." + call("exec_command", cmd="sed -i s/blue/ripe/ notes.txt"),
            call("exec_command", cmd="cat notes.txt") + call("exec_command", cmd="cat missing.txt"),
            END,
        ]
    }


def prepare_codex(home: Path, url: str) -> None:
    prepare(home, url)
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(url=url))


def check_codex(home: Path, said: str) -> str:
    """Return what the session left undone. Codex shows reasoning as its summary."""
    return check(home, said) or ("" if THOUGHT in said else f"no reasoning; it said {said[-300:]}")


CODEX = Program(
    "codex",
    npm_version("agents", "@openai/codex"),
    lambda home, url: [str(BINARIES / "codex"), "exec", "--skip-git-repo-check",
                       "--dangerously-bypass-approvals-and-sandbox", TASK],
    codex_scripts,
    lambda home, url: {"CODEX_HOME": str(home / ".codex"), "BATON_KEY": "none"},
    prepare_codex,
    check_codex,
)  # fmt: skip


def qwen_scripts(home: Path) -> Scripts:
    notes = str(home / NOTES)
    return {
        "session": [
            thought(THOUGHT) + call("read_file", file_path=notes),
            "I mend it." + call("edit", file_path=notes, old_string="blue", new_string="ripe"),
            call("run_shell_command", command="cat notes.txt", is_background=False)
            + call("run_shell_command", command="cat missing.txt", is_background=False),
            END,
        ]
    }


QWEN = Program(
    "qwen-code",
    npm_version("agents", "@qwen-code/qwen-code"),
    lambda home, url: [str(BINARIES / "qwen"), "--auth-type", "openai", "--telemetry=false",
                       "-p", TASK, "--yolo"],
    qwen_scripts,
    lambda home, url: {
        "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "toy",
    },
    prepare,
    check,
)  # fmt: skip


def opencode_scripts(home: Path) -> Scripts:
    notes = str(home / NOTES)
    return {
        "session": [
            thought(THOUGHT) + call("read", filePath=notes),
            "I mend it." + call("edit", filePath=notes, oldString="blue", newString="ripe"),
            call("bash", command="cat notes.txt", description="Show it")
            + call("bash", command="cat missing.txt", description="Fail"),
            END,
        ]
    }


def prepare_opencode(home: Path, url: str) -> None:
    prepare(home, url)
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Baton",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"toy": {"name": "toy"}},
    }
    (home / "opencode.json").write_text(json.dumps({"provider": {"baton": provider}}))


OPENCODE = Program(
    "opencode",
    npm_version("agents", "opencode-ai"),
    lambda home, url: [str(BINARIES / "opencode"), "run", "-m", "baton/toy", TASK],
    opencode_scripts,
    lambda home, url: {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    prepare_opencode,
    check,
)  # fmt: skip


def cline_scripts(home: Path) -> Scripts:
    notes = str(home / NOTES)
    return {
        "session": [
            thought(THOUGHT) + call("read_files", files=[{"path": notes}]),
            "I mend it." + call("editor", path=notes, old_text="blue", new_text="ripe"),
            call("run_commands", commands=["cat notes.txt"])
            + call("run_commands", commands=["cat missing.txt"]),
            END,
        ]
    }


def prepare_cline(home: Path, url: str) -> None:
    """Write what `cline auth` asks for."""
    prepare(home, url)
    settings = {
        "provider": "openai-compatible",
        "apiKey": "none",
        "model": "toy",
        "baseUrl": f"{url}/v1",
    }
    provider = {
        "settings": settings,
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "tokenSource": "manual",
    }
    folder = home / ".cline" / "data" / "settings"
    folder.mkdir(parents=True)
    (folder / "providers.json").write_text(
        json.dumps(
            {
                "version": 1,
                "lastUsedProvider": "openai-compatible",
                "modes": {},
                "providers": {"openai-compatible": provider},
            }
        )
    )


CLINE = Program(
    "cline",
    npm_version("agents", "@cline/cli-linux-x64"),
    lambda home, url: [str(BINARIES / "cline"), "-c", str(home), TASK],
    cline_scripts,
    # Otherwise it leaves a server of its own behind, for sessions of other windows.
    lambda home, url: {"CLINE_SESSION_BACKEND_MODE": "local", "CLINE_NO_AUTO_UPDATE": "1"},
    prepare_cline,
    check,
)


def aider_scripts(home: Path) -> Scripts:
    """Edit wrongly, read what the command of `--test-cmd` prints, and mend it.

    Between the two, aider writes answers of its own into the conversation, so that the second
    answer is behind some more.
    """
    wrong = edit_of(BEFORE, "plums are red\n")
    mended = edit_of("plums are red\n", AFTER)
    last = f"Now it is right.\n\n{mended}\n{END}"
    return {"session": [f"I mend it.\n\n{wrong}", last, last, last, last]}


def edit_of(before: str, after: str) -> str:
    return f"{NOTES}\n```\n<<<<<<< SEARCH\n{before}=======\n{after}>>>>>>> REPLACE\n```\n"


AIDER = Program(
    "aider-chat",
    locked_version("aider.lock", "aider-chat"),
    lambda home, url: [
        str(ENVIRONMENTS / "python" / "aider" / "bin" / "aider"), "--model", "openai/toy",
        "--edit-format", "diff", "--no-git", "--no-check-update", "--no-analytics",
        "--no-show-model-warnings", "--yes",
        "--auto-test", "--test-cmd", f"cat {NOTES}; grep -q ripe {NOTES}", "--message", TASK, NOTES,
    ],
    aider_scripts,
    lambda home, url: {
        "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    prepare,
    check,
)  # fmt: skip

AGENTS = (CLAUDE, CODEX, QWEN, OPENCODE, CLINE, AIDER)
