"""All clients that are run, in groups."""

from collections.abc import Sequence

from clients.agents import AGENTS
from clients.program import ENVIRONMENTS, HERE, Program, locked_version, npm_version
from clients.scenarios import SDK_SCRIPTS


def python_sdk(
    package: str, script: str, folder: str = "sdks", refused: Sequence[int] = ()
) -> Program:
    """Return a script of `clients/python` in its environment."""
    python = ENVIRONMENTS / "python" / folder / "bin" / "python"
    path = HERE / "python" / f"with_{script}.py"
    return Program(
        package,
        locked_version(f"{folder}.lock", package),
        lambda home, url: [str(python), "-W", "ignore", str(path), url],
        lambda home: SDK_SCRIPTS,
        # Without it litellm asks a server for prices.
        lambda home, url: {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        refused=refused,
    )


SDKS = (
    python_sdk("openai", "openai"),
    python_sdk("anthropic", "anthropic", refused=(400,)),
    python_sdk("litellm", "litellm"),
    python_sdk("langchain", "langchain"),
    python_sdk("pydantic-ai-slim", "pydantic_ai"),
    python_sdk("openai-agents", "openai_agents"),
    python_sdk("instructor", "instructor", "instructor"),
)


def node_sdk(name: str, package: str, script: str, refused: Sequence[int]) -> Program:
    """Return a script of `clients/node/sdks`, which is copied to its packages."""
    path = ENVIRONMENTS / "node" / f"with_{script}.js"
    return Program(
        name,
        npm_version("sdks", package),
        lambda home, url: ["node", str(path), url],
        lambda home: SDK_SCRIPTS,
        refused=refused,
    )


NODE_SDKS = (
    node_sdk("npm-openai", "openai", "openai", (400, 400, 404)),
    node_sdk("npm-anthropic", "@anthropic-ai/sdk", "anthropic", (400, 400)),
    node_sdk("npm-ai", "ai", "ai", (400,) * 4),
)
GROUPS = {"sdks": SDKS, "node": NODE_SDKS, "agents": AGENTS}
