"""The conversion of messages to prompt text by a checkpoint's own Jinja template.

Templates come with checkpoints, so they run sandboxed: no attribute of Python objects that could
reach code, and no change to what they are given. The names that they expect (`raise_exception`,
`strftime_now`, `tojson` without HTML escapes, `{% generation %}`) are those of transformers'
documentation of chat templates.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton.text.errors import ChatTemplateError, TokenizerFileError
from baton.text.model_folder import read_json_object, read_text
from baton.text.special_tokens import read_special_tokens

_MARK = "\ue000\ue7c5\uf8ff"
"""Characters of Unicode's private use: templates neither strip nor change them."""
# What a template can raise when the messages lack what it reads.
_RENDER_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError)


class ChatTemplate:
    """A compiled template. `source` is None if the checkpoint has none; `render` then raises."""

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._template = None if source is None else _compile(source, now)

    @classmethod
    def from_folder(cls, folder: str | Path) -> "ChatTemplate":
        """Read chat_template.jinja, or else tokenizer_config.json's `chat_template`, if present."""
        folder = Path(folder)
        return cls(_find_source(folder), read_special_tokens(folder).by_name)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. It has its own special tokens: encode it without adding any.

        continue_final_message: the prompt ends with the last message's text, so that the answer
        goes on with it. Raises ChatTemplateError.
        """
        if self._template is None:
            raise ChatTemplateError(
                "this model has no chat template (neither chat_template.jinja nor chat_template "
                "in tokenizer_config.json); use the completions endpoint with a whole prompt"
            )
        names = {
            **self._special_tokens,
            **(variables or {}),
            "messages": _with_mark(messages) if continue_final_message else messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            prompt = self._template.render(names)
        except _RENDER_ERRORS as err:
            raise ChatTemplateError(
                f"the chat template refused these messages: {type(err).__name__}: {err}"
            ) from err
        return _up_to_mark(prompt) if continue_final_message else prompt


def _with_mark(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages with a mark at the end of the last one's text."""
    said = messages[-1].get("content") if messages else None
    if not isinstance(said, str) or not said.strip():
        raise ChatTemplateError("the last message has no text to continue; give it some content")
    return [*messages[:-1], {**messages[-1], "content": said + _MARK}]


def _up_to_mark(prompt: str) -> str:
    end = prompt.rfind(_MARK)
    if end < 0:
        raise ChatTemplateError("the chat template changes the last message: nothing can follow it")
    return prompt[:end]


def _find_source(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    path = folder / "tokenizer_config.json"
    found = read_json_object(path).get("chat_template")
    if isinstance(found, list):  # several by name
        by_name = {entry.get("name"): entry.get("template") for entry in found}
        found = by_name.get("default")
    if found is None or isinstance(found, str):
        return found
    raise TokenizerFileError(f"{path}: chat_template is a {type(found).__name__}; expected text")


def _compile(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    def strftime_now(layout: str) -> str:
        return now().strftime(layout)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as err:
        raise TokenizerFileError(
            f"the chat template does not compile: line {err.lineno}: {err.message}"
        ) from err


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _GenerationBlock(Extension):
    """The block that marks text for training. A server renders its content as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
