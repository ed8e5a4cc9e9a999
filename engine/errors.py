"""The engine's error tree.

BatonError
├── ConfigError        a model folder or an option that cannot work; raised at start
│   └── WeightsError   a checkpoint's tensors are missing, extra, misshapen or cut short
├── RequestError       one request is wrong; the engine goes on
│   └── TooLargeError  it could not fit even alone
├── InvariantError     the engine's own books do not balance: a fault of ours
└── StoppedError       the engine's loop has ended; nothing more can be asked of it
"""


class BatonError(Exception):
    """Base of every error that Baton raises on purpose."""


class ConfigError(BatonError):
    """A model folder or an option that cannot work: says which, and what would."""


class WeightsError(ConfigError):
    """A checkpoint's tensors are missing, extra, misshapen or cut short."""


class RequestError(BatonError):
    """One request is wrong. `field` names the offending argument."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class TooLargeError(RequestError):
    """A request that could not fit even alone."""


class InvariantError(BatonError):
    """The engine's own books do not balance."""


class StoppedError(BatonError):
    """The engine's loop has ended."""
