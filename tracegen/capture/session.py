"""The capture itself: hooks on a model, from the first forward pass to the trace file."""

from __future__ import annotations

import datetime
import functools
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracegen.capture import finish, generation, header, ranks
from tracegen.capture.follow import Follower, ForwardPass
from tracegen.capture.prepare import prepare
from tracegen.capture.recorder import Recorder
from tracegen.capture.sites import refuse_replaced_forward
from tracegen.file.journal import BlockLayout, open_journal
from tracegen.shared import output, regular
from tracegen.shared.errors import UserError

if TYPE_CHECKING:
    from tracegen.capture.sites import LayerStack, Site


UNFINISHED = "of forward passes that failed, or had not ended in their thread when the capture did"
"""Reason for which rows are dropped."""


@dataclass(frozen=True)
class CaptureOptions:
    """Arguments of :func:`tracegen.capture`; see there."""

    overwrite: bool
    weights: bool
    token_ids: bool
    title: str
    license: str
    dataset: str
    fallback: str | None
    buffer_bytes: int


@dataclass(eq=False)
class OpenStep:
    """A forward pass under way, and the routing of its layers so far."""

    stack: LayerStack
    rows: ForwardPass
    given: dict[str, Any]
    found: dict[int, tuple[Any, Any]]
    """Position of the site to its ids and weights, on their device."""


class _Thread(threading.local):
    """State of one thread: threads may run one model at a time, each its own step."""

    open: OpenStep | None = None


_targets: set[Path] = set()
"""Files that captures of this process are writing."""
_lock = threading.Lock()


class CaptureSession:
    """One capture; made by :func:`tracegen.capture`, used as a context manager.

    Parameters
    ----------
    model
        Model to watch.
    path
        Trace file.
    options
        Choice of records.
    """

    def __init__(self, model: Any, path: str | Path, options: CaptureOptions) -> None:
        self.path = Path(path)
        """Trace file to be written."""
        self.content_id = ""
        """Identity of the trace, once it is written (on rank 0)."""
        self.num_steps = 0
        """Forward passes recorded so far."""
        self._options = options
        self._watched = prepare(model, options.fallback)
        self._follower = Follower()
        self._watcher: generation.Watcher | None = None
        self._target = regular.real(self.path)
        self._handles: list[Any] = []
        self._seeing: list[Any] = []  # of each site
        self._here = _Thread()
        self._lock = threading.Lock()  # of everything that the steps of all threads share
        self._under_way: set[OpenStep] = set()
        self._outside_calls = 0
        self._recorder: Recorder | None = None
        self._world = ranks.World(0, 1, "")
        self._dropped: dict[str, int] = {}

    @property
    def num_tokens(self) -> int:
        """Token rows recorded so far."""
        return 0 if self._recorder is None else self._recorder.num_rows

    @property
    def layers(self) -> list[int]:
        """Decoder layer number of each MoE layer found."""
        return [site.layer for site in self._watched.sites]

    def __enter__(self) -> CaptureSession:
        """Put hooks on the model."""
        if self._watcher is not None:
            msg = f"{self.path}: a capture is entered once; make another for another file"
            raise UserError(msg)
        with _lock:
            if self._target in _targets:
                msg = (
                    f"{self.path}: another capture of this process writes it and has not ended; "
                    "give each capture a file of its own"
                )
                raise UserError(msg)
            _targets.add(self._target)
        try:
            self._check_files()
        except BaseException:
            self._release()
            raise
        self._watcher = generation.Watcher(self._follower.begin_generate, self._follower.end_generate)
        for stack in self._watched.stacks:
            before = functools.partial(self._begin_step, stack)
            self._handles += [
                stack.module.register_forward_pre_hook(before, with_kwargs=True),
                stack.module.register_forward_hook(self._end_step),
            ]
        for index, site in enumerate(self._watched.sites):
            see = functools.partial(self._see, index, site)
            self._seeing.append(site.module.register_forward_hook(see, with_kwargs=True))
        generation.watch(self._watched.model, self._watcher)
        return self

    def _check_files(self) -> None:
        """Refuse a trace or a journal that must not be written."""
        if output.replaces(self.path) and not self._options.overwrite:
            msg = f"{self.path} exists; overwrite=True replaces it"
            raise UserError(msg)
        output.check(self.path)
        self._world = ranks.world()
        journal = self._journal_path()
        if not self._options.overwrite:
            ranks.refuse_remains(journal, "overwrite=True")
        journal.unlink(missing_ok=True)

    def _release(self) -> None:
        """Let others write the file."""
        with _lock:
            _targets.discard(self._target)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the hooks off; write the trace, or leave the journal if there was an error."""
        assert self._watcher is not None
        try:
            for handle in [*self._handles, *self._seeing]:
                handle.remove()
            generation.unwatch(self._watched.model, self._watcher)
            with self._lock:
                for step in list(self._under_way):
                    self._give_up(step)
            if error is None:
                self._end()
        except KeyboardInterrupt as stop:
            error = error or stop
            raise
        finally:
            if error is not None:
                self._abandon(error)
            self._release()

    def _end(self) -> None:
        """Close the journal and make the trace of it."""
        if self._recorder is None or not self._recorder.num_rows:
            raise UserError(self._why_nothing())
        try:
            self._recorder.finish({"dropped": self._dropped})
            if not self._world.rank:  # which joins the parts
                self._write()
        except UserError as problem:
            problem.add_note(f"what was captured is kept in {self._journal_path()}")
            raise

    def _write(self) -> None:
        """Make the trace of the journals of all ranks."""
        journals = (
            [open_journal(self._journal_path())]
            if self._world.size == 1
            else ranks.wait_for_all(self.path, self._world)
        )
        self.content_id = finish.finish(journals, self.path, overwrite=self._options.overwrite)
        for journal in journals:
            journal.path.unlink()

    def _abandon(self, error: BaseException) -> None:
        """Leave what was recorded to be recovered, and say so with the error."""
        if self._recorder is None:
            return
        journal = self._journal_path()
        try:
            self._recorder.close()
        except UserError as problem:  # the disk is full: what came before it is there
            error.add_note(str(problem))
        if not self._recorder.num_rows:
            journal.unlink(missing_ok=True)
        elif journal.exists():  # else it is the trace by now
            error.add_note(
                f"{self._recorder.num_rows} tokens were captured before this; they are in "
                f"{journal}, of which `moereplay trace recover` makes a trace"
            )

    def _journal_path(self) -> Path:
        return ranks.journal_path(self.path, self._world.rank, self._world.size)

    def _why_nothing(self) -> str:
        """Reason for an empty capture."""
        if self._outside_calls:
            return (
                f"nothing was captured: experts ran {self._outside_calls} times, but not within a "
                f"forward pass of the given {type(self._watched.model).__name__}; capture the "
                "module whose forward or generate is called"
            )
        return "nothing was captured: the model did not run inside the block"

    def _see(
        self,
        index: int,
        site: Site,
        _module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        """Copy what one site routed, on its device.

        Called when the module has run: its arguments are then what its forward was given, with
        whatever other hooks made of them.
        """
        step = self._here.open
        if step is None:
            # E.g. run again in the backward pass by gradient checkpointing.
            self._outside_calls += 1
            return
        import torch

        refuse_replaced_forward(site)
        with torch.no_grad():
            ids, weights = site.read(site.module, args, kwargs, output)
        if ids.shape[0] != step.rows.num_rows:
            msg = (
                f"layer {site.layer} ({site.name}) routed {ids.shape[0]} rows, the forward pass "
                f"has {step.rows.size} x {step.rows.columns} = {step.rows.num_rows} tokens; rows "
                "cannot be assigned to tokens"
            )
            raise UserError(msg)
        if index in step.found:
            msg = (
                f"layer {site.layer} ({site.name}) ran twice in one forward pass; one routing "
                "per layer and token can be recorded"
            )
            raise UserError(msg)
        copied = None
        if self._options.weights and weights is not None:
            copied = weights.detach().to(torch.float32, copy=True)
        step.found[index] = (ids.detach().to(torch.int32, copy=True), copied)

    def _begin_step(self, stack: LayerStack, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Open a step; one that this thread has open was left by an error in its forward."""
        import torch

        given = generation.arguments(module.forward, args, kwargs)
        training = bool(module.training) and torch.is_grad_enabled()
        with self._lock:
            if self._here.open is not None:
                self._give_up(self._here.open)
        rows = self._follower.begin(given, encoder=stack.encoder, training=training)
        step = OpenStep(stack, rows, given, {})
        with self._lock:
            self._under_way.add(step)
            for site, handle in zip(self._watched.sites, self._seeing, strict=True):
                if not site.receives:
                    # A hook that came later may change what a router hands to the experts.
                    site.module._forward_hooks.move_to_end(handle.id)
        self._here.open = step

    def _give_up(self, step: OpenStep) -> None:
        """Count the rows of a step that will not be recorded; the lock is held."""
        if step in self._under_way:
            self._under_way.remove(step)
            self._dropped[UNFINISHED] = self._dropped.get(UNFINISHED, 0) + step.rows.num_rows
        self._here.open = None

    def _end_step(self, _module: Any, _args: Any, output: Any) -> None:
        """Record a step whose forward has succeeded."""
        step, self._here.open = self._here.open, None
        if step is None:
            return
        if not step.stack.encoder:
            self._follower.end(step.rows, output)
        wanted = [self._watched.sites.index(site) for site in step.stack.sites]
        silent = [index for index in wanted if index not in step.found]
        if silent:
            raise UserError(self._why_silent(silent, wanted))
        rows = step.rows.rows()
        ids = generation.to_host([step.found[index][0] for index in wanted])
        weights = None
        if self._options.weights and all(step.found[i][1] is not None for i in wanted):
            weights = generation.to_host([step.found[index][1] for index in wanted])
        tokens = step.rows.tokens if self._options.token_ids else None
        entries = None if tokens is None else generation.to_numpy(tokens)
        with self._lock:
            if step not in self._under_way:
                return  # the capture ended while this thread was in its pass
            if self._recorder is None:
                topk = max(layer.shape[1] for layer in ids)
                self._recorder = self._start(topk, weights is not None)
            self._recorder.add(self.num_steps, rows, wanted, ids, weights, entries)
            self._under_way.remove(step)
            self.num_steps += 1
            for why, count in rows.dropped.items():
                self._dropped[why] = self._dropped.get(why, 0) + count
            self._recorder.settle()

    def _why_silent(self, silent: list[int], wanted: list[int]) -> str:
        """Reason to refuse a step in which layers were not seen."""
        sites = self._watched.sites
        if len(silent) == len(wanted):
            return (
                f"no site fired: none of the {len(wanted)} MoE layers was seen to run; fused "
                "kernels (use_kernels=True), torch.compile, CUDA graphs or a vendor's quantised "
                "modules bypass hooks: load the model without them"
            )
        names = ", ".join(sites[i].name for i in silent[:3])
        return (
            f"step {self.num_steps}: {len(silent)} of {len(wanted)} MoE layers were not seen to "
            f"run ({names}); something bypassed them, or layers are skipped"
        )

    def _start(self, topk: int, weights: bool) -> Recorder:
        """Open the journal, now that the sizes are known."""
        watched, options = self._watched, self._options
        model = header.trace_model(watched.model, watched.sites, topk)
        layout = BlockLayout(len(watched.sites), topk, model.num_experts, weights, options.token_ids)
        facts = {
            "rank": self._world.rank,
            "session": self._world.session,
            "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "model": header.as_json(model),
            "moe_layer_index": self.layers,
            "title": options.title or f"{model.model_id or model.model_type}, captured",
            "license": options.license,
            "dataset": options.dataset,
            "notes": f"{watched.notes} {header.note_on_layers(watched.model)}".strip(),
            "weight_semantics": header.weight_semantics(watched.sites, model.model_type),
            "parameters": {"weights": weights, "token_ids": options.token_ids}
            | ({"fallback": options.fallback} if options.fallback else {})
            | ({"ranks": self._world.size} if self._world.size > 1 else {}),
            "source": header.source(watched.model),
            "environment": header.environment(),
        }
        return Recorder(self._journal_path(), layout, self.layers, facts, options.buffer_bytes)
