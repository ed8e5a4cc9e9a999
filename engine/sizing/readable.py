"""Numbers of bytes as operators read them."""


def readable(nbytes: int) -> str:
    """Format 12345678 as "11.8 MiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024.0:
            return f"{value:.4g} {unit}"
        value /= 1024.0
    return f"{value:.4g} GiB"
