"""Parts of Ray that it does not promise to keep are used in one file, of releases tried."""

import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from test_layout import ROOT, imports, imports_in, our_files

HOME = ROOT / "deploy" / "cluster" / "ray_private.py"
PRIVATE = ("ray._private", "ray._raylet", "ray.experimental")


def private_imports(found: set[str]) -> set[str]:
    return {name for name in found if name.startswith(PRIVATE)}


def test_only_one_file_imports_what_ray_may_change() -> None:
    users = {path for path in our_files() if private_imports(imports(path))}
    assert users == {HOME}


@pytest.mark.parametrize(
    "source",
    [
        "from ray._private import state",
        "import ray._raylet",
        "from ray.experimental import tqdm_ray",
    ],
)
def test_a_private_import_is_found_whatever_its_form(source: str) -> None:
    assert private_imports(imports_in(source))


def test_ray_is_bounded_to_the_minor_release_that_runs_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (ray,) = (r for r in map(Requirement, project["dependencies"]) if r.name == "ray")
    major, minor, *_ = map(int, version("ray").split("."))
    assert f"{major}.{minor}.0" in ray.specifier
    assert f"{major}.{minor + 1}.0" not in ray.specifier
