"""Compare Baton's prompts with transformers' for real chat templates: `make clients-templates`.

    PYTHONPATH=tests python -m clients.templates FOLDER [--only qwen]

FOLDER has `*.jinja` files. Each conversation goes through each API. Templates differ in the forms
that they read, such as arguments as objects or as text. transformers is given every form, and the
prompt to reach is the one that shows the most of the conversation, the plainest form going first.
"""

import argparse
import asyncio
import difflib
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import fake_backend
import jinja2
from clients.template_talks import TALKS, Form, Talk, forms_of
from conversation_draws import Json, as_chat, as_messages, as_responses
from prompt_model import CHAT, MESSAGES, RESPONSES, Model, Prompts, made_model, transformers

from baton.text.parser_names import AUTO
from baton.text.template_options import TemplateOptions

CONTEXT = 100_000
BUILDERS = {CHAT: as_chat, MESSAGES: as_messages, RESPONSES: as_responses}
DISGUISES = 2  # of each conversation, for each API
THINKING: tuple[Json, ...] = ({}, {"enable_thinking": True}, {"enable_thinking": False})
RAW = re.compile(r"""\{'|\\"|'text'|"type": "text"|\bNone\b""")
"""Traces of a Python object, or of JSON within JSON, in a prompt."""
REFUSALS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
EQUAL, REFUSED = "equal", "refused by both"
SPELLED = "with what the template leaves out"
FINE = {EQUAL, REFUSED, SPELLED, "explained"}
EXPLAINED = {
    ("MiniMax-M2", "parts of a result"): (
        "its list of one part is not written as the text of that part is, so Baton sends texts"
    ),
    ("mistralai-Mistral-Nemo-Instruct-2407", "thoughts beside calls"): (
        "it writes the system's text only where the conversation ends with a question"
    ),
    ("mistralai-Mistral-Nemo-Instruct-2407", "a continued answer"): "the same",
}


@dataclass(frozen=True)
class Compared:
    """A prompt of Baton's and transformers'."""

    template: str
    talk: str
    request: str
    verdict: str
    shown: str = ""  # the difference

    @property
    def explained(self) -> str:
        return EXPLAINED.get((self.template, self.talk), "")


def best_prompt(model: Model, talk: Talk, thinking: Json) -> str | None:
    """Return transformers' prompt of the form that shows the most; None if all are refused."""
    scored: list[tuple[int, int, str]] = []
    for form in forms_of(talk):
        prompt = _rendered(model, talk, form, thinking)
        if prompt is None:
            continue
        shown = -len(_left_out(talk, prompt))
        scored.append((shown, -len(RAW.findall(prompt)), prompt))
        if scored[-1][:2] == (0, 0):
            break
    return max(scored, key=lambda each: each[:2])[2] if scored else None


def _left_out(talk: Talk, prompt: str) -> list[str]:
    """Return what a prompt does not show of a conversation."""
    return [m for m in talk.marks() if m not in prompt and json.dumps(m)[1:-1] not in prompt]


def _rendered(model: Model, talk: Talk, form: Form, thinking: Json) -> str | None:
    """Return transformers' prompt of a form; None if the template refuses it."""
    try:
        # As `apply_chat_template` calls it, but that this leaves null contents out.
        ((prompt,), _) = transformers.utils.chat_template_utils.render_jinja_template(
            [form.messages(talk.turns)],
            talk.tools,
            chat_template=model.text.template.source,
            add_generation_prompt=not talk.continued,
            continue_final_message=talk.continued,
            **model.reference.special_tokens_map,
            **thinking,
        )
    except REFUSALS:
        return None
    return str(prompt)


async def _ours(prompts: Prompts, path: str, body: Json) -> tuple[bool, str]:
    """Return whether a request was served, and its prompt or the error."""
    reply = await prompts.client.post(path, json=body)
    if reply.status_code != 200:
        return False, reply.text
    return True, prompts.backend.tokenizer.decode(prompts.backend.seen[-1].prompt_ids, False)


def _body(path: str, talk: Talk, thinking: Json, disguise: int) -> Json:
    body = BUILDERS[path](list(talk.turns), random.Random(f"{talk.name} {disguise}"))
    body["chat_template_kwargs"] = thinking
    if not talk.has_tools:
        del body["tools"]
    if talk.continued and path == CHAT:
        body["continue_final_message"] = True
    return body


async def compare(name: str, source: str, folder: Path) -> AsyncIterator[Compared]:
    """Yield what became of each conversation with one template. The folder gets its files."""
    for part in ("probed", "served"):
        (folder / part).mkdir()
    with made_model(folder / "probed", source, TemplateOptions()) as model:
        template = model.text.template
    traits = template._chosen(tools=True).traits
    spells = not (traits.tools and traits.calls and traits.results)
    # Where the template writes tools in a form that is not known, any will do.
    options = TemplateOptions(tool_parser="hermes" if template.tools is None else AUTO)
    with made_model(folder / "served", source, options) as model, model.prompts() as prompts:
        for talk in TALKS:
            for thinking in THINKING:
                expected = best_prompt(model, talk, thinking)
                for path in BUILDERS:
                    if talk.continued and path == RESPONSES:  # it continues no answer
                        continue
                    for disguise in range(DISGUISES):
                        body = _body(path, talk, thinking, disguise)
                        served, text = await _ours(prompts, path, body)
                        request = f"{path} {thinking} {disguise}"
                        verdict = _verdict(talk if spells else None, expected, served, text)
                        yield Compared(name, talk.name, request, *verdict)


def _verdict(
    spelled: Talk | None, expected: str | None, served: bool, text: str
) -> tuple[str, str]:
    """spelled: the conversation, if the template does not write all that one may have."""
    if expected is None and not served:
        return REFUSED, text
    if not served:
        return "refused by Baton alone", text
    if text == expected:
        return EQUAL, ""
    if spelled and len(_left_out(spelled, text)) <= len(_left_out(spelled, expected or "")):
        return SPELLED, text
    if expected is None:
        return "served by Baton alone", text
    lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), lineterm="", n=1)
    return "differs", "\n".join(lines)


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="NAME")
    options = parser.parse_args()
    fake_backend.CONTEXT = CONTEXT
    verdicts: Counter[str] = Counter()
    names = [path for path in sorted(options.folder.glob("*.jinja")) if options.only in path.stem]
    for path in names:
        refused, told = 0, set[str]()
        with tempfile.TemporaryDirectory() as folder:
            source = path.read_text(encoding="utf-8")
            async for each in compare(path.stem, source, Path(folder)):
                verdict = "explained" if each.explained else each.verdict
                verdicts[verdict] += 1
                refused += verdict == REFUSED
                if each.explained and each.verdict != EQUAL and each.talk not in told:
                    told.add(each.talk)
                    print(f"{path.stem}: {each.talk}: {each.explained}", flush=True)
                elif verdict not in FINE:
                    print(f"{path.stem}: {each.talk}: {each.request}: {verdict}\n{each.shown}")
        if refused:
            print(f"{path.stem}: {refused} prompts refused, by transformers too", flush=True)
    total = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    print(f"{len(names)} templates, {verdicts.total()} prompts: {total}")
    return 0 if verdicts.keys() <= FINE and names else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
