"""Shapes of transformer layers that tensor parallelism slices, read from TOML with sources."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from replay.errors import UserError, unknown
from tracegen import models
from tracegen.models import ModelShape
from tracegen.models.catalogue import ModelCatalogue, first_problem
from tracegen.models.config import is_config
from tracegen.shared.strict import StrictDocument

__all__ = ["LayerShape", "aliases", "load", "names", "parse"]


class LayerShape(StrictDocument):
    """Sizes of one decoder layer and of the model that it is part of; widths in elements.

    The layer is attention, then a feed-forward network or experts, each after a normalisation.
    Instances are immutable and come from :func:`load`; ``sources`` says where each value was
    found.
    """

    name: str = Field(min_length=1)
    """Name in the catalogue."""
    title: str = ""
    """Name for people."""
    notes: str = ""
    """Notes to read before comparing with published numbers."""

    hidden: int = Field(gt=0)
    """Length of a token's hidden-state vector."""
    intermediate: int = Field(gt=0)
    """Inner width of the feed-forward network; of one routed expert where there are experts."""
    gated: bool
    """Whether the first GEMM of the feed-forward network has two matrices (gate and up)."""
    num_heads: int = Field(gt=0)
    """Attention query heads."""
    num_kv_heads: int = Field(gt=0)
    """Attention key-value heads."""
    head_dim: int = Field(gt=0)
    """Width of an attention head."""
    num_layers: int = Field(gt=0)
    """Decoder layers of the model."""
    vocab: int = Field(default=0, ge=0)
    """Tokens of the vocabulary; 0 where it is not known."""

    num_experts: int = Field(default=0, ge=0)
    """Routed experts, zero experts included; 0 for a dense layer."""
    num_zero_experts: int = Field(default=0, ge=0)
    """Those among them that are identities, without weights."""
    topk: int = Field(default=0, ge=0)
    """Experts chosen per token."""
    num_shared_experts: int = Field(default=0, ge=0)
    """Experts that every token visits."""
    shared_intermediate: int = Field(default=0, ge=0)
    """Inner width of one shared expert."""

    sequence_length: int | None = Field(default=None, gt=0)
    """Tokens of one sequence in the training or evaluation that defined this shape."""
    micro_batch: int | None = Field(default=None, gt=0)
    """Sequences that go through a layer at once in the evaluation that defined this shape."""

    sources: dict[str, str] = Field(default_factory=dict, repr=False)
    """Value name to the public source it was taken from."""

    @model_validator(mode="after")
    def _check(self) -> LayerShape:
        """Refuse sizes that contradict each other."""
        if self.num_heads % self.num_kv_heads:
            msg = f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            raise ValueError(msg)
        if bool(self.num_experts) != bool(self.topk):
            msg = "num_experts and topk must be both zero or both positive"
            raise ValueError(msg)
        if self.topk > self.num_experts:
            msg = f"topk {self.topk} is more than num_experts {self.num_experts}"
            raise ValueError(msg)
        if bool(self.num_shared_experts) != bool(self.shared_intermediate):
            msg = "num_shared_experts and shared_intermediate must be both zero or both positive"
            raise ValueError(msg)
        return self


_CATALOGUE = ModelCatalogue(resources.files("replay.model.work.transformers"), LayerShape, ("title", "notes"))


def names() -> tuple[str, ...]:
    """Names of the shipped dense models, sorted, without aliases."""
    return _CATALOGUE.names()


def names_of_experts() -> tuple[str, ...]:
    """Names of the MoE models whose layers :func:`load` gives, sorted, without aliases."""
    return tuple(name for name in models.names() if not _lacks(models.load(name)))


def aliases() -> dict[str, str]:
    """Other names that :func:`load` understands, each with the model it stands for."""
    return dict(_CATALOGUE.aliases)


def load(name: str | Path) -> LayerShape:
    """Shape of a layer from this catalogue, from tracegen's of MoE models, or from a file.

    Parameters
    ----------
    name
        A name or alias of one of the catalogues, the path of a TOML file of this form, or that of
        a ``config.json`` of a model with experts.

    Returns
    -------
    The shape, validated; of an MoE model, that of a layer with experts.

    Raises
    ------
    UserError
        If the name is unknown, the file cannot be read, a value is unknown, of the wrong type or
        inconsistent, or the model's attention is latent or not known.

    Examples
    --------
    >>> shape = load("llama-70b")
    >>> shape.name, shape.hidden, shape.intermediate, shape.num_kv_heads
    ('llama-3-70b', 8192, 28672, 8)
    >>> load("mixtral-8x7b").num_experts
    8
    """
    text = str(name)
    if text.endswith(".toml"):
        return _CATALOGUE.read(text)
    shape = _CATALOGUE.find(text)
    if shape is not None:
        return shape
    if is_config(text) or text in models.names() or text in models.aliases():
        return _of_experts(models.load(text))
    known = [*names(), *aliases(), *models.names(), *models.aliases()]
    raise unknown("model", text, known)


def parse(text: str, where: str) -> LayerShape:
    """Read the text of a file of one model.

    Parameters
    ----------
    text
        TOML: ``name`` and optional ``title``, ``notes``, ``aliases``; a table ``[shape]`` whose
        keys are fields of :class:`LayerShape`, each ``{ value = ..., source = "..." }``.
    where
        Name of the file in errors.

    Returns
    -------
    The shape, validated.

    Raises
    ------
    UserError
        If the text is not TOML, or a key or value is not what is expected.
    """
    return _CATALOGUE.parse(text, where)


def _lacks(model: ModelShape) -> str:
    """Reason why tensor parallelism cannot slice a model's attention here; empty if it can."""
    if model.q_lora_rank is not None or model.kv_lora_rank is not None:
        return (
            f"{model.name} has latent attention, whose GEMMs are not those of heads that tensor "
            "parallelism slices here; choose a model of plain attention"
        )
    if model.num_heads is None or model.num_kv_heads is None or model.head_dim is None:
        return f"the attention of {model.name} is not known: its shape lacks num_heads, num_kv_heads or head_dim"
    return ""


def _of_experts(model: ModelShape) -> LayerShape:
    """The layer with experts of a model whose attention is plain."""
    if lacking := _lacks(model):
        raise UserError(lacking)
    alike = LayerShape.model_fields.keys() & ModelShape.model_fields.keys() - {"vocab", "sources"}
    values = {name: getattr(model, name) for name in LayerShape.model_fields if name in alike}
    values |= {"intermediate": model.moe_intermediate}
    sources = dict(model.sources)
    sources["intermediate"] = sources.pop("moe_intermediate", "")
    try:
        return LayerShape(
            **{
                **values,
                "sources": {key: sources[key] for key in LayerShape.model_fields if key in values and sources.get(key)},
            }
        )
    except ValidationError as error:  # a layer that is sliced must suit that, too
        message = f"{model.name}: {first_problem(error)}"
        raise UserError(message) from None
