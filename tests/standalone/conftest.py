"""The tiny model of the tests of `deploy`, and fresh random inputs."""

from deploy.conftest import rng, tiny

__all__ = ["rng", "tiny"]
