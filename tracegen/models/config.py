"""A shape from a model's ``config.json``, as checkpoints on the Hugging Face Hub have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tracegen.models import config_layers
from tracegen.models import config_names as names
from tracegen.models.schema import ModelShape
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.shared.strict import mistake_in

NAME = "config.json"
"""Of the file, in the folder of a checkpoint."""

MOST_BYTES = 16_000_000
"""Of a configuration: those with a table for every layer have some 100 kB."""

NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where a model of several modalities has the configuration of its text decoder."""

CODE = "the modelling code of the family, as tracegen.models.config_names has it"
"""Source of what a configuration does not say."""


def is_config(name: str) -> bool:
    """Tell whether a name is that of a configuration: a JSON file, or a folder that has one.

    Parameters
    ----------
    name
        Of a model as users give it; there may be no such file, or no file can be named so.
    """
    if not name or name.endswith(".json"):
        return name != ""
    try:
        return (Path(name) / NAME).is_file()
    except (OSError, ValueError):  # longer than a name can be, or with a zero byte
        return False


def says_so(path: Path) -> bool:
    """Tell whether a file is a model's configuration, by a key that these have."""
    try:
        text = regular.read_text(path / NAME if path.is_dir() else path, MOST_BYTES)
    except (OSError, ValueError):
        return False
    return '"model_type"' in text or '"architectures"' in text


def read(path: str | Path) -> ModelShape:
    """Read the shape of a model from its configuration.

    Parameters
    ----------
    path
        A ``config.json``, or the folder of a checkpoint that has one.

    Returns
    -------
    The shape; its sources say which value each was read from, and its notes what was assumed. Its
    name is the configuration's ``model_type``.

    Raises
    ------
    UserError
        If the file cannot be read or is no such configuration, the model has no experts, or sizes
        are missing or contradict each other.
    """
    path = Path(path)
    try:
        path = path / NAME if path.is_dir() else path
        text = regular.read_text(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        msg = f"cannot read the model file {path}: {reason}"
        raise UserError(msg) from error
    return parse(text, str(path))


def parse(text: str, where: str) -> ModelShape:
    """Read the shape of a model from the text of its configuration.

    Parameters
    ----------
    text
        JSON.
    where
        Name of the file in errors.

    Raises
    ------
    UserError
        As those of :func:`read`.
    """
    try:
        document = regular.parse_json(text)
    except ValueError as error:
        msg = f"{where}: not valid JSON"
        raise UserError(msg) from error
    if not isinstance(document, dict):
        msg = f"{where}: expected the JSON object of a model's configuration"
        raise UserError(msg)
    return _Config(document, where).shape()


class _Config:
    """Configuration of a text decoder, with what is noted while it is read."""

    def __init__(self, document: dict[str, Any], where: str) -> None:
        self._where, self._file, self._whole = where, Path(where).name, document
        self._text = document
        while inner := next((c for k in NESTED if isinstance(c := self._text.get(k), dict)), None):
            self._text = inner
        for key in ("ffn_config", "attn_config"):  # DBRX
            inner = self._text.get(key)
            self._text = {**inner, **self._text} if isinstance(inner, dict) else self._text
        self._type = str(self.get("model_type") or document.get("model_type") or "")
        self._family = names.family(self._type)
        self._values: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        self._notes: list[str] = []

    def get(self, name: str) -> Any:
        """Value of the text decoder, or None; a list of one number for all layers is that."""
        value = self._text.get(name)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            return value[0] if isinstance(value[0], int) else value
        return value

    def shape(self) -> ModelShape:
        self._experts()
        self._layers()
        self._attention()
        self._router()
        self._rest()
        if not self._family:
            said = f"model_type {self._type!r} is" if self._type else "A model without model_type is"
            self._notes.append(
                f"{said} not known here: read by the names of its values; experts are taken to be "
                "gated, and weights to be scaled to sum to one where nothing else is stated."
            )
        try:
            return ModelShape(
                name=self._type or "model",
                sources=self._sources,
                notes=" ".join(self._notes),
                title=self._title(),
                **self._values,
            )
        except ValidationError as error:
            place, message = mistake_in(error)
            raise self._error(f"{place}: {message}" if place else message) from error

    def _error(self, message: str) -> UserError:
        return UserError(f"{self._where}: {message}")

    def _title(self) -> str:
        title = self._whole.get("architectures")
        return str(title[0])[:100] if isinstance(title, list) and title else ""

    def _whole_number(self, keys: tuple[str, ...], what: str, least: int = 1) -> tuple[int, str]:
        """First of some values, as a whole number, and its name.

        Raises
        ------
        UserError
            If none is there, or it is no such number.
        """
        key = next((key for key in keys if self.get(key) is not None), "")
        if not key:
            type_ = f" (model_type {self._type!r})" if self._type else ""
            msg = f"{what}{type_} is missing: none of {', '.join(keys)} is there"
            raise self._error(msg)
        value = self.get(key)
        if isinstance(value, list):
            message = f"{key} is not the same in all layers; a shape has one value for all"
            raise self._error(message)
        if type(value) is not int or not least <= value < 2**31:
            message = f"{key} is {str(value)[:40]!r}; expected a whole number from {least}"
            raise self._error(message)
        return value, key

    def _take(self, field: str, value: Any, source: str) -> None:
        self._values[field], self._sources[field] = value, source

    def _read(self, field: str, keys: tuple[str, ...], what: str) -> int:
        value, key = self._whole_number(keys, what)
        self._take(field, value, f"{self._file}: {key}")
        return value

    def _has(self, keys: tuple[str, ...]) -> bool:
        return names.first(self.get, keys) is not None

    def _experts(self) -> None:
        """Experts, shared ones, and their widths."""
        if not self._has(names.NUM_EXPERTS):
            said = f" of model_type {self._type!r}" if self._type else ""
            msg = f"a model{said} without experts, as none of {', '.join(names.NUM_EXPERTS)} is there"
            raise self._error(msg)
        hidden = self._read("hidden", names.HIDDEN, "the hidden size")
        rows = next((name for name in names.ROWS if self.get(name) is not None), "")
        if rows and self._whole_number((rows,), "")[0] != hidden:
            message = f"{rows} is {self.get(rows)}: experts take rows of another length than hidden"
            raise self._error(f"{message} {hidden}, and a shape has one length for both")
        experts = self._read("num_experts", names.NUM_EXPERTS, "the number of experts")
        if self.get(names.ZERO_EXPERTS[0]):
            zero = self._read("num_zero_experts", names.ZERO_EXPERTS, "")
            self._take("num_experts", experts + zero, f"{self._sources['num_experts']}, and these")
        self._read("topk", names.TOPK, "the number of experts per token")
        width = self._read("moe_intermediate", names.EXPERT_WIDTH, "the width of an expert")
        self._take("gated", bool(self._family.get("gated", True)), CODE)
        stated = [key for key in (*names.SHARED, *names.SHARED_WIDTH) if self._has((key,))]
        for key in stated:
            self._whole_number((key,), "", least=0)
        count, each = names.shared_experts(self.get, self._type, width)
        if count:
            said = f"{self._file}: {', '.join(stated)}" if stated else CODE
            self._take("num_shared_experts", count, said)
            self._take("shared_intermediate", each, said)

    def _layers(self) -> None:
        """Decoder layers, and those without experts."""
        kinds = self._text.get("layers_block_type")
        if isinstance(kinds, list) and not self._has(names.LAYERS):
            count, name = len(kinds), "layers_block_type"
        else:
            count, name = self._whole_number(names.LAYERS, "the number of layers")
        if count > config_layers.MOST:
            raise self._error(f"{name} is {count}; at most {config_layers.MOST} are read")
        self._take("num_layers", count, f"{self._file}: {name}")
        try:
            dense, said = config_layers.dense_layers(self._text, count)
        except ValueError as error:
            raise self._error(str(error)) from None
        if dense:
            self._take("dense_layers", dense, f"{self._file}: {said}")
            if self._has(names.DENSE_WIDTH):
                self._read("dense_intermediate", names.DENSE_WIDTH, "")
        mtp = names.first(self.get, names.MTP)
        if type(mtp) is int and 0 < mtp <= config_layers.MOST:
            self._read("mtp_layers", names.MTP, "")

    def _attention(self) -> None:
        """Heads, if they are the same in all layers."""
        if said := config_layers.other_attention(self._text):
            self._notes.append(
                f"Attention is left out: by {said} not all layers have the same, and a shape has one for all."
            )
            return
        if not self._has(names.HEADS):
            self._notes.append("Attention is left out: no number of heads is stated.")
            return
        heads = self._read("num_heads", names.HEADS, "")
        self._read("num_kv_heads", names.KV_HEADS, "")
        if self.get("kv_lora_rank"):
            for name in names.LATENT:
                if self.get(name) is not None:
                    self._read(name, (name,), "")
        elif self.get("head_dim") is not None:
            self._read("head_dim", ("head_dim",), "")
        else:
            source = f"{self._file}: the hidden size over the heads"
            self._take("head_dim", max(1, self._values["hidden"] // heads), source)

    def _router(self) -> None:
        """Write how scores become weights, and groups."""
        score = names.score_function(self.get, self._type)
        if not score:
            score = "softmax"
            self._notes.append("How scores become weights is not stated: softmax is assumed.")
        stated = names.first(self.get, names.SCORE)
        self._take("score_function", score, f"{self._file}: {stated}" if stated else CODE)
        norm, source = names.first(self.get, names.NORM), self._file
        if not isinstance(norm, bool):
            norm, source = bool(self._family.get("norm_topk", True)), CODE
        self._take("norm_topk", norm, source)
        scaling = names.first(self.get, names.SCALING)
        if isinstance(scaling, int | float) and 0 < scaling < 1e9:
            self._take("routed_scaling_factor", float(scaling), self._file)
        if (biased := self._bias()) is not None:
            self._take("expert_bias", biased, self._file)
        elif self._family.get("expert_bias"):
            self._take("expert_bias", True, CODE)
        groups = names.first(self.get, names.GROUPS)
        if type(groups) is int and groups > 1 and self._has(names.TOPK_GROUPS):
            self._read("n_group", names.GROUPS, "")
            self._read("topk_group", names.TOPK_GROUPS, "")

    def _bias(self) -> bool | None:
        """Tell whether a bias chooses experts, where that is stated."""
        if isinstance(method := self.get("topk_method"), str):
            return method == "noaux_tc"
        found = names.first(self.get, ("use_expert_bias", "use_routing_bias"))
        return found if isinstance(found, bool) else None

    def _rest(self) -> None:
        """Number types and vocabulary."""
        precision, said = self._precision()
        self._take("default_precision", precision, said)
        vocab = names.first(self.get, names.VOCAB)
        if type(vocab) is int and vocab > 0:
            self._take("vocab", vocab, f"{self._file}: {names.VOCAB[0]}")
        tied = self._text.get("tie_word_embeddings", self._whole.get("tie_word_embeddings"))
        if isinstance(tied, bool):
            self._take("tied_embeddings", tied, f"{self._file}: tie_word_embeddings")
        if self._text.get("attention_bias") is True and "num_heads" in self._values:
            self._take("biases", ("qkv",), f"{self._file}: attention_bias")

        if "num_heads" in self._values:
            if self.get("use_qk_norm") is True and self._type.startswith("glm4"):
                self._take("qk_norm", "head", f"{self._file}: use_qk_norm")
            elif "qk_norm" in self._family and self.get("use_qk_norm") is not False:
                self._take("qk_norm", self._family["qk_norm"], CODE)
        if self._values.get("num_shared_experts") and self._family.get("shared_gate"):
            self._take("shared_gate", True, CODE)

    def _precision(self) -> tuple[str, str]:
        """Type of GEMMs and rows: fp8 where weights are quantised so, else that of the weights."""
        for config in (self._text, self._whole):
            quantized = config.get("quantization_config")
            if isinstance(quantized, dict):
                method = str(quantized.get("quant_method", ""))[:40]
                if "fp8" in method:
                    return "fp8", f"{self._file}: quantization_config quant_method {method}"
                self._notes.append(f"Weights are quantised ({method}); GEMMs are taken for bf16.")
                return "bf16", f"{self._file}: quantization_config quant_method {method}"
        for config in (self._text, self._whole):
            for key in ("dtype", "torch_dtype"):
                kind = config.get(key)
                if kind in ("float32", "bfloat16", "float16"):
                    return "fp32" if kind == "float32" else "bf16", f"{self._file}: {key} {kind}"
        self._notes.append("The number type is not stated: bf16 is assumed.")
        return "bf16", "assumed: the configuration has no dtype"
