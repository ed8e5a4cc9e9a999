"""Triton's compiler: the variants that it has made in this process, and where it keeps them.

Each launch of a combination of types, constants and alignments that is new to the process waits for
the compiler, or for its cache on disk, and all requests wait with it.
"""

import getpass
import logging
import os
import tempfile
from pathlib import Path

import triton

log = logging.getLogger(__name__)

# Names of file systems, up to a dot, that several hosts may share.
_SHARED = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "beegfs", "glusterfs", "afs",
    "ocfs2", "gfs2", "9p", "virtiofs", "fuse",
}  # fmt: skip


class CompilationCount:
    """The number of variants that were compiled, or read from the compiler's cache."""

    def __init__(self) -> None:
        self.count = 0
        self._watching = False

    def watch(self) -> None:
        """Count from now on, beside whatever else follows the compiler. Idempotent."""
        if self._watching:
            return
        self._watching = True
        before = triton.knobs.runtime.jit_post_compile_hook

        def compiled(**told: object) -> None:
            self.count += 1
            if before is not None:
                before(**told)

        triton.knobs.runtime.jit_post_compile_hook = compiled


COMPILATIONS = CompilationCount()
"""Those of this process: Triton has one hook."""


def use_host_cache(mounts: Path = Path("/proc/mounts")) -> Path:
    """Let Triton keep what it compiles on this host, by its version, and return the folder.

    Hosts that share a folder read each other's half-written files, and a kernel may then compute
    NaN in silence (https://github.com/vllm-project/vllm/issues/52413). A folder that
    TRITON_CACHE_DIR names is kept, with a warning where it is shared.
    """
    chosen = os.environ.get("TRITON_CACHE_DIR")
    if chosen:
        if file_system(Path(chosen), mounts) in _SHARED:
            log.warning(
                "TRITON_CACHE_DIR %s is on a file system that other hosts may share: kernels read "
                "from it may be damaged; unset it, or name a folder of this host",
                chosen,
            )
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "baton"
    if file_system(folder, mounts) in _SHARED:
        folder = _own_folder()
    cache = folder / f"triton-{triton.__version__}"
    triton.knobs.cache.dir = str(cache)
    return cache


def file_system(path: Path, mounts: Path) -> str:
    """Return the kind of file system that a folder lies in, up to a dot; "" where it is not known.

    mounts: a table of the kernel's, a line a mount: device, folder, kind and more.
    """
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    found, deepest = "", -1
    path = path.resolve()
    for _, folder, kind, *_ in (line.split() for line in lines):
        mounted = Path(folder.replace("\\040", " "))
        # A later mount of one folder hides an earlier one.
        if path.is_relative_to(mounted) and len(mounted.parts) >= deepest:
            found, deepest = kind.partition(".")[0], len(mounted.parts)
    return found


def _own_folder() -> Path:
    """Return a folder of this user alone in the host's temporary one: code is loaded from it."""
    folder = Path(tempfile.gettempdir()) / f"baton-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.lstat()
    if folder.is_symlink() or stat.st_uid != os.getuid() or stat.st_mode & 0o022:
        return Path(tempfile.mkdtemp(prefix="baton-"))
    return folder
