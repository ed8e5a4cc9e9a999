"""The tables in docs/requests.md. `python tests/requests_table.py` (`make docs`) writes them."""

import json
from pathlib import Path

import baton.api.http
import baton.api.sglang.routes  # noqa: F401  # the classes of all bodies add their fields
from baton.api.fields.field_table import FieldClass, FieldPlace, FieldUse
from baton.api.fields.request_fields import BY_PLACE

PAGE = Path(__file__).resolve().parent.parent / "docs/requests.md"
BEGIN, END = "<!-- begin generated -->\n", "<!-- end generated -->\n"
HEAD = "| field | class | what it is for |\n|---|---|---|\n"


def tables() -> str:
    """Return one Markdown table for each object of a request."""
    return "\n" + "".join(f"## {place}\n\n{HEAD}{rows(place)}\n" for place in FieldPlace)


def rows(place: FieldPlace) -> str:
    """Return the rows of one object: fields that share all but their name share a row."""
    found: dict[tuple[FieldClass, str], list[str]] = {}
    for name, use in BY_PLACE[place].items():
        found.setdefault((use.kind, purpose(use)), []).append(f"`{name}`")
    order = list(FieldClass)
    ordered = sorted(found.items(), key=lambda item: order.index(item[0][0]))
    return "".join(f"| {', '.join(names)} | {kind} | {goes} |\n" for (kind, goes), names in ordered)


def purpose(use: FieldUse) -> str:
    """Return what the row says about a field's values."""
    values = ", ".join(f"`{json.dumps(value)}`" for value in use.values)
    if use.kind is FieldClass.NEUTRAL:
        return f"accepted: {values}" if values else "only empty ones are accepted"
    return f"{use.goes}; one of {values}" if values else use.goes


def with_tables(page: str) -> str:
    """Return `page` with the tables between its marks."""
    head, rest = page.split(BEGIN)
    return head + BEGIN + tables() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
