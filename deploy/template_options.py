"""The options that mend a checkpoint's chat template."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from baton.deploy.errors import StartError
from baton.text.template_options import TemplateOptions


def template_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add both options; `template_from` reads their values."""
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
    return TemplateOptions(None if file is None else file.absolute(), variables)
