"""The names people import: all there, all documented, nothing by accident."""

from __future__ import annotations

import importlib
import inspect

import pytest
from loops import every

from tracegen.shared.errors import UserError

PACKAGES = {
    "tracegen": {"RoutingTrace", "load", "open", "write", "generate", "models", "UserError"},
    "hwmodel": {"System", "load", "names", "UserError"},
    "replay": {"SCHEMES", "Comparison", "Result", "Scheme", "UserError", "compare", "run", "sweep"},
    "replay.experiments.train": {
        "SCHEDULES",
        "TrainComparison",
        "TrainResult",
        "TrainSpec",
        "compare",
        "load_result",
        "run",
    },
    "replay.experiments.dense": {
        "SCHEMES",
        "TensorComparison",
        "TensorResult",
        "compare",
        "load_result",
        "run",
    },
}


@every("package", PACKAGES)
def test_all_names_exist_and_are_listed_once(package: str) -> None:
    module = importlib.import_module(package)
    names = list(module.__all__)
    assert len(set(names)) == len(names)
    assert PACKAGES[package] <= set(names)
    for name in names:
        assert getattr(module, name) is not None


@every("package", PACKAGES)
def test_everything_public_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"{package}.{name}"


@every("package", PACKAGES)
def test_a_name_that_is_not_there_is_an_attribute_error(package: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
        _ = module.nothing_of_the_kind


@every("package", ["tracegen", "hwmodel", "replay", "replay.engine"])
def test_the_product_has_one_user_error(package: str) -> None:
    assert importlib.import_module(package).UserError is UserError
    assert issubclass(UserError, ValueError)
