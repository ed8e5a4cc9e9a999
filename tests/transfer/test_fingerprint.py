"""Two workers that lay their memory out differently never exchange a byte."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from transfer.layouts import PAGES, SLOTS

from baton.core.errors import IncompatibleError
from baton.engine.layout.layout import LatentShape
from baton.rpc.handshake import ABSENT, check_fingerprint, differences
from baton.transfer.fingerprint import layout_fingerprint

LAYERS = {"page_layout"}


def fingerprint(slots=SLOTS, pages=PAGES, **changed: Any) -> Mapping[str, str]:
    options: dict[str, Any] = {"model": "m", "weights": "w", "dtype": "float32", "chunk_size": 16}
    return layout_fingerprint(slots, pages, **(options | changed))


def test_two_equal_workers_agree() -> None:
    assert differences(fingerprint(), fingerprint()) == []
    check_fingerprint(fingerprint(), fingerprint(), "d0", "p0")


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (fingerprint(model="n"), {"model"}),
        (fingerprint(weights="x"), {"weights"}),
        (fingerprint(dtype="bfloat16"), {"dtype"}),
        (fingerprint(chunk_size=32), {"chunk_size"}),
        (fingerprint(replace(SLOTS, ssm_dtype=torch.bfloat16)), {"ssm_dtype", "slot_layout"}),
        (fingerprint(replace(SLOTS, conv_dtype=torch.float32)), {"conv_dtype", "slot_layout"}),
        (fingerprint(replace(SLOTS, layers=SLOTS.layers[::-1])), {"slot_layout"}),
        (fingerprint(pages=replace(PAGES, page_size=16)), {"page_size", "page_layout"}),
        (fingerprint(pages=replace(PAGES, dtype=torch.float16)), {"kv_dtype", "page_layout"}),
        (fingerprint(pages=replace(PAGES, layers=(PAGES.layers[0], LatentShape(10)))), LAYERS),
        (fingerprint(pages=replace(PAGES, layers=(PAGES.layers[0],))), LAYERS),
    ],
    ids=lambda value: ",".join(sorted(value)) if isinstance(value, set) else "",
)
def test_a_difference_is_named_with_both_values(other: Mapping[str, str], names: set[str]) -> None:
    ours = fingerprint()
    assert {d.name for d in differences(ours, other)} == names
    with pytest.raises(IncompatibleError, match="p0 cannot exchange state") as refused:
        check_fingerprint(ours, other, "d0", "p0")
    for name in names:
        assert f"{name}={ours[name]}" in refused.value.expected
        assert f"{name}={other[name]}" in refused.value.actual


def test_peers_may_have_other_numbers_of_ranks() -> None:
    assert fingerprint(ranks=2) != fingerprint()  # which a release without ranks refuses
    check_fingerprint(fingerprint(), fingerprint(ranks=2), "d0", "p0")


def test_a_name_that_one_side_lacks_is_a_difference() -> None:
    ours = fingerprint()
    theirs = {name: value for name, value in ours.items() if name != "ssm_dtype"}
    for left, right in ((ours, theirs), (theirs, ours)):
        (difference,) = differences(left, right)
        assert difference.name == "ssm_dtype"
        assert ABSENT in (difference.ours, difference.theirs)
