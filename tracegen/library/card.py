"""Words about a published folder: data set card, Croissant metadata, licences."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Any

from tracegen.file import schema
from tracegen.library.address import join
from tracegen.library.catalogue import Entry
from tracegen.library.view import View
from tracegen.shared.display.escape import json_text, line, markdown

CROISSANT = "croissant.json"
"""File name of the Croissant metadata."""
HUB_LICENSES = frozenset(
    {
        "afl-3.0",
        "apache-2.0",
        "artistic-2.0",
        "bsd-2-clause",
        "bsd-3-clause",
        "bsd-3-clause-clear",
        "bsl-1.0",
        "cc-by-2.0",
        "cc-by-2.5",
        "cc-by-3.0",
        "cc-by-4.0",
        "cc-by-nc-2.0",
        "cc-by-nc-3.0",
        "cc-by-nc-4.0",
        "cc-by-nc-nd-3.0",
        "cc-by-nc-nd-4.0",
        "cc-by-nc-sa-2.0",
        "cc-by-nc-sa-3.0",
        "cc-by-nc-sa-4.0",
        "cc-by-nd-4.0",
        "cc-by-sa-3.0",
        "cc-by-sa-4.0",
        "cc0-1.0",
        "isc",
        "mit",
        "mpl-2.0",
        "ms-pl",
        "unlicense",
    }
)
"""SPDX identifiers, in lower case, that the Hugging Face Hub knows by that name
(https://huggingface.co/docs/hub/repositories-licenses)."""
SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"),
    (10**9, "100M<n<1B"),
    (10**10, "1B<n<10B"),
    (10**11, "10B<n<100B"),
    (10**12, "100B<n<1T"),
)
"""Numbers of rows below which the Hub has a size category, and its name."""

TABLES = """
`tables/` holds the same for programs that read Parquet, with a row for each token of each layer:
`datasets.load_dataset("owner/name", "NAME")`, and the viewer above."""
"""What the card says of the tables."""

_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,99}")
"""What identifiers of SPDX are made of."""

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


@dataclass(frozen=True)
class FolderFacts:
    """Facts about a published folder that its traces do not say themselves."""

    title: str
    creator: str
    """Name of the publisher."""
    description: str = ""
    citation: str = ""
    """Publication to cite, for traces whose catalogue does not say."""
    dataset: str = ""
    """Texts that were routed, for traces that do not say."""
    source: str = ""
    """Origin of all traces; if empty, what each says of itself."""
    base_url: str = ""
    """Address at which the folder will be found; if empty, the files are named relative to it."""


Views = Mapping[str, View]
"""Tables by name of the trace; empty where there are none."""


def texts(entries: Sequence[Entry], views: Views, about: FolderFacts, date: datetime.date) -> dict[str, str]:
    """Files that go beside the traces.

    Parameters
    ----------
    entries
        Traces of the folder, as its catalogue lists them.
    views
        Tables (Parquet) of the traces.
    about
        Title, creator and description of the data set.
    date
        Date of publication.

    Returns
    -------
    Text by file name.
    """
    made = {
        "README.md": readme(entries, views, about),
        CROISSANT: json_text(croissant(entries, views, about, date)),
    }
    if not set(_hub_licenses(entries)) <= HUB_LICENSES:
        lines = [f"- `{entry.file}`: {markdown(entry.license)}" for entry in entries]
        made["LICENSE.md"] = "\n".join(["# Licences of the files", "", *lines, ""])
    return made


def readme(entries: Sequence[Entry], views: Views, about: FolderFacts) -> str:
    """The data set card: metadata as the Hugging Face Hub reads it, then prose.

    Parameters
    ----------
    entries, views, about
        As for :func:`texts`.
    """
    template = Template((resources.files("tracegen.library") / "card.md").read_text("utf-8"))
    licenses = _hub_licenses(entries)
    cited = [markdown(text) for text in _citations(entries, about)]
    details = "" if set(licenses) <= HUB_LICENSES else _license_details(entries)
    return template.substitute(
        # A JSON string is a YAML string.
        pretty_name=json.dumps(line(about.title)),
        title=markdown(about.title),
        description=markdown(about.description) or "Routing traces of Mixture-of-Experts models.",
        licenses="\n".join(f"- {license_}" for license_ in licenses),
        license_details=details,
        viewer=_viewer(entries, views),
        tables=TABLES if views else "",
        size_category=size_category(sum(entry.num_tokens for entry in entries)),
        format_version=schema.VERSION,
        rows="\n".join(_row(entry) for entry in entries),
        first=entries[0].name if entries else "",
        place=json.dumps(about.base_url or "."),
        origins="\n".join(f"- `{e.name}`: {markdown(e.source)} ({e.kind})" for e in entries),
        citations="\n\n".join(cited) or "Nothing was asked for.",
        creator=markdown(about.creator),
    )


def croissant(entries: Sequence[Entry], views: Views, about: FolderFacts, date: datetime.date) -> dict[str, Any]:
    """Croissant 1.0 metadata: the data set, its files with their hashes, and its records.

    Parameters
    ----------
    entries, views, about, date
        As for :func:`texts`.

    Returns
    -------
    JSON-LD, with a record set for each table: Croissant has no way to point into HDF5.
    """
    files = [_file(one, about, _summary(one), "application/x-hdf5") for one in entries]
    for entry in entries:
        if entry.name in views:
            what = f"{entry.title}, as a table"
            files.append(_file(views[entry.name], about, what, "application/x-parquet"))
    licenses = sorted({entry.license for entry in entries})
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": about.title,
        "description": about.description or f"MoE routing traces: {about.title}",
        "license": [_license_of(name) for name in licenses],
        "url": about.base_url or "./",
        "creator": {"@type": "sc:Organization", "name": about.creator},
        "datePublished": date.isoformat(),
        "version": "1.0.0",
        "citeAs": "; ".join(_citations(entries, about)) or about.title,
        "keywords": ["mixture-of-experts", "routing traces", *sorted({e.model for e in entries})],
        "distribution": files,
        "recordSet": [_record_set(one, views[one.name]) for one in entries if one.name in views],
    }


def _license_of(name: str) -> str:
    """Address of a licence, or what is said of it if it has none."""
    return f"https://spdx.org/licenses/{name}.html" if _SPDX.fullmatch(name) else name


def _summary(entry: Entry) -> str:
    return (
        f"{entry.title}: {entry.num_layers} layers x {entry.num_tokens} tokens x "
        f"top-{entry.topk} of {entry.num_experts}"
    )


def _file(one: Entry | View, about: FolderFacts, description: str, encoding: str) -> dict[str, Any]:
    """A file of the data set."""
    return {
        "@type": "cr:FileObject",
        "@id": one.file,
        "name": one.file,
        "description": description,
        "contentUrl": join(about.base_url, one.file) if about.base_url else one.file,
        "contentSize": f"{one.file_bytes} B",
        "encodingFormat": encoding,
        "sha256": one.sha256,
    }


def _record_set(entry: Entry, view: View) -> dict[str, Any]:
    """The rows of a table: a token of a layer each."""
    return {
        "@type": "cr:RecordSet",
        "@id": entry.name,
        "name": entry.name,
        "description": f"{entry.title}: a record for each token of each layer",
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{entry.name}/{column.name}",
                "name": column.name,
                "description": column.meaning,
                "dataType": column.kind,
                **({"repeated": True} if column.is_list else {}),
                "source": {
                    "fileObject": {"@id": view.file},
                    "extract": {"column": column.name},
                },
            }
            for column in view.columns
        ],
    }


def _viewer(entries: Sequence[Entry], views: Views) -> str:
    """The tables that the Hub's viewer shows, each as a configuration of its own."""
    if not views:
        return "viewer: false"
    lines = ["configs:"]
    for entry in entries:
        lines += [
            f"- config_name: {json.dumps(entry.name)}",
            "  data_files:",
            "  - split: train",  # the one name that everybody expects
            f"    path: {json.dumps(views[entry.name].file)}",
        ]
    return "\n".join(lines)


def size_category(rows: int) -> str:
    """The Hub's name for a number of rows.

    Parameters
    ----------
    rows
        Token rows of all files.

    Examples
    --------
    >>> size_category(215_438)
    '100K<n<1M'
    """
    return next((name for limit, name in SIZES if rows < limit), "n>1T")


def _hub_licenses(entries: Sequence[Entry]) -> list[str]:
    """Licences as the Hub writes them."""
    names = {entry.license.lower() for entry in entries}
    return sorted({name if name in HUB_LICENSES else "other" for name in names})


def _license_details(entries: Sequence[Entry]) -> str:
    """Name and link that the Hub wants for licences that it does not list."""
    others = {e.license.lower() for e in entries if e.license.lower() not in HUB_LICENSES}
    name = json.dumps(", ".join(sorted(others)))
    return f"license_name: {name}\nlicense_link: LICENSE.md\n"


def _row(entry: Entry) -> str:
    """Row of the card's table."""
    cells = (
        entry.model,
        _few(entry.dataset) or "-",
        entry.num_layers,
        entry.num_tokens,
        f"{entry.topk} of {entry.num_experts}",
        f"{entry.load_max_over_mean:.2f}",
        f"{entry.load_gini:.2f}",
        f"{entry.file_bytes / 1e6:.1f}",
        entry.license,
    )
    link = f"[{markdown(entry.name)}]({entry.file})"  # of letters that mean nothing in addresses
    return "| " + " | ".join([link, *(markdown(str(cell)) for cell in cells)]) + " |"


def _citations(entries: Sequence[Entry], about: FolderFacts) -> list[str]:
    """Publications to cite, each once."""
    cited = [about.citation, *(entry.citation for entry in entries)]
    return [text for text in dict.fromkeys(map(line, cited)) if text]


def _few(listed: str) -> str:
    """The first three of a list in words."""
    parts = listed.split(", ")
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return ", ".join(parts[:3]) + more
