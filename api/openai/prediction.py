"""OpenAI's predicted output: what a client expects the answer to be."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, WithJsonSchema

from baton.api.backend import ModelInfo
from baton.api.body import Body
from baton.api.errors import invalid
from baton.api.fields.field_table import FieldPlace, works
from baton.api.openai.messages import CONTENT, read_content
from baton.api.text_service import TextService


def _some_text(value: Any) -> Any:
    if value is None:
        raise ValueError("expected a string or a list of text parts")
    return "".join(read_content(value, "prediction.content"))


class Prediction(Body):
    """The text that a client expects. Its tokens are guesses for drafts: it changes no answer."""

    place: ClassVar[FieldPlace | None] = FieldPlace.PREDICTION

    type: Annotated[Literal["content"], works("content")]
    content: Annotated[
        Annotated[str, BeforeValidator(_some_text), WithJsonSchema(CONTENT)],
        works("the text that the answer may be"),
    ]

    async def encode(self, text: TextService, model: ModelInfo) -> Sequence[int]:
        """Return its token ids. Raises INVALID_REQUEST if no answer could be so long."""
        if not self.content:
            return ()
        name = "prediction.content"
        ids = await text.encode(self.content, add_special_tokens=False, param=name)
        if len(ids) > model.max_model_len:
            raise invalid(
                name,
                f"{name} has {len(ids)} tokens, but this model's context is "
                f"{model.max_model_len}: no answer is so long; shorten it",
                expected=f"at most {model.max_model_len} tokens",
                actual=len(ids),
            )
        return ids
