"""The tool that every client has, and the answers that the scripted model gives."""

PLAIN = "Fine, thank you."
FOUND = "It is 18 C in Paris."
BOTH = "Paris has 18 C; nobody knows Atlantis."
DESCRIPTION = "Return the weather of a city."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class NoSuchCityError(Exception):
    """The failure of a call."""


def weather(city: str) -> str:
    """Return the weather of a city."""
    if city != "Paris":
        raise NoSuchCityError("no such city")
    return "18 C"


def ask(scenario: str) -> str:
    """Return a question that the model answers as its scenario says."""
    return f"How is it? scenario {scenario}"


def expect(found: object, right: object) -> None:
    """Raise if a client read something else than the model said."""
    if found != right:
        raise SystemExit(f"got {found!r}, expected {right!r}")
