"""Prompts become ids without holding up other requests."""

import threading

import pytest
import toy_tokenizer

from baton.api.text_service import INLINE_CHARS, TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.grammar import Grammar, GrammarKind
from baton.text.async_grammar_compiler import AsyncGrammarCompiler
from baton.text.chat_template import ChatTemplate
from baton.text.conversation import CallArguments, Message, PastCall
from baton.text.errors import GrammarBusyError, GrammarError, TextError
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer


class WatchedTokenizer(Tokenizer):
    """Remembers which thread it was used on."""

    def __init__(self) -> None:
        super().__init__(toy_tokenizer.byte_level(), SpecialTokens())
        self.threads: list[threading.Thread] = []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.threads.append(threading.current_thread())
        return super().encode(text, add_special_tokens)

    def encode_upto(self, text: str, most: int, add_special_tokens: bool = True) -> list[int] | int:
        self.threads.append(threading.current_thread())
        return super().encode_upto(text, most, add_special_tokens)


async def test_long_prompts_are_tokenised_off_the_event_loop_and_short_ones_on_it() -> None:
    tokenizer = WatchedTokenizer()
    service = TextService(tokenizer, ChatTemplate("{{ messages[0].content }}"))
    long = "word " * INLINE_CHARS
    ids = await service.encode(long)
    chat = (await service.encode_chat([Message("user", (long,))])).ids
    await service.encode("short")
    service.close()
    assert tokenizer.decode(ids) == tokenizer.decode(chat) == long
    here = threading.current_thread()
    assert [thread is here for thread in tokenizer.threads] == [False, False, True]


async def test_tools_and_their_calls_count_as_long_as_they_are() -> None:
    tokenizer = WatchedTokenizer()
    service = TextService(tokenizer, ChatTemplate("{{ messages | tojson }} {{ tools | tojson }}"))
    long = "x" * INLINE_CHARS
    tool = {"type": "function", "function": {"name": "f", "description": long}}
    hello = [Message("user", ("hi",))]
    await service.encode_chat(
        [Message("assistant", calls=(PastCall("f", CallArguments.of(long)),))]
    )
    await service.encode_chat(hello, tools=[tool])
    await service.encode_chat(hello)
    service.close()
    here = threading.current_thread()
    assert [thread is here for thread in tokenizer.threads] == [False, False, True]


async def test_an_error_on_a_thread_is_the_callers_error_too() -> None:
    service = TextService(WatchedTokenizer(), ChatTemplate(None))
    with pytest.raises(ApiError, match="no chat template") as caught:
        await service.encode_chat([Message("user", ("x" * 2 * INLINE_CHARS,))])
    assert caught.value.param == "messages"
    service.close()


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (GrammarBusyError("later"), ErrorCode.OVERLOADED),
        (GrammarError("no"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_grammar_that_there_is_no_time_for_is_no_fault_of_the_clients(
    text: TextService, monkeypatch: pytest.MonkeyPatch, raised: TextError, code: ErrorCode
) -> None:
    async def compile_it(self: AsyncGrammarCompiler, grammar: Grammar) -> None:
        raise raised

    monkeypatch.setattr(AsyncGrammarCompiler, "compile", compile_it)
    with pytest.raises(ApiError, match=f"regex: {raised}") as refused:
        await text.check_grammar(Grammar(GrammarKind.REGEX, "a"), "regex")
    assert (refused.value.code, refused.value.param) == (code, "regex")
    assert (refused.value.retry_after_s is not None) == refused.value.retryable
