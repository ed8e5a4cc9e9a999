"""The model that commands serve when none is named: small, and in every installation."""

from importlib.resources import files
from pathlib import Path

from rich.console import Console

EXAMPLE_MODEL = Path(str(files("baton"))) / "examples" / "recall" / "model"
EXAMPLE_PROMPT = "Ada likes plum. Ben likes tea. Ask Ben Ada:"
"""A question that it answers: it knows few words."""


def tell_of_example(console: Console, named: str | None) -> None:
    """Print one line that says which model is served, and how to name another, if none is named.

    named: the value of --model.
    """
    if named is None:
        console.print(
            f"serving the example model, {EXAMPLE_MODEL}; --model DIR serves one of your own",
            highlight=False,
            soft_wrap=True,
        )
