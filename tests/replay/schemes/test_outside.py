"""Schemes from files and plug-ins: found, replayed in other processes, refused in a line or two."""

from __future__ import annotations

import hashlib
import pickle
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import replay
import replay.schemes.ep.plain
from replay.cli.schemes import explain, to_json
from replay.errors import UserError
from replay.schemes import SCHEMES, find, outside
from replay.schemes.modules import modules_of
from replay.schemes.outside import SchemeFailure
from replay.schemes.registry import EXAMPLES

PLAIN = Path(replay.schemes.ep.plain.__file__).read_text(encoding="utf-8")
MINE = PLAIN.replace('name = "plain"', 'name = "mine"')


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    return file


def refusal(reference: str) -> str:
    with pytest.raises(UserError) as caught:
        find(reference)
    message = str(caught.value)
    assert message.count("\n") < 2 and "Traceback" not in message
    return message


def test_names_are_found() -> None:
    assert find("deepep") is SCHEMES["deepep"]
    assert find("plain") is EXAMPLES["plain"]
    assert "plain" not in SCHEMES


def test_a_subclass_in_a_file(mine: Path) -> None:
    scheme = find(f"{mine}:Plain")
    assert scheme.name == "mine" and scheme.options.num_sms == 0
    assert scheme.describe()["code"] == hashlib.sha256(MINE.encode()).hexdigest()
    assert scheme.with_options({"num_sms": "20"}).describe()["options"] == {"num_sms": 20}
    assert find(f"{mine}:Plain").options is scheme.options, "the same file is executed once"


def test_an_instance_in_a_file(mine: Path) -> None:
    mine.write_text(f"{MINE}\n\nWIDE = Plain(PlainOptions(num_sms=64))\n", encoding="utf-8")
    assert find(f"{mine}:WIDE").options.num_sms == 64


def test_an_edit_changes_the_identity(mine: Path, synthetic) -> None:
    ids = []
    for text in (MINE, MINE + "# another line\n"):
        mine.write_text(text, encoding="utf-8")
        ids.append(replay.run(synthetic(), scheme=f"{mine}:Plain", layer=0).run_id)
    assert ids[0] != ids[1]


def test_schemes_of_ones_own_have_no_code() -> None:
    assert all("code" not in scheme.describe() for scheme in SCHEMES.values())


def test_it_crosses_to_another_process(mine: Path) -> None:
    scheme = find(f"{mine}:Plain").with_options({"num_sms": 20})
    again = pickle.loads(pickle.dumps(scheme))
    assert again.describe() == scheme.describe()
    stored = pickle.dumps(scheme)
    mine.write_text(MINE + "# edited meanwhile\n", encoding="utf-8")
    with pytest.raises(UserError, match="changed while it was in use"):
        pickle.loads(stored)
    for own in SCHEMES.values():
        assert pickle.loads(pickle.dumps(own)).describe() == own.describe()


def test_compare_gives_the_same_in_processes(mine: Path, synthetic) -> None:
    schemes = [f"{mine}:Plain", "ideal"]
    settings = {"layer": 0, "options": {"mine": {"num_sms": 20}}}
    one, two = (replay.compare(synthetic(), schemes, jobs=jobs, **settings) for jobs in (1, 2))
    assert one == two
    assert one["mine"].scheme.options["num_sms"] == 20


def test_what_a_process_raises_is_raised_here(mine: Path, synthetic) -> None:
    mine.write_text(MINE.replace("def build(", "def build(self, *a): 1 / 0\n    def _build("))
    said = set()
    for jobs in (1, 2):
        with pytest.raises(SchemeFailure) as caught:
            replay.compare(synthetic(), [f"{mine}:Plain", "ideal"], jobs=jobs, layer=0)
        said.add((str(caught.value), caught.value.sentence))
    ((message, sentence),) = said
    assert message == f"scheme 'mine': {sentence}" and "ZeroDivisionError" in sentence


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("x = (\n", "Plain", "broken.py:1: SyntaxError: '(' was never closed"),
        ("import numpy\n\nnumpy.nothing\n", "Plain", "broken.py:3: AttributeError"),
        ("import no_such_module\n", "Plain", "broken.py:1: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "Plain", "ends the program"),
        (MINE, "Plian", "unknown scheme in {file} 'Plian' (did you mean 'Plain'?)"),
        (MINE, "", "name the scheme in the file, such as {file}:Plain"),
        (
            MINE,
            "PlainOptions",
            "expected a Scheme or a subclass of Scheme, not the class PlainOptions",
        ),
        (MINE + "N = 3\n", "N", "expected a Scheme or a subclass of Scheme, not 'int'"),
        (PLAIN, "Plain", "calls itself 'plain', which is a scheme of moereplay"),
        (
            MINE.replace('"mine"', '""', 1),
            "Plain",
            "calls itself '': expected a name without spaces",
        ),
        (
            MINE.replace('"mine"', '"my*"', 1),
            "Plain",
            "calls itself 'my*': expected a name without",
        ),
        (
            MINE + "class N(Plain):\n    def __init__(self): raise ValueError('no')\n",
            "N",
            "N cannot be made: no",
        ),
        (MINE.replace("def build", "def make"), "Plain", "Plain lacks build"),
        (MINE.replace('    source = "definition"\n', ""), "Plain", "Plain lacks source"),
        (
            MINE.replace('wait for it",\n', 'wait for it",\n        least=1,\n', 1),
            "Plain",
            "num_sms=0 .*at least 1",
        ),
    ],
)
def test_a_file_that_cannot_be_used(text: str, name: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text, encoding="utf-8")
    message = refusal(f"{file}:{name}" if name else str(file))
    for part in said.replace("{file}", str(file)).split(" .*"):
        assert part in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in refusal(f"{tmp_path / 'none.py'}:Plain")


# ---- plug-ins ------------------------------------------------------------------------------------


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Installs plug-ins: a name, and the module's text and attribute behind it."""

    def install(**texts: str) -> None:
        points = []
        for name, text in texts.items():
            module = f"plugin_{tmp_path.name.replace('-', '_')}_{name}"
            (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
            points.append(EntryPoint(name, f"{module}:Plain", outside.GROUP))
        monkeypatch.setattr(outside.importlib.metadata, "entry_points", lambda *, group: points)

    monkeypatch.syspath_prepend(tmp_path)
    return install


def test_a_plugin_is_found_by_the_name_of_its_entry_point(plugins) -> None:
    plugins(mine=MINE)
    scheme = find("mine")
    assert scheme.name == "mine"
    assert scheme.describe()["code"] == hashlib.sha256(MINE.encode()).hexdigest()
    assert "mine" in refusal("nine") and "(did you mean 'mine'?)" in refusal("nine")


def test_a_plugin_is_described_by_its_module(plugins, capsys: pytest.CaptureFixture[str]) -> None:
    """Its file is not of the project, whose paths others have."""
    plugins(mine=MINE)
    module = type(find("mine")).__module__
    assert modules_of(find("mine")) == [module]
    assert to_json(find("mine"))["modelled_in"] == [module]
    explain(find("mine"), as_json=False)
    assert module in capsys.readouterr().out


def test_a_broken_plugin_says_so_in_a_line_and_leaves_the_others(plugins) -> None:
    plugins(broken="import no_such_module\n", other=MINE, mine=MINE)
    assert "plug-in 'broken'" in refusal("broken") and "no_such_module" in refusal("broken")
    assert "its scheme is called 'mine'" in refusal("other")
    assert find("mine").name == "mine"


def test_a_mistake_in_build_is_said_in_a_line(mine: Path, synthetic) -> None:
    broken = MINE.replace("machine.kernel(cast", "machine.kernl(cast", 1)
    assert broken != MINE
    mine.write_text(broken, encoding="utf-8")
    line = broken[: broken.index("kernl")].count("\n") + 1
    with pytest.raises(UserError) as caught:
        replay.run(synthetic(), scheme=f"{mine}:Plain", layer=0)
    assert f"scheme 'mine': build fails: {mine}:{line}: AttributeError" in str(caught.value)


def test_what_former_versions_asked_for_is_refused_with_what_is_asked_now(mine: Path, synthetic) -> None:
    old = MINE.replace("on=pool[src]", "on=machine.buffers.outboxes(pool[src])")
    mine.write_text(old, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        replay.run(synthetic(), scheme=f"{mine}:Plain", layer=0)
    assert "\n" not in str(caught.value)
    assert "store takes the SMs that issue, on=pool[src]" in str(caught.value)
    old = MINE.replace("import numpy as np", "from replay.schemes.ep.software import Listed", 1)
    mine.write_text(old, encoding="utf-8")
    assert "kernels are listed as they are launched" in refusal(f"{mine}:Plain")
