"""Selectors of labels, as Ray understands them."""

import pytest
from ray._private.label_utils import validate_label_selector

from baton.deploy.demand.label_selector import check_key, check_selector, selects

NODE = {"pool": "fast", "zone": "b"}


@pytest.mark.parametrize(
    ("labels", "selected"),
    [
        ([], True),
        ([("pool", "fast")], True),
        ([("pool", "slow")], False),
        ([("pool", "!slow")], True),
        ([("pool", "!fast")], False),
        ([("zone", "in(a,b)")], True),
        ([("zone", "in(a, c)")], False),
        ([("zone", "!in(a,c)")], True),
        ([("zone", "!in(a, b)")], False),
        ([("rack", "r1")], False),
        ([("rack", "!r1")], True),
        ([("pool", "fast"), ("zone", "a")], False),
    ],
)
def test_a_node_is_selected_by_all_of_its_labels(
    labels: list[tuple[str, str]], selected: bool
) -> None:
    assert selects(labels, NODE) is selected
    assert validate_label_selector(dict(labels)) is None, "Ray takes what we take"


@pytest.mark.parametrize("selector", ["", "-a", "a,b", "in()", "in(a", "!!a", "a b", "x" * 64])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(ValueError, match=r"expected VALUE, !VALUE, in\(A,B\) or !in\(A,B\)"):
        check_selector(selector)


@pytest.mark.parametrize(("key", "right"), [("pool", True), ("ray.io/zone", True), ("a/b/c", False),
                                            ("", False), ("a b", False)])  # fmt: skip
def test_keys(key: str, right: bool) -> None:
    assert (validate_label_selector({key: "x"}) is None) is right
    if right:
        check_key(key)
    else:
        with pytest.raises(ValueError, match="is not the key of a label"):
            check_key(key)
