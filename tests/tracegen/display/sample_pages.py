"""Pages for the tests: every kind of chart and table, with texts as strangers write them."""

from __future__ import annotations

import math

from tracegen.shared.display.content import (
    Axis,
    BarPart,
    Bars,
    Cell,
    Chart,
    Column,
    Heat,
    Line,
    Page,
    Plot,
    Section,
    Span,
    Table,
    Waterfall,
)

SCHEMES = (
    "deepep-ll",
    "nccl-alltoall",
    "moe-hub*",
    "dysharp*",
    "comet",
    "flashdmoe",
    "tutel",
    "megatron-alltoall",
    "fastermoe",
    "hybrid-ep",
    "pangu-overlap",
    "ccfuser",
)
PHASES = ("route", "dispatch", "first GEMM", "activation", "second GEMM", "combine", "wait")
HOSTILE = (
    '<script>alert("x")</script>',
    '"><img src=x onerror=alert(1)>',
    "</style></title></svg></script><!--",
    "javascript:alert(1)",
    "' onload='alert(1)",
    "\x00\x1b[2J\u202eright\ud800 & <b>",
    "url(http://evil.example/x.png)",
)


def bars(schemes: tuple[str, ...] = SCHEMES) -> Bars:
    parts = [
        BarPart(
            name,
            [round(4 + 9 * k * abs(math.sin(1 + place * (k + 2))), 3) for place in range(len(schemes))],
            is_hatched=name in ("dispatch", "combine", "wait"),
        )
        for k, name in enumerate(PHASES)
    ]
    bounds = [sum(part.values[place] for part in parts) * 0.62 for place in range(len(schemes))]
    return Bars(
        "phases",
        "Time by phase",
        schemes,
        parts,
        "us",
        bounds,
        "bound",
        "Hatched is communication that no computation hides.",
    )


def differences() -> Bars:
    """Bars to both sides of 0."""
    return Bars(
        "differences",
        "What the other scheme saves",
        ["dispatch", "combine", "experts"],
        [BarPart("longer", [0.0, 3.1, 1.2]), BarPart("shorter", [-12.4, -4.4, 0.0])],
        "us",
    )


def curves() -> Plot:
    x = [32.0 * 2**k for k in range(9)]
    lines = []
    for k, name in enumerate(SCHEMES[:4]):
        y = [20 + (0.03 + 0.012 * k) * one + 9 * k for one in x]
        lines.append(Line(name, x, y, [0.93 * v for v in y], [1.09 * v for v in y]))
    return Plot(
        "sweep",
        "Time over tokens",
        Axis("tokens per GPU", log=True),
        Axis("time of the layer, us"),
        lines,
        "Bands: 90 % of the draws.",
    )


def usage() -> Plot:
    x = [k * 0.08 for k in range(1500)]
    lines = [
        Line(name, x, [abs(math.sin(one + j)) * (0.9 - 0.2 * j) for one in x], form=form)
        for j, (name, form) in enumerate((("NVLink out", "steps"), ("HBM", "line"), ("SMs", "steps")))
    ]
    return Plot("usage", "Utilisation over time", Axis("time, us"), Axis("share in use"), lines)


def roofline() -> Plot:
    guide = Line("HBM, 3.35 TB/s", [1, 295], [3.35, 989], form="guide")
    flat = Line("tensor cores, 989 TFLOP/s", [295, 4000], [989, 989], form="guide")
    points = Line(
        "measured",
        [8, 16, 60, 300, 900, 1000],
        [20, 39, 170, 600, 870, 850],
        [18, 36, 160, 560, 850, 820],
        [22, 41, 182, 640, 889, 880],
        "points",
        ["router", "deepep-ll", "first GEMM", "second GEMM", "moe-hub*", "dysharp*"],
    )
    return Plot(
        "roofline", "Roofline", Axis("FLOP per byte", log=True), Axis("TFLOP/s", log=True), [guide, flat, points]
    )


def heats() -> list[Heat]:
    gpus = [str(k) for k in range(16)]
    values = [[round(10 + 8 * math.sin(r * 3 + c), 1) for c in range(16)] for r in range(5)]
    values[1][3] = None  # type: ignore[call-overload]
    return [
        Heat("traffic", "Bytes sent, by scheme and GPU", SCHEMES[:5], gpus, values, "MB"),
        Heat(
            "drift",
            "Error of the prediction",
            ["64 tokens", "128 tokens", "256 tokens"],
            ["DeepEP dispatch", "DeepEP combine", "NCCL"],
            [[-4.0, 2.0, 11.0], [0.4, -0.2, 6.5], [3.0, -9.0, None]],
            "%",
            "+.1f",
            0.0,
        ),
    ]


def path() -> Waterfall:
    spans, at = [], 0.0
    for k, kind in enumerate(("route", "dispatch", "wait", "first GEMM", "second GEMM", "combine")):
        length = 3.0 + 5.5 * ((k * 7) % 5)
        spans.append(Span(f"{kind} on GPU {k % 3}", at, at + length, kind))
        at += length
    return Waterfall("path", "Critical path", spans, "us", "Each step begins where one ended.")


def change() -> Waterfall:
    """Totals and what lies between, to the left and to the right."""
    spans = [
        Span("deepep-ll", 0.0, 120.3, "time"),
        Span("dispatch", 120.3, 95.0, "shorter"),
        Span("experts", 95.0, 99.5, "longer"),
        Span("combine", 99.5, 80.2, "shorter"),
        Span("moe-hub*", 0.0, 80.2, "time"),
    ]
    return Waterfall("change", "From deepep-ll to moe-hub*", spans, "us")


def table(count: int = len(SCHEMES), name: str = "times") -> Table:
    columns = [
        Column("scheme"),
        Column("layer", "us", ",.1f", says="time from the first row read to the last row written"),
        Column("speed-up", "", ".2f", says="the baseline's time over this one"),
        Column("bound/time", "", ".1%", rank=2),
        Column("binds"),
    ]
    rows: list[list[Cell]] = []
    for k in range(count):
        known = SCHEMES[k % len(SCHEMES)] if k < len(SCHEMES) else f"{SCHEMES[k % len(SCHEMES)]} {k}"
        time = 80 + 37.77 * ((k * 5) % 11) + k / 7
        rows.append([known, time, 120.3 / time, None if k == 3 else 0.4 + (k * 3 % 7) / 12, "hbm 0"])
    return Table(
        name, "Time of layer 12; speed-up over deepep-ll", columns, rows, ["* proposed: no such hardware is sold."]
    )


def charts() -> list[Chart]:
    return [bars(), differences(), curves(), usage(), roofline(), *heats(), path(), change()]


def page() -> Page:
    """Every kind of thing that a page has."""
    return Page(
        "gpt-oss-20b decoding, 703 generations: 12 schemes",
        "gpt-oss-20b, 32 experts, top-4, hidden 2880\ndgx-h100, 8 ranks, decode step 0, 512 tokens",
        [
            Section("Times", ["Lower is better.", table(), bars()]),
            Section("Where the time goes", [path(), change(), differences(), usage()]),
            Section("Traffic", heats()),
            Section("Sweep", [curves(), roofline()]),
            Section("Provenance", ["moereplay 0.1.0"], is_detail=True),
        ],
        "moereplay compare gpt-oss-20b-decode --layer 12 --html report.html",
    )


def hostile_page() -> Page:
    """Every text of a page as an attacker would have it."""
    one, *others = HOSTILE
    several = [one, *others]
    count = len(several)
    ones = [float(k + 1) for k in range(count)]
    return Page(
        one,
        "\n".join(several),
        [
            Section(
                text,
                [
                    text,
                    Table(
                        f"t{k}{text}",
                        text,
                        [Column(text, text, says=text), Column("v", "", ".1f")],
                        [[other, 1.0] for other in several * 2],
                        [text],
                    ),
                    Bars(
                        f"b{k}{text}",
                        text,
                        several,
                        [BarPart(other, ones) for other in several],
                        text,
                        ones,
                        text,
                        text,
                    ),
                    Plot(
                        f"p{k}{text}",
                        text,
                        Axis(text),
                        Axis(text),
                        [
                            Line(text, ones, ones, ones, ones, "points", several),
                            Line(text, ones, ones),
                            Line(text, ones, ones, form="guide"),
                        ],
                        text,
                    ),
                    Heat(f"h{k}{text}", text, several, several, [ones] * count, text, says=text),
                    Waterfall(f"w{k}{text}", text, [Span(text, 0, 1, text)], text, text),
                ],
            )
            for k, text in enumerate(several)
        ],
        one,
    )
