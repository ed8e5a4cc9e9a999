"""The base of all request bodies and of the objects in them."""

from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from baton.api.field_table import FieldPlace
from baton.api.prepared import Prepared
from baton.api.request_fields import UnknownFields, given_fields

T = TypeVar("T")
ListOf = Annotated[list[T], Field(fail_fast=True)]
"""A list of which the first wrong entry alone is reported: pydantic takes 25 us for each, which is
half a second for 64 KiB of them."""


class Body(BaseModel):
    """A request body, or an object in one: typed fields, and no others but those of its place in
    the table of fields. A null is the same as no field.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    place: ClassVar[FieldPlace | None] = None
    """Its place in the table. None: it has the fields of its class alone."""

    _prepared: Prepared | None = PrivateAttr(default=None)

    @property
    def prepared(self) -> Prepared | None:
        """Return what was made of the prompts, which this body then lacks; None for a small one."""
        return self._prepared

    def with_prepared(self, prepared: Prepared | None) -> Self:
        """Return the body with what was made of its prompts."""
        made = self.model_copy()
        made._prepared = prepared
        return made

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        policy = info.context or UnknownFields.REFUSE
        own = {field.alias or name for name, field in cls.model_fields.items()}
        return given_fields(data, cls.place, own, policy)
