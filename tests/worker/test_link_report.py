"""Reports of links: when they change, and which links they name."""

from baton.worker.link_report import LinkReport

STATE, TOKEN = 5_000_000, 10_000
"""Bytes: those of 512 tokens as well are some ten million, or 10 ms at 1e9 a second."""


def test_only_links_below_half_of_the_fastest_are_named() -> None:
    report = LinkReport(STATE, TOKEN)
    assert report.update({}) == (0, {})
    assert report.update({"d0": 1e9, "d1": 6e8, "d2": 4e8}) == (1e9, {"d2": 4e8})


def test_a_link_over_which_a_hand_off_is_hardly_later_is_not_named() -> None:
    for smaller, slow in ((1, {"d1": 4e8}), (2, {"d1": 4e8}), (4, {})):  # 15, 7.6 and 3.8 ms later
        report = LinkReport(STATE // smaller, TOKEN // smaller)
        assert report.update({"d0": 1e9, "d1": 4e8}) == (1e9, slow)


def test_it_says_the_same_until_a_bandwidth_has_changed_by_a_fifth() -> None:
    report = LinkReport(STATE, TOKEN)
    said = report.update({"d0": 1e9, "d1": 1e8})
    assert report.update({"d0": 1.19e9, "d1": 0.81e8}) == said
    assert report.update({"d0": 1.21e9, "d1": 0.81e8}) == (1.2e9, {"d1": 1e8})
    assert report.update({"d0": 1.21e9, "d1": 0.79e8}) == (1.2e9, {"d1": 7.9e7})


def test_a_rank_that_is_gone_is_forgotten() -> None:
    report = LinkReport(STATE, TOKEN)
    report.update({"d0": 1e9, "d1": 1e8})
    assert report.update({"d1": 1e8}) == (1e8, {})
