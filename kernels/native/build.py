"""Compiles the native kernels at first use, into a cache that all processes of a user share."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.core.errors import BatonError

COMPILER = "g++"
SOURCE = Path(__file__).with_name("kernels.cpp")  # includes every header beside it
# No -ffast-math: its start-up code, linked into a shared library, makes the whole thread flush
# denormals; and a sum's order must not depend on what else the compiler sees.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
          "-fopenmp", "-fPIC", "-shared")  # fmt: skip
_X86_FLAGS = ("-mprefer-vector-width=512",)
DEADLINE_S = 300.0  # for another process's compilation, and for our own
_POLL_S = 0.05


class BuildError(BatonError):
    """The failure to build the library; the message says why and what to do."""


def build(cache: Path | None = None, compiler: str = COMPILER) -> Path:
    """Return the compiled library, built if no process has built it yet. Raises BuildError."""
    found = shutil.which(compiler)
    if found is None:
        raise BuildError(f"no {compiler} on PATH: install it (g++ 9 or later)")
    folder = cache or _cache_folder()
    library = folder / f"kernels-{_key(found)}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(library.with_suffix(".lock")):
            if not library.is_file():
                _compile(found, library)
    except OSError as error:
        raise BuildError(f"cannot write to {folder}: {error}") from error
    return library


def _cache_folder() -> Path:
    """Return the cache's folder by the XDG base directory convention."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "baton"


def _flags() -> tuple[str, ...]:
    return _FLAGS + (_X86_FLAGS if platform.machine() in ("x86_64", "AMD64") else ())


def _key(compiler: str) -> str:
    """Hash everything that the result depends on: sources, flags, compiler, and -march=native."""
    version = _run([compiler, "--version"]).partition("\n")[0]
    sources = [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]
    parts = (*(path.read_text() for path in sources), " ".join(_flags()), version, _cpu())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _cpu() -> str:
    """Return what -march=native depends on: the CPU's model and its instruction sets."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "CPU part", "Features")
    lines = info.read_text().partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(wanted))


def _compile(compiler: str, library: Path) -> None:
    """Compile into a scratch folder and move the result to its place, where it appears complete."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as scratch:
        built = Path(scratch) / library.name
        _run([compiler, *_flags(), "-o", str(built), str(SOURCE)])
        built.replace(library)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} did not run: {error}") from error
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise BuildError(f"{' '.join(command)} failed with {done.returncode}: {last}")
    return done.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock, which the system releases when its holder exits, however it exits."""
    deadline = time.monotonic() + DEADLINE_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"another process has held {path} for {DEADLINE_S:.0f} s: end it"
                    ) from None
                time.sleep(_POLL_S)
        yield
