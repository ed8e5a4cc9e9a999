"""The HTTP header that carries an API key."""


def key_header(api_key: str) -> dict[str, str]:
    """Return the header that carries an API key; none for an empty one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
