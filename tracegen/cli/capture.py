"""``moereplay trace capture`` and ``moereplay trace recover``."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tracegen.cli.common import Force, refuse_existing, user_errors
from tracegen.cli.outputs import file_option
from tracegen.shared import regular, screen
from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PROMPT_BYTES = 2**30
"""Of a file of prompts."""


def capture(
    model: Annotated[str, typer.Argument(help="Folder or Hub name of a transformers model.")],
    prompts: Annotated[
        Path,
        typer.Option(help="File of prompts, one per line; in .jsonl, objects with 'prompt' or chat 'messages'."),
    ],
    out: Annotated[Path, file_option("--out", help="Trace file to write.")],
    max_new_tokens: Annotated[int, typer.Option(help="Tokens generated per prompt.")] = 128,
    batch_size: Annotated[int, typer.Option(help="Prompts that run together.")] = 8,
    limit: Annotated[int | None, typer.Option(help="Most prompts to use, from the first on [all].")] = None,
    device: Annotated[
        str, typer.Option(help="Device of the model: cpu, cuda, or auto, which spreads it over what is there.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(help="Number type of the model: auto, bfloat16, float16 or float32.")] = "auto",
    weights: Annotated[bool, typer.Option(help="Record the gate weights of the chosen experts.")] = True,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Record the token ids, which reveal the text.")
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the trace.")] = "",
    license: Annotated[str, typer.Option(help="SPDX identifier of the trace's licence.")] = "",
    dataset: Annotated[str, typer.Option(help="Origin of the prompts.")] = "",
    gate_logits: Annotated[
        bool,
        typer.Option("--gate-logits", help="Derive experts from the gates' scores, as transformers below 5 needs."),
    ] = False,
    force: Force = False,
) -> None:
    """Run a Hugging Face model on prompts and record its routing."""
    with user_errors(), _stopped_by_signals(out):
        refuse_existing(out, force)
        if not force:
            from tracegen.capture.ranks import journal_path, refuse_remains

            refuse_remains(journal_path(out, 0, 1), "--force")
        asked = read_prompts(prompts)[:limit]
        with contextlib.redirect_stderr(screen.terminal(sys.stderr)):  # transformers draws bars
            loaded, tokenizer = _load(model, device, dtype)
        from tracegen.capture import capture as start

        session = start(
            loaded,
            out,
            overwrite=force,
            weights=weights,
            token_ids=token_ids,
            title=title,
            license=license,
            dataset=dataset,
            fallback="gate-logits" if gate_logits else None,
        )
        with session:
            _generate(loaded, tokenizer, asked, batch_size, max_new_tokens)
    print(
        f"{out}: {len(session.layers)} layers x {session.num_tokens} tokens in "
        f"{session.num_steps} steps, content {session.content_id[:12]}"
    )


@contextlib.contextmanager
def _stopped_by_signals(out: Path) -> Iterator[None]:
    """Say what a capture that was stopped has kept, and leave with code 130.

    The ends of jobs and terminals are taken for Ctrl-C, so that what waits in memory is kept too.
    """

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # not every system has all of them
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                stack.callback(signal.signal, number, signal.signal(number, interrupt))
        try:
            yield
        except KeyboardInterrupt as stop:
            from tracegen.capture.ranks import journal_path

            journal = journal_path(Path(out), 0, 1)
            kept = f"{journal}, of which `moereplay trace recover` makes a trace, has what was kept"
            otherwise = kept if journal.exists() else "nothing was captured"
            for line in getattr(stop, "__notes__", (otherwise,)):
                print(f"stopped: {line}", file=sys.stderr)
            raise typer.Exit(130) from None


def read_prompts(path: Path) -> list[str | list[dict[str, str]]]:
    """Prompts of a file.

    Parameters
    ----------
    path
        Text with a prompt per line, or ``.jsonl`` whose objects have ``prompt`` (or
        ``text``), or ``messages`` for the model's chat template.

    Raises
    ------
    UserError
        If it cannot be read, a line has none of them, or there is no prompt.
    """
    if not regular.exists(path):
        msg = f"{path}: no such file"
        raise UserError(msg)
    try:
        lines = regular.read_text(path, MAX_PROMPT_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read as text ({error})"
        raise UserError(msg) from error
    found: list[str | list[dict[str, str]]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            found.append(line)
            continue
        try:
            entry = regular.parse_json(line, has_long_texts=True)
        except ValueError as error:
            msg = f"{path}, line {number}: not JSON ({error})"
            raise UserError(msg) from error
        keys = entry if isinstance(entry, dict) else {}
        prompt = next((keys[k] for k in ("prompt", "text", "messages") if k in keys), None)
        if not isinstance(prompt, str | list) or not prompt:
            msg = f"{path}, line {number}: no 'prompt', 'text' or 'messages'"
            raise UserError(msg)
        found.append(prompt)
    if not found:
        msg = f"{path}: no prompts"
        raise UserError(msg)
    return found


def _load(name: str, device: str, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer, ready to generate."""
    from tracegen.capture.prepare import require_transformers

    require_transformers()
    import transformers

    maker: Callable[..., Any] = transformers.AutoModelForCausalLM.from_pretrained
    own_code: dict[str, Any] = {"trust_remote_code": False}  # a model's own is not asked for
    try:
        config = transformers.AutoConfig.from_pretrained(name, **own_code)
        if config.is_encoder_decoder:
            maker = transformers.AutoModelForSeq2SeqLM.from_pretrained
        placed: dict[str, Any] = {}
        if device == "auto":
            import torch

            placed = {"device_map": "auto"} if torch.cuda.is_available() else {}
        model = maker(name, dtype=dtype, **placed, **own_code)
        if device != "auto":
            model = model.to(device)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **own_code)
    except (OSError, ValueError, RuntimeError, ImportError, AttributeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        msg = f"{name}: cannot be loaded as a transformers model ({first})"
        raise UserError(msg) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return model.eval(), tokenizer


def _generate(model: Any, tokenizer: Any, asked: list[Any], batch_size: int, max_new_tokens: int) -> None:
    """Greedy generation, batch after batch."""
    import torch
    from tqdm import tqdm

    batches = [asked[i : i + batch_size] for i in range(0, len(asked), batch_size)]
    file = screen.terminal(sys.stderr)
    for batch in tqdm(batches, unit="batch", disable=not file.isatty(), leave=False, file=file):
        texts = [
            prompt
            if isinstance(prompt, str)
            else tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            for prompt in batch
        ]
        inputs = tokenizer(texts, return_tensors="pt", padding=True).to(model.device)
        with torch.no_grad():
            model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )


def recover(
    journals: Annotated[
        list[Path], typer.Argument(help="The .partial file of a killed capture, or those of all its ranks.")
    ],
    out: Annotated[
        Path | None,
        file_option("--out", help="Trace file to write [that of the capture]."),
    ] = None,
    force: Force = False,
) -> None:
    """Make a trace of what a killed capture had recorded."""
    from tracegen.capture import recover as finish
    from tracegen.capture.finish import default_target
    from tracegen.file.journal import is_journal

    with user_errors():
        if len(journals) and is_journal(journals[0]):  # what is none is refused as such
            refuse_existing(default_target(journals[0]) if out is None else out, force)
        path, digest = finish(journals, out, overwrite=force)
    print(f"{path}: recovered, content {digest[:12]}; {', '.join(map(str, journals))} can go")
