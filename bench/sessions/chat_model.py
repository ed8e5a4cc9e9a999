"""A model folder whose chats cost a router what those of published models do: no weights, a
byte-level BPE with merges, and a template with special tokens, tools and turns."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from sysconfig import get_path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from baton.bench.checkpoints import GRANITE_SMALL

CONTEXT = 1 << 16  # tokens
VOCABULARY = 8192
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CORPUS_FILES = 60
# Qwen's rule for words.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As Qwen's: tools in the system message, calls and results in turns of their own.
_TEMPLATE = """\
{%- if tools %}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
# Tools

<tools>
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
</tools>

For each function call, return a json object within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{% if message.role == 'tool' %}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif not (loop.first and tools and message.role == 'system') %}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{% endfor %}
<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""


def write_chat_model(folder: Path, context: int = CONTEXT) -> Path:
    """Write config, tokenizer and template to a new `folder`, and return it. context: tokens."""
    folder.mkdir(parents=True)
    config = {**GRANITE_SMALL, "max_position_embeddings": context, "vocab_size": VOCABULARY}
    _write_json(folder / "config.json", config)
    chat_tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {"eos_token": SPECIAL[2], "pad_token": SPECIAL[0], "chat_template": _TEMPLATE},
    )
    return folder


def chat_tokenizer() -> Tokenizer:
    """Return the tokenizer, trained on the standard library's sources."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources(), trainer)
    return tokenizer


def sources() -> Iterator[str]:
    """Yield texts that a coding agent reads: modules of the standard library."""
    for path in islice(sorted(Path(get_path("stdlib")).glob("*.py")), _CORPUS_FILES):
        yield path.read_text(encoding="utf-8", errors="replace")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
