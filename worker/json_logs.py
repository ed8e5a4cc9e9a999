"""Logging to standard error, one JSON object a line."""

import json
import logging

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


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
        entry |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def set_up(worker_id: str, role: str) -> None:
    """Set up logging of the whole process, which one worker has to itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(worker=worker_id, role=role))
    ours = logging.getLogger("baton")
    ours.handlers[:] = [handler]
    ours.setLevel(logging.INFO)
    ours.propagate = False
