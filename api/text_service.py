"""Conversion of prompts to token ids and of token ids to text.

Long prompts are converted off the event loop: on threads, and the longest in other processes.
"""

import asyncio
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from baton.api.backend import ModelInfo
from baton.api.errors import RETRY_AFTER_S, invalid
from baton.api.fields.ignored import keep_ignored
from baton.api.fields.left_out_log import LeftOutLog
from baton.api.json_schemas import JsonSchemas
from baton.api.large.job import EncodeJob
from baton.api.large.requests import LargeRequests
from baton.api.requests import refusal
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, RequestError
from baton.core.grammar import Grammar
from baton.core.sampling_params import SamplingParams
from baton.text.answer import AnswerText
from baton.text.async_grammar_compiler import AsyncGrammarCompiler
from baton.text.chat_template import ChatTemplate
from baton.text.conversation import Message
from baton.text.errors import GrammarBusyError, TextError
from baton.text.grammar import GrammarCompiler
from baton.text.model_folder import ANY_NAME
from baton.text.parser_names import reasoning_format_of
from baton.text.prompt_memory import PromptMemory
from baton.text.reasoned_grammar import behind_reasoning
from baton.text.reasoning import ReasoningState
from baton.text.reasoning_meter import ReasoningMeter
from baton.text.stop_regex import compile_stops
from baton.text.token_offsets import make_token_offsets, offsets_in
from baton.text.token_table import TokenTable
from baton.text.tokenizer import Tokenizer

T = TypeVar("T")

ANY_MODEL = "default"
"""The name by which SGLang's clients ask for whatever model is served."""

INLINE_CHARS = 2048
"""Shorter prompts take well under a millisecond: a thread costs more than it saves."""
LONG_CHARS = 1 << 17
"""Longer ones go to a process of their own: what the tokenizer made of them takes 5 ms to drop, and
it holds the interpreter lock meanwhile."""
MOST_TOKENS = 1 << 24
"""The most tokens of a prompt that will be cut: more than any body has room for."""


@dataclass(frozen=True)
class ChatPrompt:
    ids: Sequence[int]
    thinking: ReasoningState  # the model's reasoning behind the prompt


class TextService:
    """The text side of one model. Tokenising releases the interpreter lock, so threads help."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        threads: int = 2,
        *,
        alone: bool = False,
        closed_objects: bool = False,
    ) -> None:
        """alone: in a process for large requests, which starts no further ones.

        closed_objects: objects have no members but those that their JSON schema names
        """
        self.tokenizer = tokenizer
        self.template = template
        self.table = TokenTable(tokenizer)
        options, source = template.options, template.source
        self.reasoning = reasoning_format_of(options.reasoning_parser, source)
        self.tools = template.tools
        self._closed_objects = closed_objects
        self._grammars = AsyncGrammarCompiler(
            GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.stop_ids)
        )
        self._memory = PromptMemory(tokenizer)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")
        folder = tokenizer.folder
        self.large = None if alone or folder is None else LargeRequests(folder, template.options)
        self.left_out = LeftOutLog()
        """Shared by all endpoints of a server."""

    def start(self) -> None:
        """Start what the first requests of a server would wait for."""
        if self.large is not None:
            self.large.start()

    def close(self) -> None:
        """End the threads once their work is complete, and the other processes at once."""
        self._threads.shutdown(wait=False)
        if self.large is not None:
            self.large.close()
        self._grammars.close()

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        param: str = "prompt",
        most: int | None = None,
        scope: bytes | None = None,
    ) -> Sequence[int]:
        """Return a prompt's token ids.

        most: tokens that the context has room for; None: any number may come. scope: of the
        requests whose equal parts need not be tokenised again; None: none. Raises INVALID_REQUEST
        naming `param` for text that has no ids, or more than `most`.
        """
        if not text:
            raise invalid(param, f"{param} is empty; expected some text", expected="text")
        bound = MOST_TOKENS if most is None else most
        longest = self.tokenizer.longest_token
        if longest is not None and len(text) > bound * longest:
            raise _too_long(param, f"at least {-(-len(text) // longest)}", bound, bound)
        if len(text) > LONG_CHARS and self.large is not None:
            return await self.large.encode(EncodeJob(add_special_tokens, param, bound, scope), text)
        found = await self._run(
            lambda: self._encoded(text, bound, add_special_tokens, scope), len(text), param
        )
        if isinstance(found, int):
            raise _too_long(param, str(found), bound, bound)
        return found

    def _encoded(
        self, text: str, bound: int, add_special_tokens: bool, scope: bytes | None
    ) -> tuple[int, ...] | int:
        if scope is not None and not add_special_tokens:
            return _tuple(self._memory.encode_upto(text, bound, scope))
        if len(text) > INLINE_CHARS:
            return _tuple(self.tokenizer.encode_upto(text, bound, add_special_tokens))
        return tuple(self.tokenizer.encode(text, add_special_tokens))

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        most: int | None = None,
        scope: bytes | None = None,
    ) -> ChatPrompt:
        """Return the token ids of a conversation, rendered by the model's chat template.

        most, scope: as for `encode`.
        """

        def render() -> tuple[str, ReasoningState]:
            return self.template.render_thinking(
                self.reasoning,
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                variables=variables,
            )

        texts = [text for message in messages for text in message.texts()]
        size = size_of((texts, tools, variables), INLINE_CHARS)
        prompt, thinking = await self._run(render, size, "messages")
        if not prompt:
            raise invalid("messages", "messages make an empty prompt by the chat template")
        ids = await self.encode(
            prompt,
            add_special_tokens=add_special_tokens,
            param="messages",
            most=most,
            scope=scope,
        )
        return ChatPrompt(ids, thinking)

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        return await self._run(
            lambda: self.tokenizer.decode_long(ids, skip_special_tokens), len(ids), "prompt"
        )

    async def offsets_in(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the character of `text` at which each of its tokens begins."""
        return await self._run(
            lambda: offsets_in(self.tokenizer.spans(text, add_special_tokens)), len(text), "prompt"
        )

    async def offsets_of(self, ids: Sequence[int], skip_special_tokens: bool) -> list[int]:
        """Return the character of `decode(ids)` at which each token begins."""
        counter = make_token_offsets(self.tokenizer, skip_special_tokens)
        return await self._run(lambda: [*counter.push(ids), *counter.finish()], len(ids), "prompt")

    def check_sampling(
        self, sampling: SamplingParams, model: ModelInfo, names: Mapping[str, str] | None = None
    ) -> None:
        """Check what only the model can tell: token ids and expressions that end the answer.

        names: as for `checked_sampling`. Raises INVALID_REQUEST that names the field.
        """
        try:
            sampling.check_vocabulary(model.vocab_size)
            compile_stops(sampling.stop_regex)
        except RequestError as error:
            raise refusal(error, names) from error
        except TextError as error:
            raise refusal(RequestError(str(error), "stop_regex"), names) from error

    async def usable_grammar(
        self,
        make: Callable[[JsonSchemas], tuple[Grammar | None, str]],
        scope: MutableMapping[str, Any],
    ) -> tuple[Grammar | None, str]:
        """Return what `make` returns, a grammar and the name of its field, once it can be used.

        A large schema takes tens of milliseconds, on a thread. What is not enforced of it will be
        named in the reply of the ASGI scope. Raises `ApiError` as `check_grammar` does.
        """
        loop = asyncio.get_running_loop()
        schemas = JsonSchemas(self._closed_objects)
        grammar, field = await loop.run_in_executor(self._threads, make, schemas)
        keep_ignored(scope, schemas.ignored)
        await self.check_grammar(grammar, field)
        return grammar, field

    async def reasoned_grammar(
        self, grammar: Grammar | None, param: str, thinking: ReasoningState
    ) -> Grammar | None:
        """Return the grammar of an answer that may think before it follows `grammar`.

        thinking: the state of reasoning where the answer begins. Raises `ApiError` as
        `check_grammar` does.
        """
        if grammar is None or self.reasoning is None:
            return grammar
        form = self.reasoning
        special = self.tokenizer.special_marks((form.begin, form.end))
        whole = behind_reasoning(grammar, form, thinking, special)
        await self.check_grammar(whole, param)
        return whole

    def reasoning_meters(
        self, thinking: ReasoningState, count: int, skip_special_tokens: bool
    ) -> list[ReasoningMeter]:
        """Return a counter of reasoning's tokens for each answer; none where there is none."""
        form = self.reasoning
        if form is None or thinking is ReasoningState.CLOSED:
            return []
        return [
            ReasoningMeter(self.tokenizer, form, thinking, skip_special_tokens=skip_special_tokens)
            for _ in range(count)
        ]

    async def check_grammar(self, grammar: Grammar | None, param: str) -> None:
        """Check that a grammar can be used.

        Raises INVALID_REQUEST naming `param` if it cannot, OVERLOADED if there was no time to
        find out.
        """
        if grammar is None:
            return
        try:
            await self._grammars.compile(grammar)
        except GrammarBusyError as err:
            raise ApiError(
                ErrorCode.OVERLOADED, f"{param}: {err}", param=param, retry_after_s=RETRY_AFTER_S
            ) from err
        except TextError as err:
            raise invalid(param, f"{param}: {err}") from err

    def answer(
        self,
        params: SamplingParams,
        skip_special_tokens: bool = True,
        mark_ids: frozenset[int] = frozenset(),
    ) -> AnswerText:
        """Return a new text accumulator for one answer, with the stop rules that the engine
        uses.

        mark_ids: special tokens that are shown nevertheless, for a parser that takes them out.
        """
        ends = frozenset() if params.ignore_eos else self.tokenizer.stop_ids
        return AnswerText(
            self.tokenizer,
            params.stop,
            stop_regex=params.stop_regex,
            include_stop=params.include_stop,
            min_tokens=params.min_tokens,
            skip_special_tokens=skip_special_tokens,
            end_ids=ends.union(params.stop_token_ids),
            mark_ids=mark_ids,
        )

    async def _run(self, work: Callable[[], T], size: int, param: str) -> T:
        try:
            if size <= INLINE_CHARS:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TextError as err:
            raise invalid(param, f"{param}: {err}") from err


def size_of(values: object, enough: int) -> int:
    """Return the characters of all texts in nested lists and objects, as soon as there are more
    than `enough`."""
    size, stack = 0, [values]
    while stack and size <= enough:
        value = stack.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict | list | tuple):  # of JSON; abstract classes take longer
            size += len(value)
            stack += [*value, *value.values()] if isinstance(value, dict) else value[:enough]
    return size


def _tuple(found: Sequence[int] | int) -> tuple[int, ...] | int:
    return found if isinstance(found, int) else tuple(found)


def _too_long(param: str, tokens: str, most: int, context: int) -> ApiError:
    """Return the error that clients of OpenAI and of Anthropic each know by its words and code."""
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"prompt is too long: {tokens} tokens > {most} maximum. This model's maximum context "
        f"length is {context} tokens, prompt and answer together; shorten the prompt",
        param=param,
        expected=f"at most {most} tokens",
        actual=tokens,
        openai_code="context_length_exceeded",
    )


def room_for_answer(
    prompt_ids: Sequence[int], max_tokens: int | None, model: ModelInfo, *, param: str = "prompt"
) -> int:
    """Return the maximum number of answer tokens: `max_tokens`, or what the context leaves if that
    is less.

    max_tokens: None asks for all that the context leaves.
    Raises INVALID_REQUEST naming `param` if the prompt leaves room for no token.
    """
    length, context = len(prompt_ids), model.max_model_len
    if not length:
        raise invalid(param, f"{param} has no tokens; expected at least one", expected="1 token")
    if length >= context:
        raise _too_long(param, str(length), context - 1, context)
    check_ids(prompt_ids, model, param)
    return context - length if max_tokens is None else min(max_tokens, context - length)


def check_ids(ids: Sequence[int], model: ModelInfo, param: str) -> None:
    """Raise INVALID_REQUEST naming `param` if an id is outside the vocabulary."""
    low, high = min(ids, default=0), max(ids, default=0)
    if low < 0 or high >= model.vocab_size:
        bad = low if low < 0 else high
        allowed = f"0 to {model.vocab_size - 1}"
        raise invalid(
            param, f"{param} has token id {bad}; expected {allowed}", expected=allowed, actual=bad
        )


def served_model(name: str | None, models: Sequence[ModelInfo]) -> ModelInfo:
    """Return the model that a request names, or the first if it names none, or `ANY_MODEL`."""
    if not models:
        raise ApiError(ErrorCode.UNAVAILABLE, "no model is being served yet; try again soon")
    if not name:
        return models[0]
    for model in models:
        if name == model.model_id or name in model.other_names:
            return model
    if name == ANY_MODEL or any(ANY_NAME in model.other_names for model in models):
        return models[0]
    known = ", ".join(model.model_id for model in models)
    raise ApiError(
        ErrorCode.NOT_FOUND,
        f"model {name[:80]!r} is not served here; expected {known}",
        param="model",
        expected=known,
        actual=name[:80],
        openai_code="model_not_found",
    )
