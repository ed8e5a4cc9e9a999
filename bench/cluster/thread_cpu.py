"""The CPU time of a process by thread, from the kernel's own counts."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path


def thread_seconds(pid: int, names: Mapping[int, str]) -> Counter[str]:
    """Return the CPU seconds so far of each kind of thread, by name.

    names: those of Python's threads, by native id; others have the kernel's name without its
    number.
    """
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent_ns = int((task / "schedstat").read_text().split()[0])
            own = (task / "comm").read_text().strip()
        except OSError:  # the thread has ended meanwhile
            continue
        found[names.get(int(task.name)) or re.sub(r"[\d_.:-]+$", "", own)] += spent_ns
    return Counter({name: ns / 1e9 for name, ns in found.items()})
