"""Schemes with one planted defect each: the contract says in a sentence what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import replay.schemes.ep.plain
from replay.schemes import Scheme, find
from replay.schemes.contract import examine
from replay.schemes.contract.examine import case_of, examine_case

PLAIN = Path(replay.schemes.ep.plain.__file__).read_text(encoding="utf-8")


def variant(folder: Path, *changes: tuple[str, str]) -> Scheme:
    """`Plain` from a file of its own, with text replaced."""
    text = PLAIN
    for old, new in (('name = "plain"', 'name = "broken"'), *changes):
        assert old in text, old
        text = text.replace(old, new, 1)
    file = folder / "broken.py"
    file.write_text(text, encoding="utf-8")
    return find(f"{file}:Plain")


FORGOTTEN = """def but(work):
    ids = work.expert_ids.copy()
    ids[0, 0] = -1
    rank = work.source_rank.astype(np.int32)
    return type(work)(ids, rank, work.placement, work.shape, work.precision)


class Plain(Scheme):"""

EXCHANGED = """def exchanged(src, dst):
    \"\"\"Two rows of different sources to different GPUs change their destinations.\"\"\"
    other = np.flatnonzero((src != src[0]) & (dst != dst[0]) & (src != dst[0]) & (dst != src[0]))[0]
    dst = dst.copy()
    dst[[0, other]] = dst[[other, 0]]
    return src, dst


class Plain(Scheme):"""

BUILT_BEFORE = """BUILT = []


def longer(row_bytes):
    BUILT.append(row_bytes)
    return row_bytes + len(BUILT)


class Plain(Scheme):"""

SIXTEEN = ("        0,\n", "        16,\n")
"""A number in place of the rule for SMs."""

#: Defect -> (check that finds it, layer, changes of the text, what is said).
DEFECTS: dict[str, tuple[str, str, list[tuple[str, str]], str]] = {
    "a byte too few": (
        "payload",
        "one token per rank",
        [("dst, row_bytes, stored[remote],", "dst, row_bytes - 1, stored[remote],")],
        r"dispatch: GPU \d sends .* bytes, the rows of its tokens are .*: \d bytes are missing",
    ),
    "a row is not sent": (
        "payload",
        "uniform 4 ranks",
        [("src != dst  #", "np.cumsum(src != dst) * (src != dst) > 1  #")],
        r"dispatch: GPU \d receives [\d,]+ bytes, its experts' rows are [\d,]+ bytes: a row is",
    ),
    "a barrier does not wait for acknowledgements": (
        "told",
        "one token per rank",
        [('landed, stored="each")', 'landed, stored="nothing")')],
        r"^dispatch: GPU \d uses a row 0\.00 ways after it came, before who stored it can know and tell",
    ),
    "no barrier behind the rows": (
        "told",
        "one token per rank",
        [('machine.sync.barrier(DISPATCH, landed, stored="each")', "landed")],
        r"^dispatch: GPU \d uses a row 0\.00 ways after it came",
    ),
    "no barrier behind the results": (
        "told",
        "one token per rank",
        [('machine.sync.barrier(COMBINE, landed, stored="each")', "landed")],
        r"^combine: GPU \d uses a row 0\.00 ways after it came",
    ),
    "fewer SMs than are stated": (
        "communication",
        "zipf 8 ranks",
        [SIXTEEN, ("return self.options.num_sms or None", "return self.options.num_sms + 1")],
        "states 17 SMs that only communicate; tasks that move rows hold 16 SMs",
    ),
    "rows go as metadata": (
        "payload",
        "uniform 4 ranks",
        [("row_bytes, stored[remote],", "0, stored[remote], meta_bytes=row_bytes,")],
        "sends 0 bytes, the rows of its tokens are",
    ),
    "rows come to the wrong GPUs, as many as to the right ones": (
        "ways",
        "zipf 8 ranks",
        [
            ("src, dst, row_bytes, stored", "*exchanged(src, dst), row_bytes, stored"),
            ("class Plain(Scheme):", EXCHANGED),
        ],
        r"GPU \d sends [\d,]+ bytes to GPU \d, the rows from the one to the other are",
    ),
    "a row is not multiplied": (
        "rows",
        "zipf 8 ranks",
        [("class Plain(Scheme):", FORGOTTEN), ("work, every_sm", "but(work), every_sm")],
        r"GEMM-1: expert \d+ multiplies \d+ rows, \d+ are routed to it: 1 forgotten",
    ),
    "a token is not combined": (
        "tokens",
        "zipf 8 ranks",
        [
            ("token = np.arange(work.num_tokens)", "token = np.arange(work.num_tokens - 1)"),
            ("ends[work.source_rank])", "ends[work.source_rank[token]])"),
        ],
        r'follow\("combined", \.\.\.\) was not called for 1 of the 96 .* such as token 95 of',
    ),
    "tokens and tasks do not go together": (
        "tokens",
        "zipf 8 ranks",
        [("token = np.arange(work.num_tokens)", "token = np.arange(work.num_tokens - 1)")],
        r'follow\("combined", \.\.\.\) was given 95 tokens and 96 tasks',
    ),
    "no token is followed": (
        "tokens",
        "zipf 8 ranks",
        [('machine.notes.follow("sent", work.pair_token, stored)', "pass")],
        r'follow\("sent", \.\.\.\) was not called for any of the 96 tokens',
    ),
    "experts do not wait for rows": (
        "waits",
        "tiny, two ranks",
        [("rows, dispatched)", "rows, begun)")],
        r"dispatch: expert \d of GPU \d waits for 0 bytes on the uplink of GPU \d; the rows of GPU",
    ),
    "sums do not wait for results": (
        "waits",
        "tiny, two ranks",
        [("summed, combined,", "summed, begun,")],
        r"combine: the end of GPU \d waits for 0 bytes on the uplink of GPU \d; the rows of GPU",
    ),
    "it starts before its start": (
        "starts",
        "tiny, two ranks",
        [("machine.kernel(cast,", "machine.kernel(machine.mark(machine.ranks),")],
        "begin before any rank's start",
    ),
    "more SMs than the GPU has": (
        "ends",
        "uniform 4 ranks",
        [("        0,\n", "        160,\n")],
        "build refuses the layer: option num_sms=160 of scheme 'broken' takes 160 SMs; the GPU has",
    ),
    "it ends while its SMs still store": (
        "sms",
        "several tiles",
        [("        return ends", "        return start")],
        r"in a chain of three such layers GPU \d uses 1\d\d SMs at [\d,]+ ps, and has 132",
    ),
    "it returns too little": (
        "ends",
        "uniform 4 ranks",
        [("        return ends", "        return ends[:1]")],
        r"build must return one task per rank, whole numbers of shape \(4,\)",
    ),
    "it remembers the last layer": (
        "same",
        "one token per rank",
        [
            ("class Plain(Scheme):", BUILT_BEFORE),
            ("(np.full(len(src), row_bytes))", "(np.full(len(src), longer(row_bytes)))"),
        ],
        "the same layer gives another schedule when it is built again",
    ),
    "it says that phases are apart": (
        "bounds",
        "one rank sends much",
        [("rows, dispatched)", "rows, start)"), ("work.combine_row_bytes, begun", "work.combine_row_bytes, start")],
        r"the layer takes .* us, at least .* us: the scheme says that a barrier",
    ),
    "it raises an error of its own": (
        "ends",
        "uniform 4 ranks",
        [("        token = np.arange", "        {}['rows']\n        token = np.arange")],
        r"build fails: .*broken\.py:\d+: KeyError: 'rows'",
    ),
    "an option's least value cannot run": (
        "options",
        "one token per rank",
        [
            SIXTEEN,
            ('wait for it",\n', 'wait for it",\n        least=0,\n'),
            ('"plain-store", num_sms)', '"plain-store", 16 * num_sms // self.options.num_sms)'),
        ],
        r"with num_sms=0, build fails: .*ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_and_said(defect: str, tmp_path: Path) -> None:
    check, layer, changes, sentence = DEFECTS[defect]
    found = list(examine_case(case_of(variant(tmp_path, *changes), layer)))
    of_check = [finding.sentence for finding in found if finding.check == check]
    assert any(re.search(sentence, said) for said in of_check), found


@pytest.mark.extended
def test_without_a_defect_nothing_is_found(tmp_path: Path) -> None:
    assert not list(examine(variant(tmp_path)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "broken"', 'name = "My-scheme"'), "lower-case words"),
        (('name = "broken"', 'name = "check"'), "not 'check'"),
        (('source = "definition"', 'source = ""'), "source is empty"),
        (('summary = "direct', 'summary = "' + "very " * 10 + "direct"), "expected 1 to 70"),
        (('traffic = "pair"', 'traffic = "rows"'), "known: none, pair, copy, pair-copy, switch"),
    ],
)
def test_what_it_says_about_itself(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    finding = next(examine(variant(tmp_path, change)))
    assert finding.check == "declared" and said in finding.sentence
