"""Earlier calls of tools that a vendor's server or client ran, sent back as a part of the
conversation."""

from collections.abc import Iterator
from typing import Any

import fake_backend
import pytest
from api.test_agents_bodies import HELLO, IGNORED, MESSAGES, RESPONSES, TEMPLATE, prompt_of
from fake_backend import Connect, FakeBackend

from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

Json = dict[str, Any]
BEGIN, END = "user:hello;", "user:bye;"
BYE: Json = {"role": "user", "content": "bye"}
ACTION: Json = {"type": "exec", "command": ["ls"], "env": {}}
SERVERS_ITEMS: list[Json] = [
    {"type": "web_search_call", "id": "w", "status": "completed",
     "action": {"type": "search", "query": "q"}},
    {"type": "image_generation_call", "id": "i", "status": "completed", "result": "iVBO"},
    {"type": "file_search_call", "id": "f", "status": "completed", "queries": ["q"]},
    {"type": "computer_call", "id": "c", "call_id": "c1", "action": {"type": "screenshot"}},
    {"type": "computer_call_output", "call_id": "c1",
     "output": {"type": "computer_screenshot", "image_url": "data:,"}},
    {"type": "code_interpreter_call", "id": "ci", "code": "1", "container_id": "k",
     "outputs": None},
    {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
    {"type": "mcp_approval_request", "id": "a", "name": "n", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
    {"type": "mcp_call", "id": "m2", "name": "n", "arguments": "{}", "server_label": "s"},
    {"type": "program", "id": "p", "call_id": "p1", "code": "1"},
    {"type": "program_output", "id": "p2", "call_id": "p1", "result": "1"},
    {"type": "tool_search_call", "id": "t", "arguments": {}},
    {"type": "tool_search_output", "id": "t2", "tools": []},
    {"type": "compaction", "id": "cmp", "encrypted_content": "gAAA"},
]  # fmt: skip
SERVERS_BLOCKS: list[Json] = [
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
        {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "E"}]},
    {"type": "web_fetch_tool_result", "tool_use_id": "s", "content": {"type": "web_fetch_result"}},
    {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"stdout": "1"}},
    {"type": "bash_code_execution_tool_result", "tool_use_id": "s", "content": {}},
    {"type": "tool_search_tool_result", "tool_use_id": "s", "content": {}},
    {"type": "container_upload", "file_id": "file_1"},
    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
    {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []},
    {"type": "tool_addition", "tool": {"name": "f"}},
    {"type": "tool_removal", "tool": {"name": "f"}},
]  # fmt: skip


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 2_000)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE))
    yield service
    service.close()


def of_messages(*blocks: Json, role: str = "assistant") -> Json:
    return {"max_tokens": 9, "messages": [*HELLO, {"role": role, "content": list(blocks)}, BYE]}


@pytest.mark.parametrize("item", SERVERS_ITEMS, ids=lambda item: str(item["type"]))
async def test_items_of_openais_servers_are_left_out_and_named(
    item: Json, connect: Connect, connect_strict: Connect, backend: FakeBackend
) -> None:
    said = {"type": "message", "role": "assistant", "content": "found"}
    async with connect() as client:
        for more, shown in (([], ""), ([said], "assistant:found;")):
            reply = await client.post(RESPONSES, json={"input": [*HELLO, item, *more, BYE]})
            assert reply.status_code == 200, reply.text
            assert reply.headers[IGNORED] == f"input[{item['type']}]"
            assert prompt_of(backend) == BEGIN + shown + END
    async with connect_strict() as client:
        reply = await client.post(RESPONSES, json={"input": [*HELLO, item, BYE]})
    assert reply.status_code == 400 and "input.1" in reply.text


def called(tool: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{tool}", "arguments": {arguments}}}</tool_call>'


PAIRS: list[tuple[list[Json], str, str]] = [
    ([{"type": "local_shell_call", "call_id": "c", "id": "l", "action": ACTION},
      {"type": "local_shell_call_output", "id": "c", "output": "a.txt"}],
     called("local_shell", '{"command": ["ls"], "env": {}}'), "a.txt"),
    ([{"type": "shell_call", "call_id": "c", "action": {"commands": ["ls", "x"]}},
      {"type": "shell_call_output", "call_id": "c", "output": [
          {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
          {"stdout": "", "stderr": "no x", "outcome": {"type": "exit", "exit_code": 127}},
          {"stdout": "b", "stderr": "", "outcome": {"type": "timeout"}}]}],
     called("shell", '{"commands": ["ls", "x"]}'),
     "a.txt\nno x\nError: exit code 127\nb\nError: timeout"),
    ([{"type": "apply_patch_call", "call_id": "c", "status": "completed",
       "operation": {"type": "delete_file", "path": "p"}},
      {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}],
     called("apply_patch", '{"type": "delete_file", "path": "p"}'), "completed"),
    ([{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
      {"type": "custom_tool_call_output", "call_id": "c", "output": "r"}],
     called("f", '{"input": "x"}'), "r"),
    ([{"type": "mcp_call", "id": "m", "server_label": "s", "name": "f", "arguments": '{"a": 1}',
       "output": "r"}], called("f", '{"a": 1}'), "r"),
    ([{"type": "mcp_call", "id": "m", "server_label": "s", "name": "f", "arguments": "{}",
       "output": None, "error": "down"}], called("f", "{}"), "down"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "call", "result"),
    PAIRS,
    ids=[items[0]["type"] + result for items, _, result in PAIRS],
)
async def test_calls_with_results_are_calls_of_functions(
    items: list[Json], call: str, result: str, connect_strict: Connect, backend: FakeBackend
) -> None:
    async with connect_strict() as client:
        reply = await client.post(RESPONSES, json={"input": [*HELLO, *items, BYE]})
    assert reply.status_code == 200 and IGNORED not in reply.headers, reply.text
    assert prompt_of(backend) == f"{BEGIN}assistant:{call};tool:{result};{END}"


@pytest.mark.parametrize("block", SERVERS_BLOCKS, ids=lambda block: str(block["type"]))
async def test_blocks_of_anthropics_servers_are_left_out_and_named(
    block: Json, connect: Connect, connect_strict: Connect, backend: FakeBackend
) -> None:
    said = {"type": "text", "text": "found"}
    sealed = {"type": "redacted_thinking", "data": "E"}
    async with connect() as client:
        for more, shown in (([], ""), ([sealed], ""), ([said], "assistant:found;")):
            body = of_messages(block, *more)
            reply = await client.post(MESSAGES, json=body)
            assert reply.status_code == 200, reply.text
            assert reply.headers[IGNORED] == f"messages[{block['type']}]"
            assert prompt_of(backend) == BEGIN + shown + END
        del body["max_tokens"]
        reply = await client.post(f"{MESSAGES}/count_tokens", json=body)
        assert reply.headers[IGNORED] == f"messages[{block['type']}]"
    async with connect_strict() as client:
        reply = await client.post(MESSAGES, json=of_messages(block, said))
    assert reply.status_code == 400 and "messages.1.content.0" in reply.text


async def test_a_turn_of_sealed_reasoning_alone_is_left_out(
    connect_strict: Connect, backend: FakeBackend
) -> None:
    sealed = {"type": "redacted_thinking", "data": "E"}
    async with connect_strict() as client:
        assert (await client.post(MESSAGES, json=of_messages(sealed))).status_code == 200
    assert prompt_of(backend) == BEGIN + END


async def test_calls_of_mcp_servers_part_a_turn(
    connect_strict: Connect, backend: FakeBackend
) -> None:
    use = {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {"a": 1}}
    result = {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": True,
              "content": [{"type": "text", "text": "down"}]}  # fmt: skip
    texts = [{"type": "text", "text": text} for text in ("before", "behind")]
    async with connect_strict() as client:
        body = of_messages(texts[0], use, result, texts[1])
        assert (await client.post(MESSAGES, json=body)).status_code == 200
        call = called("f", '{"a": 1}')
        turn = f"assistant:before{call};tool:Error: down;assistant:behind;"
        assert prompt_of(backend) == BEGIN + turn + END
        assert (await client.post(MESSAGES, json=of_messages(use, result))).status_code == 200
        assert prompt_of(backend) == f"{BEGIN}assistant:{call};tool:Error: down;{END}"


PART: Json = {"type": "text", "text": "said"}
DOCUMENTS: list[tuple[Json, str]] = [
    ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "said"},
      "title": "T", "context": "C", "citations": {"enabled": True}}, "T\nC\nsaid"),
    ({"type": "document", "source": {"type": "content", "content": "said"}}, "said"),
    ({"type": "document", "source": {"type": "content", "content": [PART, PART]}}, "said\nsaid"),
    ({"type": "search_result", "source": "S", "title": "T", "content": [PART]}, "T\nS\nsaid"),
    ({"type": "compaction", "content": "said"}, "said"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "shown"), DOCUMENTS)
async def test_documents_of_text_are_text(
    block: Json, shown: str, connect_strict: Connect, backend: FakeBackend
) -> None:
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    async with connect_strict() as client:
        reply = await client.post(MESSAGES, json=of_messages(block, role="user"))
        assert reply.status_code == 200, reply.text
        assert prompt_of(backend) == f"{BEGIN}user:{shown};{END}"
        turns = [*HELLO, {"role": "assistant", "content": [use]},
                 {"role": "user", "content": [result]}]  # fmt: skip
        reply = await client.post(MESSAGES, json={"max_tokens": 9, "messages": turns})
        assert prompt_of(backend).endswith(f"tool:{shown};"), reply.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSES, {"input": [*HELLO, {"type": "item_reference", "id": "msg_1"}]}),
        (RESPONSES, {"input": [{"role": "user", "content": [
            {"type": "input_file", "file_id": "f"}]}]}),
        (RESPONSES, {"input": [*HELLO, {"type": "mesage", "role": "user", "content": "x"}]}),
        *(
            (MESSAGES, of_messages({"type": "document", "source": source}, role="user"))
            for source in (
                {"type": "url", "url": "https://example.org"},
                {"type": "file", "file_id": "f"},
                {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
                {"type": "content", "content": [{"type": "image", "source": {}}]},
                "x",
            )
        ),
    ],
)  # fmt: skip
async def test_what_is_kept_elsewhere_or_is_no_text_is_refused(
    path: str, body: Json, connect: Connect
) -> None:
    async with connect() as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 400
    assert "expected" in reply.text or "this server reads" in reply.text
