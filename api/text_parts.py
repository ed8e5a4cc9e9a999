"""Contents of messages: a text, or OpenAI's list of text parts."""

from typing import Any

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}
"""The JSON schema of a content."""


def text_content(value: Any) -> Any:
    """Join OpenAI's list of text parts, because the templates of text models expect a string."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("expected a string or a list of text parts")
    texts = []
    for part in value:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ValueError("expected only parts of type 'text'; this server reads no others")
        texts.append(text)
    return "".join(texts)
