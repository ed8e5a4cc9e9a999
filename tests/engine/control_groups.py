"""Control groups as files in a folder, laid out as the kernel shows them."""

from pathlib import Path

import pytest

from baton.engine.sizing import control_groups


class ControlGroups:
    """The files that a process in `group` sees, where `top` of the hierarchy is mounted."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        version: int = 2,
        group: str = "/",
        top: str = "/",
    ) -> None:
        self.mounted = folder / "mounted"
        self.mounted.mkdir()
        (folder / "self").mkdir()
        monkeypatch.setattr(control_groups, "SELF", folder / "self")
        line = (
            f"0::{group}" if version == 2 else f"5:cpu:/elsewhere\n4:hugetlb,memory:{group}\n0::/"
        )
        (folder / "self/cgroup").write_text(f"{line}\n")
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,hugetlb,memory"
        (folder / "self/mountinfo").write_text(
            "31 23 0:28 / / rw,relatime shared:1 - ext4 /dev/sda rw\n"
            f"35 31 0:32 {top} {self.mounted} rw,relatime shared:9 - {kind}\n"
        )

    def write(self, group: str, **values: object) -> None:
        """Write files of one group, with `_` for the first dot of their names."""
        folder = self.mounted / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (folder / name.replace("_", ".", 1)).write_text(f"{value}\n")
