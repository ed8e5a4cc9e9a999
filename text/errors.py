"""What can go wrong between text and token ids.

TextError
├── TokenizerFileError   the model folder's tokenizer files are missing or bad
├── EncodingError        this text has no token ids, or these ids no text
├── ChatTemplateError    the chat template is absent, broken, or refused the messages
├── GrammarError         what an answer must look like is ill-formed, or was not kept to
└── GrammarBusyError     there was no time to look at it
"""


class TextError(ValueError):
    """The root: catch this to catch all of them."""


class TokenizerFileError(TextError):
    """The folder's tokenizer files are missing or unreadable; raised while starting."""


class EncodingError(TextError):
    """One text or one id sequence cannot be converted; the next one can."""


class ChatTemplateError(TextError):
    """The messages cannot be rendered with this model's chat template."""


class GrammarError(TextError):
    """A schema, regular expression or grammar cannot be used, or the answer has left it."""


class GrammarBusyError(TextError):
    """Too many grammars have come at once; the same one may pass later."""
