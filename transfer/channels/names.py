"""Names of channels as values of an option. Its import needs neither torch nor gRPC."""

AUTO = "auto"
BETWEEN_PROCESSES = ("nixl", "grpc")
"""Channels whose ends may be in different processes, the best first."""
