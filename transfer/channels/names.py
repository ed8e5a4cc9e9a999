"""Names of channels as values of an option. Its import needs neither torch nor gRPC."""

AUTO = "auto"
NIXL = "nixl"
BETWEEN_PROCESSES = (NIXL, "grpc")
"""Channels whose ends may be in different processes, the best first."""
