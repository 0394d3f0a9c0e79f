"""Catalogue of model shapes: one TOML file per model, every value with its source."""

from importlib import resources
from pathlib import Path

from tracegen.models import config
from tracegen.models.catalogue import ModelCatalogue
from tracegen.models.schema import ModelShape
from tracegen.shared.errors import unknown

__all__ = ["ModelShape", "aliases", "complete", "load", "names", "of_checkpoint", "parse"]

_CATALOGUE = ModelCatalogue(resources.files(__name__), ModelShape, ("title", "model_id", "notes"))


def names() -> tuple[str, ...]:
    """Names of the shipped models, sorted, without aliases."""
    return _CATALOGUE.names()


def aliases() -> dict[str, str]:
    """Other names that :func:`load` understands, each with the model it stands for."""
    return dict(_CATALOGUE.aliases)


def load(name: str | Path) -> ModelShape:
    """Shape of a model from the catalogue or from a file.

    Parameters
    ----------
    name
        A name or alias of the catalogue; or the path of a TOML file of the same form, of a
        checkpoint's ``config.json``, or of the folder that has one.

    Returns
    -------
    The shape, validated.

    Raises
    ------
    UserError
        If the name is unknown, the file cannot be read, or a value is unknown,
        of the wrong type or inconsistent.

    Examples
    --------
    >>> shape = load("deepseek-v3")
    >>> shape.num_experts, shape.topk, shape.num_moe_layers
    (256, 8, 58)
    """
    text = str(name)
    shape = None if isinstance(name, Path) else _CATALOGUE.find(text)
    if shape is not None:
        return shape
    if text.endswith(".toml"):
        return _CATALOGUE.read(text)
    if isinstance(name, Path) or config.is_config(text):
        return config.read(text)
    raise unknown("model", text, [*names(), *aliases()])


def of_checkpoint(model_id: str) -> tuple[ModelShape, ...]:
    """Shapes of the catalogue that a trace or a result may mean by a model's name.

    Parameters
    ----------
    model_id
        Hugging Face repository of the checkpoint, or a name or alias of the catalogue.

    Returns
    -------
    No shape, one, or several where papers use a checkpoint with other sizes; none for an empty
    name.

    Examples
    --------
    >>> [shape.name for shape in of_checkpoint("openai/gpt-oss-20b")]
    ['gpt-oss-20b']
    >>> of_checkpoint("")
    ()
    """
    if not model_id:
        return ()  # papers' shapes are of no checkpoint, and no shape is meant by no name
    if (known := _CATALOGUE.find(model_id)) is not None:
        return (known,)
    shapes = map(load, names())
    return tuple(shape for shape in shapes if shape.model_id == model_id)


def parse(text: str, where: str) -> ModelShape:
    """Read the text of a model file.

    Parameters
    ----------
    text
        TOML: ``name`` and optional ``title``, ``model_id``, ``notes``, ``aliases``; a table
        ``[shape]`` whose keys are fields of :class:`ModelShape`, each
        ``{ value = ..., source = "..." }``.
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


def complete(shape: ModelShape) -> ModelShape:
    """Add what a trace file does not carry of a shape, where the catalogue has the same shape.

    Parameters
    ----------
    shape
        Of a trace, or any other.

    Returns
    -------
    The catalogue's shape if it has one of this name and of the same :meth:`ModelShape.sizes`;
    otherwise the shape as given.

    Examples
    --------
    >>> complete(ModelShape(**load("olmoe-1b-7b").sizes())).vocab
    50304
    """
    known = _CATALOGUE.find(shape.name)
    return known if known is not None and known.sizes() == shape.sizes() else shape
