"""Values whose static type allows more than a test does, such as the parts of a client's reply."""

from typing import TypeVar

T = TypeVar("T")


def of_type(kind: type[T], value: object) -> T:
    """Return the value, which must be of this type."""
    assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"
    return value


def present(value: T | None) -> T:
    """Return the value, which must be there."""
    assert value is not None
    return value
