"""The conversion of messages to prompt text by a checkpoint's own Jinja template.

Templates come with checkpoints, so they run sandboxed: no attribute of Python objects that could
reach code, and no change to what they are given. The names that they expect (`raise_exception`,
`strftime_now`, `tojson` without HTML escapes, `{% generation %}`) are those of transformers'
documentation of chat templates.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton.text.conversation import Message
from baton.text.errors import ChatTemplateError, TokenizerFileError
from baton.text.model_folder import read_json_object, read_text
from baton.text.parser_names import AUTO, tool_format_of
from baton.text.reasoning import ReasoningFormat, ReasoningState
from baton.text.special_tokens import read_special_tokens
from baton.text.spelled_tools import can_spell, with_spelled_tools
from baton.text.template_messages import template_messages
from baton.text.template_options import TemplateOptions
from baton.text.template_traits import PROBED_TOOL, probe
from baton.text.tool_calls import HERMES, ToolFormat

_MARK = "\ue000\ue7c5\uf8ff"
"""Characters of Unicode's private use: templates do not change them. A space follows, which
templates that trim messages take away."""
# What a template can raise when the messages lack what it reads.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,  # jinja's filter `dictsort`, of a text
    RecursionError,
)
DEFAULT, TOOL_USE = "default", "tool_use"
"""The names of templates that are chosen, as transformers chooses: the second where there are
tools."""
_MORE_TEMPLATES = "additional_chat_templates"


class ChatTemplate:
    """The compiled templates of a checkpoint, by name. `render` raises if there is none."""

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        options: TemplateOptions | None = None,
    ) -> None:
        """source: the only template, or templates by name."""
        self.options = options or TemplateOptions()
        named = {DEFAULT: source} if isinstance(source, str) else dict(source or {})
        fixed = {**(special_tokens or {}), **self.options.variables}
        chosen = {name: named[name] for name in (DEFAULT, TOOL_USE) if name in named}
        self._others = sorted(named.keys() - chosen.keys())
        self._templates = {name: _Compiled(text, fixed, now) for name, text in chosen.items()}
        self.tools = self._tool_format()
        """The form of calls in answers; None: they are not read."""
        self._spelled = self.tools if self.tools is not None and can_spell(self.tools) else None

    @classmethod
    def from_folder(
        cls, folder: str | Path, options: TemplateOptions | None = None
    ) -> "ChatTemplate":
        """Read the folder's templates: those of files, or else of tokenizer_config.json.

        options: what is different from the folder's.
        """
        folder, options = Path(folder), options or TemplateOptions()
        found = _find_sources(folder) if options.file is None else read_text(options.file)
        return cls(found, read_special_tokens(folder).by_name, options=options)

    @property
    def source(self) -> str:
        """Return the template of conversations with tools; an empty text if there is none."""
        found = self._templates.get(TOOL_USE) or self._templates.get(DEFAULT)
        return "" if found is None else found.source

    def _tool_format(self) -> ToolFormat | None:
        form = tool_format_of(self.options.tool_parser, self.source)
        if form is not None or self.options.tool_parser != AUTO or not self._templates:
            return form
        # A template that writes tools teaches a form, one that is not known here.
        return None if self._chosen(tools=True).traits.tools else HERMES

    def render(
        self,
        messages: Sequence[Message],
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
        template = self._chosen(tools is not None)
        given = _with_mark(messages) if continue_final_message else messages
        if self._spelled is not None:
            given = with_spelled_tools(given, tools, template.traits, self._spelled)
        names = {
            **(variables or {}),
            "messages": template_messages(given, template.traits),
            "tools": tools if template.traits.tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            prompt = template.render(names)
        except _RENDER_ERRORS as err:
            raise ChatTemplateError(
                f"the chat template refused these messages: {type(err).__name__}: {err}"
            ) from err
        return _up_to_mark(prompt) if continue_final_message else prompt

    def render_thinking(
        self,
        form: ReasoningFormat | None,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[str, ReasoningState]:
        """Return the prompt as `render` does, and the state of reasoning behind it.

        The answer's turn is opened by what the template writes only where it is asked for a
        generation prompt. An answer that continues the last message opened its turn itself.
        """

        def prompt_of(opened: bool) -> str:
            return self.render(
                messages,
                add_generation_prompt=opened,
                continue_final_message=continue_final_message,
                tools=tools,
                variables=variables,
            )

        prompt = prompt_of(add_generation_prompt)
        last = "".join(messages[-1].parts) if messages else ""
        if form is None or not form.named_in(prompt):
            return prompt, ReasoningState.FREE
        if continue_final_message:
            return prompt, form.thinking_in(last)
        try:
            bare = prompt_of(False) if add_generation_prompt else prompt
        except ChatTemplateError:
            bare = prompt
        if prompt.startswith(bare) and len(bare) < len(prompt):
            return prompt, form.thinking_after(prompt[len(bare) :])
        # A template may open the turn unasked. Its mark then ends the prompt, and no message does.
        end = prompt.rstrip()
        for mark, state in ((form.begin, ReasoningState.OPEN), (form.end, ReasoningState.CLOSED)):
            if end.endswith(mark) and not (last.strip() and end.endswith(last.rstrip())):
                return prompt, state
        return prompt, ReasoningState.FREE

    def _chosen(self, tools: bool) -> "_Compiled":
        found = self._templates.get(TOOL_USE) if tools else None
        found = found or self._templates.get(DEFAULT)
        if found is not None:
            return found
        if self._templates or self._others:
            names = ", ".join(sorted([*self._templates, *self._others]))
            raise ChatTemplateError(
                f"this model has no chat template of the name {DEFAULT}, only {names}"
            )
        raise ChatTemplateError(
            "this model has no chat template (neither chat_template.jinja nor chat_template "
            "in tokenizer_config.json); use the completions endpoint with a whole prompt"
        )


class _Compiled:
    """One template, and what it accepts."""

    def __init__(self, source: str, fixed: Mapping[str, Any], now: Callable[[], datetime]) -> None:
        """fixed: the variables that no request needs to set."""
        self.source = source
        self._fixed = fixed
        self._template = _compile(source, now)
        self._probed_tools: list[Mapping[str, Any]] | None = [PROBED_TOOL]
        if not self._takes_tools():
            self._probed_tools = None
        self.traits = probe(self._attempt)

    def render(self, names: Mapping[str, Any]) -> str:
        return self._template.render({**self._fixed, **names})

    def _takes_tools(self) -> bool:
        """Return whether any question is written beside a tool. Where none is, as in templates
        that call what only llama.cpp has, conversations without tools are probed."""
        parts = [{"type": "text", "text": "hi"}]
        forms: tuple[object, ...] = ("hi", parts)
        return any(self._attempt([{"role": "user", "content": form}]) is not None for form in forms)

    def _attempt(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        names = {
            "messages": messages,
            "tools": self._probed_tools,
            "add_generation_prompt": True,
        }
        try:
            return self.render(names)
        except _RENDER_ERRORS:
            return None


def _with_mark(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a mark at the end of the last one's text."""
    parts = messages[-1].parts if messages else ()
    if not parts or not parts[-1].strip():
        raise ChatTemplateError("the last message has no text to continue; give it some content")
    marked = (*parts[:-1], f"{parts[-1]}{_MARK} ")
    return [*messages[:-1], replace(messages[-1], parts=marked)]


def _up_to_mark(prompt: str) -> str:
    """Return the prompt before the mark. A template that trims the message has taken the mark's
    space away, and would have taken the text's."""
    end = prompt.rfind(_MARK)
    if end < 0:
        raise ChatTemplateError("the chat template changes the last message: nothing can follow it")
    kept = prompt.startswith(" ", end + len(_MARK))
    return prompt[:end] if kept else prompt[:end].rstrip()


def _find_sources(folder: Path) -> Mapping[str, str]:
    """Return the folder's templates by name. Files go before the config, even if none of them is
    the default, as in transformers."""
    path = folder / "chat_template.jinja"
    found = {DEFAULT: read_text(path)} if path.is_file() else {}
    for more in sorted((folder / _MORE_TEMPLATES).glob("*.jinja")):
        found[more.stem] = read_text(more)
    return found or _sources_in(folder / "tokenizer_config.json")


def _sources_in(config: Path) -> Mapping[str, str]:
    given = read_json_object(config).get("chat_template")
    if given is None:
        return {}
    if isinstance(given, str):
        return {DEFAULT: given}
    found: dict[str, str] = {}
    for entry in given if isinstance(given, list) else [given]:
        name, text = (
            (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else ("", 0)
        )
        if not isinstance(name, str) or not isinstance(text, str):
            raise TokenizerFileError(
                f"{config}: chat_template is a {type(given).__name__}; expected text, or a list of "
                "templates with names"
            )
        found[name] = text
    return found


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
        template = environment.from_string(source)
    except jinja2.TemplateSyntaxError as err:
        raise TokenizerFileError(
            f"the chat template does not compile: line {err.lineno}: {err.message}"
        ) from err
    template.globals = dict(template.globals)  # each rendering copies a ChainMap in thirty calls
    return template


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
