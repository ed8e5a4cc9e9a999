"""The text of blocks that hold documents."""

from collections.abc import Iterator, Mapping
from typing import Any

from baton.text.conversation import text_of_part


def text_of_document(block: Mapping[str, Any]) -> str | None:
    """Return what a document, a result of a search or a summary says, its title first. None for
    another block, and for a document that is elsewhere or is no text."""
    kind, source = block.get("type"), block.get("source")
    if kind == "search_result":
        said = _joined(block.get("content"))
        heads = (block.get("title"), source)
    elif kind == "document" and isinstance(source, Mapping):
        named = {"text": "data", "content": "content"}.get(str(source.get("type")), "")
        said = _joined(source.get(named))
        heads = (block.get("title"), block.get("context"))
    elif kind == "compaction":
        said, heads = _joined(block.get("content") or ""), (None, None)
    else:
        return None
    if said is None:
        return None
    return "\n".join([*(head for head in heads if isinstance(head, str) and head), said])


def _joined(content: object) -> str | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [text_of_part(part) for part in content]
    return None if None in texts else "\n".join(_present(texts))


def _present(texts: list[str | None]) -> Iterator[str]:
    yield from (text for text in texts if text)
