"""The base of all request bodies and of the objects in them."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from baton.api.field_table import FieldPlace
from baton.api.request_fields import UnknownFields, given_fields


class Body(BaseModel):
    """A request body, or an object in one: typed fields, and no others but those of its place in
    the table of fields. A null is the same as no field.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    place: ClassVar[FieldPlace | None] = None
    """Its place in the table. None: it has the fields of its class alone."""

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        policy = info.context or UnknownFields.REFUSE
        own = {field.alias or name for name, field in cls.model_fields.items()}
        return given_fields(data, cls.place, own, policy)
