"""Errors between text and token ids; `core/errors.py` has the tree."""

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError, ConfigError


class TokenizerFileError(ConfigError):
    """The folder's tokenizer files are missing or unreadable; raised at start."""


class TextError(BatonError):
    """The base of this room's errors about one request."""

    code = ErrorCode.INVALID_REQUEST


class EncodingError(TextError):
    """One text or one sequence of ids cannot be converted; the next one can."""


class ChatTemplateError(TextError):
    """The messages cannot be rendered with this model's chat template."""


class StopRegexError(TextError):
    """A regular expression that should end an answer cannot be used."""


class GrammarError(TextError):
    """A schema, regular expression or grammar cannot be used, or the answer has left it."""


class SchemaError(TextError):
    """A JSON schema is none, or is larger than one may be."""


class PatternError(TextError):
    """A schema's pattern says what the dialect of grammars lacks."""


class GrammarBusyError(TextError):
    """Too many grammars have come at once; the same one may pass later."""

    code = ErrorCode.OVERLOADED
