"""Logging of one process to its standard error, one line an event: text, or a JSON object."""

import json
import logging
import re
import time
from enum import StrEnum

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


_is_word = re.compile(r"[!#-<>-~]+").fullmatch  # ASCII without spaces, quotation marks and `=`
_encode = json.JSONEncoder(default=str).encode  # `json.dumps` would make an encoder for each line


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class JsonFormatter(logging.Formatter):
    """A formatter that turns the fields of `extra` into fields of the JSON object."""

    def __init__(self, **fields: str) -> None:
        """fields: added to every line, such as the worker's id."""
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
        }
        entry |= extra_of(record)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return _encode(entry)


class TextFormatter(logging.Formatter):
    """A formatter that writes the fields of `extra` behind the message, as name=value."""

    def __init__(self, **fields: str) -> None:
        """fields: as for `JsonFormatter`; their values stand before the message."""
        super().__init__()
        self._who = " ".join(fields.values())

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        words = [f"{at}.{int(record.msecs):03}Z", record.levelname, self._who, record.getMessage()]
        words += [f"{name}={_shown(value)}" for name, value in extra_of(record).items()]
        line = " ".join(filter(None, words))
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def extra_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that `extra` gave the record, without those that Ray adds to each."""
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and not name.startswith("_")
    }


def set_up(log_format: LogFormat, **fields: str) -> None:
    """Set up logging of the whole process, which one worker or router has to itself.

    fields: who writes, such as the worker's id; on every line.
    """
    kind = JsonFormatter if log_format is LogFormat.JSON else TextFormatter
    handler = logging.StreamHandler()
    handler.setFormatter(kind(**fields))
    ours = logging.getLogger("baton")
    ours.handlers[:] = [handler]
    ours.setLevel(logging.INFO)
    ours.propagate = False


def _shown(value: object) -> str:
    """Return a value as one word: in JSON if it is an object, or has spaces or quotation marks."""
    text = "-" if value is None else str(value)
    if _is_word(text):
        return text
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    plain = text.isprintable() and not set(text) & {" ", '"', "="}
    return text if plain and text else json.dumps(text)
