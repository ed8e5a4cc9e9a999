"""The wheel: what is in it, and that it works where there is no checkout."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from deploy.served_worker import served_worker
from test_layout import MAY_IMPORT, ROOT

from baton import __version__

DEADLINE_S = 300.0
DATA = ("examples/recall/model/*", "monitoring/grafana/**/*.*", "monitoring/prometheus/*")
BUILT = ("build", "dist", "__pycache__", "*.pyc", "*.egg-info", ".*")
USER = """
from baton import __version__
from baton.core.sampling_params import SamplingParams

version: int = __version__
SamplingParams(temperature="hot")
"""


def run(*words: str | Path, folder: Path) -> str:
    """Return what a command prints, which must succeed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


# Nothing of the checkout may be found by an environment variable.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@dataclass(frozen=True)
class Installed:
    """A new virtual environment that has the wheel, and an empty folder."""

    wheel: Path
    scripts: Path
    empty: Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and install it beside this environment's third-party packages.

    They are found by a .pth file, so that nothing is downloaded; .pth files of their own, such as
    that of an editable Baton, have no effect there.
    """
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, since a build leaves files behind, which the next one would take up.
    shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*BUILT))
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", folder / "source", folder=folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv/bin/python"
    run(
        *pip,
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        wheel,
        folder=folder,
    )
    (packages,) = (folder / "venv/lib").glob("*/site-packages")
    borrowed = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "borrowed.pth").write_text("\n".join(borrowed))
    (folder / "empty").mkdir()
    return Installed(wheel, python.parent, folder / "empty")


def test_it_holds_every_file_of_the_rooms_the_example_model_and_the_rules(
    installed: Installed,
) -> None:
    paths = [path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.*")]
    paths += [path for pattern in DATA for path in ROOT.glob(pattern)]
    paths += [ROOT / "__init__.py", ROOT / "py.typed"]
    left_out = ROOT / "bench" / "results"  # what was measured is not installed
    ours = {
        f"baton/{path.relative_to(ROOT)}"
        for path in paths
        if path.suffix != ".pyc" and left_out not in path.parents
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        found = set(wheel.namelist())
    assert {name for name in found if ".dist-info/" not in name} == ours
    for name in ("kernels/native/kernels.cpp", "examples/recall/model/model.safetensors"):
        assert f"baton/{name}" in ours


def test_the_version_is_that_of_the_code(installed: Installed) -> None:
    assert installed.wheel.name == f"baton_serve-{__version__}-py3-none-any.whl"
    said = run(installed.scripts / "baton", "--version", folder=installed.empty)
    assert said == f"baton, version {__version__}\n"


def test_a_worker_without_a_model_serves_the_example(installed: Installed) -> None:
    command = [str(installed.scripts / "baton"), "worker"]
    with served_worker(command, installed.empty, ENVIRONMENT) as worker:
        told, *_ = worker.said.splitlines()
        folder = installed.scripts.parent.resolve() / "lib"
        assert told.startswith(f"serving the example model, {folder}/")
        assert told.endswith("--model DIR serves one of your own")
        text = "ada likes plum . gus likes fig . ask gus ada :"
        reply = worker.generate(text, temperature=0, max_new_tokens=8)
        assert reply["text"] == "gus fig ada plum"


def test_the_rules_of_prometheus_are_found(installed: Installed) -> None:
    program = "from importlib.resources import files; print(files('baton') / 'monitoring')"
    found = Path(run(installed.scripts / "python", "-c", program, folder=installed.empty).strip())
    for name in ("prometheus/alerts.yml", "grafana/dashboards/baton-overview.json"):
        assert (found / name).read_text() == (ROOT / "monitoring" / name).read_text()


def test_type_checkers_read_its_annotations(installed: Installed) -> None:
    (installed.empty / "user.py").write_text(USER)
    said = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", installed.scripts / "python",
         "--cache-dir", installed.empty / "cache", "user.py"],
        cwd=installed.empty, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE_S,
    ).stdout  # fmt: skip
    assert 'user.py:5: error: Incompatible types in assignment (expression has type "str"' in said
    assert 'user.py:6: error: Argument "temperature" to "SamplingParams" has incompatible' in said
    assert "Found 2 errors in 1 file" in said
