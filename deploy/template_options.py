"""The options that mend a checkpoint's chat template."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click

from baton.deploy.errors import StartError
from baton.text.parser_names import AUTO, NONE, REASONING_PARSERS, TOOL_PARSERS
from baton.text.template_options import TemplateOptions


def template_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; `template_from` reads their values."""
    for name, names, part in (
        ("--reasoning-parser", REASONING_PARSERS, "reasoning"),
        ("--tool-call-parser", TOOL_PARSERS, "calls of tools"),
    ):
        command = click.option(
            name, default=AUTO, show_default=True, metavar="NAME",
            help=f"Form of {part} in answers, by the name of vLLM's or SGLang's parser: "
            f"{', '.join(names)}; auto: by the marks in the chat template; none: {part} stay text.",
        )(command)  # fmt: skip
    command = click.option(
        "--default-chat-template-kwargs", default=None, metavar="JSON",
        help="Variables of the chat template, such as {\"enable_thinking\": false}, for requests "
        "that do not set them.",
    )(command)  # fmt: skip
    return click.option(
        "--chat-template", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None, help="File with a chat template in place of the model's.",
    )(command)  # fmt: skip


def template_from(options: dict[str, Any]) -> TemplateOptions:
    """Return the values of the options. Raises StartError."""
    file: Path | None = options["chat_template"]
    text: str = options["default_chat_template_kwargs"] or "{}"
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise StartError(f"--default-chat-template-kwargs: {err}; expected a JSON object") from err
    if not isinstance(variables, dict):
        raise StartError(f"--default-chat-template-kwargs is {text[:80]}; expected a JSON object")
    tools, reasoning = options["tool_call_parser"], options["reasoning_parser"]
    _check_name("--tool-call-parser", tools, TOOL_PARSERS)
    _check_name("--reasoning-parser", reasoning, REASONING_PARSERS)
    return TemplateOptions(None if file is None else file.absolute(), variables, tools, reasoning)


def _check_name(option: str, name: str, names: Collection[str]) -> None:
    if name not in (AUTO, NONE, *names):
        raise StartError(
            f"{option} is {name[:80]!r}, a form that Baton does not read; expected {AUTO}, {NONE}, "
            f"or the form of one of {', '.join(names)}"
        )
