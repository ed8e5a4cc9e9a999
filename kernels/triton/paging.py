"""Places of consecutive positions in a pool of pages.

Where pages are multiples of a tile of KEYS positions, all of a tile lies in one page: one entry of
the table is read for it, and places are consecutive, so that loads are wide. A loop reads the
entries of the next tile while it works on one. If an address of keys depended on a load in the
same turn, Triton would spend its stages on the entries, and load no keys ahead.
"""

import triton
import triton.language as tl

from baton.kernels.triton.branches import ancestor


@triton.jit
def page_entries(table, first, end, PAGE_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Return the pages of positions first .. first + KEYS: one number int32, or [KEYS]; 0 from
    `end`. first: a multiple of KEYS."""
    if PAGE_SIZE % KEYS == 0:
        entries = tl.load(table + first // PAGE_SIZE, mask=first < end, other=0)
    else:
        position = first + tl.arange(0, KEYS)
        entries = tl.load(table + position // PAGE_SIZE, mask=position < end, other=0)
    return entries


@triton.jit
def page_places(first, end, STEP: tl.constexpr, PAGE_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Return, of positions first .. first + KEYS: the positions [KEYS] int32; which lie below
    `end`; and their places inside of their pages, STEP values apart.

    first: a multiple of KEYS, below `end`.
    """
    position = first + tl.arange(0, KEYS)
    if PAGE_SIZE % KEYS == 0:
        place = first % PAGE_SIZE + tl.arange(0, KEYS)
    else:
        place = position % PAGE_SIZE
    return position, position < end, place * STEP


@triton.jit
def branch_places(
    table,
    first,
    end,
    branch,
    path,
    STEP: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    LINKS: tl.constexpr,
):
    """Return, of positions first .. first + KEYS of a node of a tree: the positions [KEYS] int32;
    which lie below `end`; their pages [KEYS] int64; and their places inside of these, STEP values
    apart.

    branch: position of the row's newest token, from which on positions lie where `path`, the node's
    links, has bits
    """
    position = first + tl.arange(0, KEYS)
    held = position < end
    depth = position - branch
    lies = tl.where(depth < 0, position, branch + ancestor(path, depth, LINKS))
    page = tl.load(table + lies // PAGE_SIZE, mask=held, other=0).to(tl.int64)
    return position, held, page, lies % PAGE_SIZE * STEP
