"""Reading what a model's configuration says of quantised weights: FP8 and INT8 are read, all else
refused."""

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError
from baton.engine.models.fields import Fields, read_json
from baton.engine.settings.choices import QuantizationMethod
from baton.engine.settings.quantisation import BLOCK, UNQUANTISED, Quantisation

MODELOPT_FILE = "hf_quant_config.json"
_SECTION = "quantization_config"
_OLDER_SECTION = "compression_config"  # as older compressed-tensors called it
_READ = (
    "FP8 is read, of quant_method fp8, compressed-tensors (format float-quantized) and modelopt "
    "(quant_algo FP8, FP8_PB_WO or FP8_PER_CHANNEL_PER_TOKEN), and INT8 of compressed-tensors "
    "(format int-quantized). Give such a checkpoint, or one in "
    "float32 or bfloat16, which --weight-format int8 rounds to 8 bits at load"
)
_BLOCK_ALGORITHMS = ("FP8_PB_WO", "FP8_BLOCK_SCALES")
_FP8_ALGORITHMS = ("FP8", *_BLOCK_ALGORITHMS, "FP8_PER_CHANNEL_PER_TOKEN")
_MIXED = "MIXED_PRECISION"
# Formats of compressed-tensors that store 8-bit numbers as they are, and the types of those; the
# last, without scales of activations.
_FORMATS = {
    "float-quantized": ("float",),
    "int-quantized": ("int",),
    "naive-quantized": ("float", "int"),
}
_TYPES = {"float": "FP8", "int": "INT8"}
_NUMBERS = ("e4m3", "e4m3fn", "float8_e4m3fn")  # names of the one type of FP8 numbers
# Modules that quantisers leave as they are, listed or not.
_NEVER = ("embed_tokens", "embeddings", "embedding", "gate", "router")
_NAMED_AT_MOST = 20
# Beginnings of the names that a checkpoint's quantisation has here, by what others call it.
_CALLED = {
    QuantizationMethod.FP8: "fp8",
    QuantizationMethod.MODELOPT: "modelopt ",
    QuantizationMethod.MODELOPT_FP8: "modelopt FP8",
    QuantizationMethod.MODELOPT_MIXED: f"modelopt {_MIXED}",
    QuantizationMethod.COMPRESSED_TENSORS: "compressed-tensors ",
    QuantizationMethod.W8A8_FP8: "compressed-tensors FP8",
    QuantizationMethod.W8A8_INT8: "compressed-tensors INT8",
}


def read_quantisation(fields: Fields, folder: Path) -> Quantisation:
    """Read config.json's `quantization_config`, or its older name, its own or that of
    `text_config`; else the file that ModelOpt writes. Raises ConfigError, with what is read, for
    all that is not FP8 or INT8.
    """
    for place in (fields, fields.section("text_config")):
        if place.has(_SECTION):
            return _read(place.section(_SECTION))
        if place.has(_OLDER_SECTION):
            return _read(place.section(_OLDER_SECTION), "compressed-tensors")
    path = folder / MODELOPT_FILE
    if path.is_file():
        return _modelopt(Fields(read_json(path), str(path)))
    return UNQUANTISED


def check_method(asked: QuantizationMethod | None, found: Quantisation, folder: Path) -> None:
    """Raise ConfigError where a checkpoint is quantised in another way than it was said to be."""
    if asked is None or found.name.startswith(_CALLED[asked]):
        return
    if found == UNQUANTISED:
        raise ConfigError(
            f"quantization {asked} does not fit {folder}, whose configuration states none. Leave "
            "quantization out; weight_format int8 rounds plain weights to 8 bits on a CPU"
        )
    fitting = [name for name, called in _CALLED.items() if found.name.startswith(called)]
    raise ConfigError(
        f"quantization {asked} does not fit {folder}, which is quantised by {found.name}. Leave "
        f"quantization out, or give {' or '.join(fitting)}"
    )


def list_faults(
    quantisation: Quantisation, quantised: Set[str], needed: Mapping[str, tuple[int, ...]]
) -> str | None:
    """Return a sentence with the modules in which the configuration's list and the files disagree;
    None where there are none.

    quantised: the weights that the files hold in 8 bits. needed: shapes of the model's tensors.
    """
    names = {name: name.removesuffix(".weight") for name in needed}
    against = [names[n] for n in needed if n in quantised and quantisation.keeps(names[n])]
    # A list that names nothing does not say that all else is quantised.
    absent = _unlisted(quantisation, quantised, needed) if quantisation.kept else ()
    said = [
        f"{what}: {_some(modules)}"
        for what, modules in (
            ("quantised in the files, though listed as not converted", against),
            ("not quantised in the files, though not listed", list(absent)),
        )
        if modules
    ]
    return "; ".join(said) or None


def _unlisted(
    quantisation: Quantisation, quantised: Set[str], needed: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    for name, shape in needed.items():
        module = name.removesuffix(".weight")
        plain = len(shape) == 2 and module != name and name not in quantised
        if plain and module.rpartition(".")[2] not in _NEVER and not quantisation.keeps(module):
            yield module


def _some(modules: list[str]) -> str:
    more = len(modules) - _NAMED_AT_MOST
    rest = f" and {more} more" if more > 0 else ""
    return f"{', '.join(modules[:_NAMED_AT_MOST])}{rest}"


def _read(fields: Fields, otherwise: str = "unnamed") -> Quantisation:
    """Read a section. otherwise: its method where it names none."""
    silent = "modelopt" if fields.has("quant_algo") else otherwise
    method = fields.text("quant_method", silent)
    if method == "fp8":
        return _fp8(fields)
    if method == "compressed-tensors":
        return _compressed_tensors(fields)
    if method == "modelopt":
        return _modelopt(fields)
    raise _refused(fields, method)


def _fp8(fields: Fields) -> Quantisation:
    for name, right in (("fmt", _NUMBERS), ("expert_dtype", ("fp8",)), ("store_dtype", ("fp8",))):
        if fields.text(name, right[0]) not in right:
            raise _refused(fields, f"fp8 with {name} {fields.text(name)}")
    block = _block(fields, "weight_block_size")
    names = ("modules_to_not_convert", "ignored_layers")
    return Quantisation("fp8", block, _listed(fields, names))


def _compressed_tensors(fields: Fields) -> Quantisation:
    """Read the conventions of compressed-tensors. Every group of weights must be FP8 or INT8;
    groups without any quantise activations or the KV cache.
    """
    groups = [
        Fields(group, f"{fields.where} ({name})")
        for name, group in fields.section("config_groups").raw.items()
        if isinstance(group, dict)
    ]
    if fields.section("transform_config").raw.get("config_groups"):
        raise _refused(fields, "compressed-tensors with a transform_config")
    of_weights = [group for group in groups if group.section("weights").raw]
    if not of_weights and (groups or fields.has("kv_cache_scheme")):
        return UNQUANTISED
    own = fields.text("format", "float-quantized")
    blocks = {BLOCK}
    kinds: set[str] = set()
    for group in of_weights:
        form = group.text("format", own)
        weights = group.section("weights")
        if form not in _FORMATS:
            raise _refused(fields, f"compressed-tensors, format {form}")
        number, bits = weights.text("type"), weights.integer("num_bits")
        if number not in _FORMATS[form] or bits != 8:
            raise _refused(fields, f"compressed-tensors, format {form} with {number}{bits}")
        kinds.add(_TYPES[number])
        if weights.has("block_structure"):
            blocks = {_block(weights, "block_structure")}
        elif weights.has("group_size") and weights.text("strategy", "") == "group":
            blocks = {(1, weights.integer("group_size"))}
    if not of_weights:
        raise _refused(fields, "compressed-tensors without config_groups")
    name = f"compressed-tensors {' and '.join(sorted(kinds))}"
    return Quantisation(name, blocks.pop(), _listed(fields, ("ignore",)))


def _modelopt(fields: Fields) -> Quantisation:
    """Read ModelOpt's conventions, from config.json or from its own file."""
    if fields.has("quantization"):
        fields = fields.section("quantization")
    if "quant_algo" in fields.raw and not fields.has("quant_algo"):
        return UNQUANTISED  # the KV cache alone is
    algorithm = fields.text("quant_algo", "unnamed")
    layers = fields.section("quantized_layers").raw.values() if algorithm == _MIXED else ()
    for each in (str(layer["quant_algo"]) for layer in layers if "quant_algo" in layer):
        if each not in _FP8_ALGORITHMS:
            raise _refused(fields, f"modelopt {_MIXED} with {each}")
    if algorithm not in (*_FP8_ALGORITHMS, _MIXED):
        raise _refused(fields, f"modelopt {algorithm}")
    size = fields.integer("group_size", BLOCK[0]) if algorithm in _BLOCK_ALGORITHMS else BLOCK[0]
    names = ("exclude_modules", "ignore")
    return Quantisation(f"modelopt {algorithm}", (size, size), _listed(fields, names))


def _block(fields: Fields, name: str) -> tuple[int, int]:
    """Read two sizes. Older files of compressed-tensors have them as a text: "128x128"."""
    value = fields.raw.get(name)
    if isinstance(value, str) and re.fullmatch(r"\d+x\d+", value):
        fields = Fields({name: [int(size) for size in value.split("x")]}, fields.where)
    sizes = fields.integers(name, BLOCK)
    if len(sizes) != 2 or min(sizes) < 1:
        raise ConfigError(f"{fields.where}: {name} should be two sizes; got {list(sizes)}")
    return sizes[0], sizes[1]


def _listed(fields: Fields, names: Iterable[str]) -> tuple[str, ...]:
    """Return the entries of all lists called `names`. Raises ConfigError for a pattern that is
    none.
    """
    entries = tuple(entry for name in names if fields.has(name) for entry in fields.texts(name))
    for entry in entries:
        if entry.startswith("re:"):
            try:
                re.compile(entry.removeprefix("re:"))
            except re.error as error:
                raise ConfigError(
                    f"{fields.where}: {entry!r} is no regular expression: {error}"
                ) from error
    return entries


def _refused(fields: Fields, method: Any) -> ConfigError:
    return ConfigError(
        f"{fields.where}: the weights are quantised ({method}), which is not read. {_READ}"
    )
