"""Canonical conversations through each API have the prompts of transformers: here with the test
templates, and by `make clients-templates` with those of published models.
"""

from collections import Counter
from pathlib import Path

import fake_backend
import pytest
from clients.template_talks import TALKS
from clients.templates import BUILDERS, DISGUISES, EQUAL, THINKING, compare
from prompt_model import TEMPLATES


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
async def test_prompts_of_conversations_are_those_of_transformers(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_backend, "CONTEXT", 10_000)
    continued = sum(talk.continued for talk in TALKS)
    verdicts = Counter[str]()
    shown = []
    async for each in compare(path.stem, path.read_text(), tmp_path):
        verdicts[each.verdict] += 1
        if each.verdict != EQUAL:
            shown.append(f"{each.talk} {each.request}: {each.verdict} {each.shown}")
    assert shown == []
    requests = len(TALKS) * len(BUILDERS) - continued  # Responses continues no answer
    assert verdicts == {EQUAL: requests * len(THINKING) * DISGUISES}
