"""The list of packages, for which pyproject.toml has no words: the folder of the package `baton` is
the repository's own.
"""

from setuptools import find_namespace_packages, setup

NO_PACKAGES = ("build", "charts", "dist", "docs", "examples", "monitoring", "tests")
"""Folders at the top that are no rooms. pyproject.toml names files of some as package data."""

rooms = find_namespace_packages(exclude=[name + end for name in NO_PACKAGES for end in ("", ".*")])
setup(
    packages=["baton", *(f"baton.{room}" for room in rooms)],
    script_name="setup.py",  # so that the package gets all modules of its folder but this one
)
