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
    pages, of each the parts of all ranks."""

    def __init__(self, memory: HostPools, folder: FileFolder, names: FileNames) -> None:
        self.folder, self._names = folder, names
        self._pools: CachedPools = memory.cached
        self._ranks = memory.ranks
        self._slots = HostBytes(memory.states.view(-1).numpy())
        self._pages = HostBytes(memory.pages.view(-1).numpy())
        self._slot_bytes, self._page_bytes = memory.states.shape[1], memory.pages.shape[1]

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
        blocks = self._views(each.loan.state, first, len(names))
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
        blocks = self._views(state, each.file.first, each.end)
        of_state = self._ranks * self._pools.stateful
        wanted = dict(enumerate(blocks))
        known_blocks = self._ranks * max(0, min(known, each.end) - each.file.first)
        for number in range(of_state, of_state + known_blocks):
            del wanted[number]
        if each.end < len(state.pages):
            for number in range(of_state):
                del wanted[number]
        sizes = [len(block) for block in blocks]
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

    def _views(self, state: StateRef, first: int, end: int) -> list[memoryview]:
        """Return the bytes of a state and of its pages [first, end), in a file's order."""
        slots, pages = self._pools.slots.size, self._pools.pages.size
        views = self._parts(self._slots, slots, state.slot) if self._pools.stateful else []
        for page in state.pages[first:end]:
            views += self._parts(self._pages, pages, page)
        return views

    def _parts(self, pool: HostBytes, blocks: int, number: int) -> list[memoryview]:
        """Return the parts that the ranks have of a block of a pool of so many."""
        nbytes = self._slot_bytes if pool is self._slots else self._page_bytes
        places = range(number, number + self._ranks * blocks, blocks)
        return [pool.view(place * nbytes, nbytes) for place in places]
