"""Lines of logs: text with what `extra` brought."""

import logging

from baton.core.logs import TextFormatter


def line_of(message: str, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "baton.x", "levelname": "INFO", "msg": message, "created": 0.25, "msecs": 250.0}
        | extra
    )
    return TextFormatter(worker="decode-0", role="decode").format(record)


def test_a_text_line_says_when_who_what_and_the_fields() -> None:
    line = line_of("moved", request_id="ab12", tokens=3, key=None)
    assert line == (
        "1970-01-01T00:00:00.250Z INFO decode-0 decode moved request_id=ab12 tokens=3 key=-"
    )


def test_values_of_others_stay_within_their_field_and_line() -> None:
    line = line_of("request", call='GET /a b="c"', key="two\nlines x=1", empty="")
    assert line.endswith(r'''call="GET /a b=\"c\"" key="two\nlines x=1" empty=""''')
    assert "\n" not in line
