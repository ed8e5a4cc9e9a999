"""The API key of commands that ask a router."""

import click

api_key_option = click.option(
    "--api-key", envvar="BATON_API_KEY", default="",
    help="For a router that asks for keys. In BATON_API_KEY, other users cannot read it.",
)  # fmt: skip


def key_header(api_key: str) -> dict[str, str]:
    """Return the header that carries an API key; none for an empty one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
