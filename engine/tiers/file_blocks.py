"""The bytes between the host's pools and files: which block of a file is which slot or page."""

import logging
from collections.abc import Sequence
from functools import partial
from time import perf_counter

from baton.core.state_ref import StateRef
from baton.engine.cache.cached_pools import CachedPools
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.request.request import Reservation
from baton.engine.tiers.copy_thread import Copy
from baton.engine.tiers.file_folder import ChainedFile, FileFolder
from baton.engine.tiers.file_names import FileNames
from baton.engine.tiers.host_memory import HostPools
from baton.engine.tiers.prefix_copy import PrefixCopy
from baton.engine.tiers.prefix_file import file_bytes, read_file, write_file

log = logging.getLogger(__name__)


class FileBlocks:
    """The work of the threads that read and write. A file holds a state, if the model has any, and
    pages."""

    def __init__(self, memory: HostPools, folder: FileFolder, names: FileNames) -> None:
        self.folder, self._names = folder, names
        self._pools: CachedPools = memory.cached
        self._slots = HostBytes(memory.states.view(-1).numpy())
        self._pages = HostBytes(memory.pages.view(-1).numpy())

    def chain(self, key: bytes, salt: bytes, above: int) -> list[ChainedFile]:
        """Return the files of the longest prefix of `key` that has more than `above` pages."""
        return self.folder.chain(self._names.folder(salt), self._names.along(key, salt), above)

    def write(self, each: PrefixCopy, copy: Copy) -> float | None:
        """Write the pages of a loan that no file has, and its state. None where that was stopped,
        or the files have all, or could never. Raises OSError."""
        began, folder = perf_counter(), self._names.folder(each.salt)
        names = self._names.along(each.key, each.salt)
        chain = self.folder.chain(folder, names, above=0)
        self.folder.use(chain)
        first = chain[-1].end if chain else 0
        blocks = self._views(each.loan.state, first)
        nbytes = file_bytes([len(block) for block in blocks])
        if first == len(names) or not self.folder.make_room(nbytes):
            return None
        path = self.folder.path(folder, names[-1], first)
        signed = f"{folder}/{path.name}"
        if not write_file(path, blocks, partial(self._names.mac, signed), copy):
            return None
        self.folder.add(path, first, nbytes)
        return perf_counter() - began

    def read(
        self, chain: Sequence[ChainedFile], reservation: Reservation, copy: Copy
    ) -> float | None:
        """Read what a reservation needs of these files. None where that was stopped. Raises
        DamagedFileError and OSError; then the file in question is gone."""
        began, state = perf_counter(), reservation.state
        known = len(state.pages) - len(reservation.owned)
        for each in chain:
            try:
                if not self._read(each, state, known, copy):
                    return None
            except BaseException:
                self.folder.remove(each.file)
                raise
        self.folder.use(chain)
        return perf_counter() - began

    def _read(self, each: ChainedFile, state: StateRef, known: int, copy: Copy) -> bool:
        """Read the pages of a file from page `known` on, and the state if it ends there."""
        pages = state.pages[each.file.first : each.end]
        stateful = self._pools.stateful
        numbered = enumerate(pages, each.file.first)
        wanted = {
            number - each.file.first + stateful: self._page(page)
            for number, page in numbered
            if number >= known
        }
        if stateful and each.end == len(state.pages):
            wanted[0] = self._slot(state.slot)
        sizes = [self._pools.slot_bytes] * stateful + [self._pools.page_bytes] * len(pages)
        return not wanted or read_file(
            each.file.path, sizes, wanted, partial(self._names.mac, each.name), copy
        )

    def remove(self, salts: bytes) -> None:
        """Remove the files of the salts that begin so. Raises KeptFileError."""
        self.folder.clear(self._names.folders(salts))

    def look(self, _: Copy) -> None:
        """Look at what other workers have done in the folder."""
        try:
            self.folder.look()
        except OSError as error:
            log.warning("the folder of cached prefixes cannot be read: %s", error)

    def _views(self, state: StateRef, first: int) -> list[memoryview]:
        """Return the bytes of a state and of its pages from page `first` on."""
        slots = [self._slot(state.slot)] if self._pools.stateful else []
        return slots + [self._page(page) for page in state.pages[first:]]

    def _slot(self, slot: int) -> memoryview:
        return self._slots.view(slot * self._pools.slot_bytes, self._pools.slot_bytes)

    def _page(self, page: int) -> memoryview:
        return self._pages.view(page * self._pools.page_bytes, self._pools.page_bytes)
