"""The table of a request's headers says what Starlette's list of them says."""

from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from baton.api.request_headers import headers_in

NAMES = ["host", "content-type", "x-a", "é"]
raw = st.lists(st.tuples(st.sampled_from(NAMES), st.text(st.characters(max_codepoint=255))))


@given(raw)
def test_a_table_answers_as_a_list(given_headers: list[tuple[str, str]]) -> None:
    listed = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given_headers]
    known, table = Headers(raw=listed), headers_in({"headers": listed})
    assert table == known and table.items() == known.items()
    for name in [*NAMES, "Host", "absent"]:
        assert table.get(name) == known.get(name)
        assert table.get(name, "other") == known.get(name, "other")
        assert table.getlist(name) == known.getlist(name)
        assert (name in table) == (name in known)
        if name in known:
            assert table[name] == known[name]


def test_the_table_is_made_once_and_again_when_the_headers_become_others() -> None:
    scope = {"headers": [(b"content-length", b"3"), (b"content-length", b"4")]}
    first = headers_in(scope)
    assert first.get("content-length") == "3" and headers_in(scope) is first
    scope["headers"] = [each for each in scope["headers"] if each[1] != b"3"]
    assert headers_in(scope).get("content-length") == "4"
