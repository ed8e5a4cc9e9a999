"""The bases of all request bodies and of the objects in them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from baton.api.fields.field_table import FieldPlace, FieldUse
from baton.api.fields.request_fields import FieldCheck, add_fields, given_fields, labels_in
from baton.api.prepared import Prepared
from baton.core.errors import InvariantError

T = TypeVar("T")
ListOf = Annotated[list[T], Field(fail_fast=True)]
"""A list of which the first wrong entry alone is reported: pydantic takes 25 us for each, which is
half a second for 64 KiB of them."""


@cache
def _names(kind: type[BaseModel]) -> frozenset[str]:
    """Return the names of a body's fields, as clients write them."""
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


def _uses(kind: type[BaseModel]) -> Iterator[tuple[str, FieldUse]]:
    """Yield what becomes of each field of a body, those of its own class first. Raises
    InvariantError for a field that does not say it."""
    own = [name for each in kind.__mro__ for name in vars(each).get("__annotations__", ())]
    for name in dict.fromkeys(own):
        if name in kind.model_fields:
            field = kind.model_fields[name]
            use = next((mark for mark in field.metadata if isinstance(mark, FieldUse)), None)
            if use is None:
                raise InvariantError(f"{kind.__name__}.{name} lacks its use: `works` or `label`")
            yield field.alias or name, use


class Body(BaseModel):
    """An object in a request body: typed fields, and no others but those of its place in
    the table of fields. A null is the same as no field.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    place: ClassVar[FieldPlace | None] = None
    """Its place in the table, to which it adds its fields: each has a `FieldUse` in its type. None:
    it has the fields of its class alone."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        if cls.place is not None:
            add_fields(cls.place, dict(_uses(cls)))

    @model_validator(mode="wrap")
    @classmethod
    def _check_names(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if not isinstance(data, dict):
            return handler(data)
        check = info.context or FieldCheck()
        made = handler(given_fields(data, cls.place, _names(cls), check))
        if isinstance(made, RequestBody) and (labels := labels_in(data, cls.place)):
            made._notes = replace(made.notes, labels=labels)
        return made


@dataclass(frozen=True)
class BodyNotes:
    """The facts about a body besides its fields."""

    prepared: Prepared | None = None  # what was made of the prompts, which the body then lacks
    labels: Mapping[str, str] = field(default_factory=dict)
    """The fields that its call's log line, span and dump have; see `labels_in`."""
    ignored: tuple[str, ...] = ()  # names of what was left out of the request


NO_NOTES = BodyNotes()


class RequestBody(Body):
    """The whole body of a request, with what is noted of it."""

    _notes: BodyNotes | None = PrivateAttr(default=None)  # pydantic takes 3 us for each of these

    @property
    def notes(self) -> BodyNotes:
        return self._notes or NO_NOTES

    def with_ignored(self, names: Iterable[str]) -> Self:
        """Return the body with the names of what was left out."""
        return self._with(replace(self.notes, ignored=tuple(names)))

    @property
    def prepared(self) -> Prepared | None:
        """Return what was made of the prompts; None for a small body, which has them."""
        return self.notes.prepared

    def with_prepared(self, prepared: Prepared | None) -> Self:
        """Return the body with what was made of its prompts."""
        return self._with(replace(self.notes, prepared=prepared))

    def _with(self, notes: BodyNotes) -> Self:
        made = self.model_copy()
        made._notes = notes
        return made
