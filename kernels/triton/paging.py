"""Places of consecutive positions in a pool of pages."""

import triton
import triton.language as tl


@triton.jit
def page_places(table, first, end, STEP: tl.constexpr, PAGE_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Return, of positions first .. first + KEYS: the positions [KEYS] int32; which lie below
    `end`; their pages, int64; and their places inside of these, STEP values apart.

    first: a multiple of KEYS, below `end`. Where pages are multiples of KEYS, all positions lie in
    one page: one entry of the table is read, and places are consecutive, so that loads are wide.
    Otherwise `pages` is [KEYS].
    """
    position = first + tl.arange(0, KEYS)
    held = position < end
    if PAGE_SIZE % KEYS == 0:
        page = tl.load(table + first // PAGE_SIZE).to(tl.int64)
        place = first % PAGE_SIZE + tl.arange(0, KEYS)
    else:
        page = tl.load(table + position // PAGE_SIZE, mask=held, other=0).to(tl.int64)
        place = position % PAGE_SIZE
    return position, held, page, place * STEP
