"""A JSON object that another process has sent."""

from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]
"""Its members are what the process wrote: they are read by name, and not checked again."""
