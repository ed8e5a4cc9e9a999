"""The published schema, docs/baton.schema.json. `python tests/config_schema_page.py` (`make docs`)
writes it.
"""

import json
from pathlib import Path

from baton.deploy.options.config_schema import config_schema

PAGE = Path(__file__).resolve().parent.parent / "docs/baton.schema.json"


def page() -> str:
    """Return the schema as `baton config schema` prints it."""
    return json.dumps(config_schema(), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
