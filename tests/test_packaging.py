"""What an installation contains: every package and every data file of the tree."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FOLDERS = ("hwmodel", "replay", "tracegen", "traces")
LEFT_BEHIND = ("__pycache__",)


def settings() -> dict:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["tool"]["setuptools"]


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])


def test_tables_have_people_who_look_at_their_changes() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert [path for path in paths if not (ROOT / path.lstrip("/")).exists()] == []
    folders = {"/replay/studies/validate/measurements/", "/hwmodel/presets/", "/traces/"}
    assert folders <= set(paths)


def test_every_package_is_listed() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(settings()["packages"]) == found


def test_every_data_file_is_installed() -> None:
    patterns = settings()["package-data"]
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_dir() or path.suffix == ".py" or set(path.parts) & set(LEFT_BEHIND):
                continue
            package = ".".join(path.parent.relative_to(ROOT).parts)
            assert any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns.get(package, [])), (
                f"{path.relative_to(ROOT)} is in no package-data pattern"
            )
