"""The page of options against the commands."""

from options_table import PAGE, rows, with_tables

from baton.deploy.commands.serve import serve


def test_the_page_of_options_has_each_of_them_with_its_default() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "run `make docs` and commit what it changes"
    assert "| `--lease` | `3` |" in page


def test_every_option_that_takes_a_value_has_a_row() -> None:
    assert {"--model", "--memory-gb", "--channel", "--decode-dp"} <= set(rows(serve))
