"""The capture itself: hooks on a model, from the first forward pass to the trace file."""

from __future__ import annotations

import datetime
import functools
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracegen.capture import finish, generation, header, ranks
from tracegen.capture.follow import Follower, Pass
from tracegen.capture.prepare import prepare
from tracegen.capture.recorder import Recorder
from tracegen.errors import UserError
from tracegen.file.journal import Layout, open_journal

if TYPE_CHECKING:
    from tracegen.capture.sites import Site, Stack


@dataclass(frozen=True)
class Options:
    """Arguments of :func:`tracegen.capture`; see there."""

    overwrite: bool
    weights: bool
    token_ids: bool
    title: str
    license: str
    dataset: str
    fallback: str | None
    buffer_bytes: int


@dataclass
class OpenStep:
    """A forward pass under way, and the routing of its layers so far."""

    stack: Stack
    rows: Pass
    given: dict[str, Any]
    found: dict[int, tuple[Any, Any]]
    """Position of the site to its ids and weights, on their device."""


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

    def __init__(self, model: Any, path: str | Path, options: Options) -> None:
        self.path = Path(path)
        """Trace file to be written."""
        self.content_id = ""
        """Identity of the trace, once it is written (on rank 0)."""
        self.num_steps = 0
        """Forward passes recorded so far."""
        self._options = options
        self._watched = prepare(model, options.fallback)
        self._follower = Follower()
        self._handles: list[Any] = []
        self._open: OpenStep | None = None
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
        if not self.path.absolute().parent.is_dir():
            msg = f"{self.path}: the folder {self.path.absolute().parent} does not exist"
            raise UserError(msg)
        if self.path.exists() and not self._options.overwrite:
            msg = f"{self.path} exists; overwriting must be asked for"
            raise UserError(msg)
        self._world = ranks.world()
        journal = self._journal_path()
        if journal.exists() and not self._options.overwrite:
            msg = (
                f"{journal} is what a killed capture left; `moereplay trace recover` makes a "
                "trace of it, overwriting it must be asked for"
            )
            raise UserError(msg)
        journal.unlink(missing_ok=True)
        for stack in self._watched.stacks:
            before = functools.partial(self._begin_step, stack)
            self._handles += [
                stack.module.register_forward_pre_hook(before, with_kwargs=True),
                stack.module.register_forward_hook(self._end_step),
            ]
        for index, site in enumerate(self._watched.sites):
            self._handles.append(self._hook(index, site))
        follower = self._follower
        generation.watch(self._watched.model, follower.begin_generate, follower.end_generate)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the hooks off; write the trace, or leave the journal if there was an error."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        generation.unwatch(self._watched.model)
        self._open = None
        if error is not None:
            self._abandon(error)
            return
        if self._recorder is None or not self._recorder.num_rows:
            raise UserError(self._why_nothing())
        self._recorder.finish({"dropped": self._dropped})
        if self._world.rank:
            return  # rank 0 joins the parts
        try:
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
        self._recorder.close()
        if self._recorder.num_rows:
            error.add_note(
                f"{self._recorder.num_rows} tokens were captured before this; they are in "
                f"{self._journal_path()}, of which `moereplay trace recover` makes a trace"
            )
        else:
            self._journal_path().unlink(missing_ok=True)

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

    def _hook(self, index: int, site: Site) -> Any:
        """Watch one module that routes."""
        if site.before:

            def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                self._see(index, site, args, kwargs, None)

            return site.module.register_forward_pre_hook(before, with_kwargs=True)

        def after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self._see(index, site, args, kwargs, output)

        return site.module.register_forward_hook(after, with_kwargs=True)

    def _see(
        self, index: int, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Copy what one site routed, on its device."""
        step = self._open
        if step is None:
            # E.g. run again in the backward pass by gradient checkpointing.
            self._outside_calls += 1
            return
        import torch

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

    def _begin_step(
        self, stack: Stack, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Open a step; one that is still open was left by an error in its forward."""
        import torch

        given = generation.arguments(module, args, kwargs)
        training = bool(module.training) and torch.is_grad_enabled()
        rows = self._follower.begin(given, encoder=stack.encoder, training=training)
        self._open = OpenStep(stack, rows, given, {})

    def _end_step(self, _module: Any, _args: Any, output: Any) -> None:
        """Record a step whose forward has succeeded."""
        step, self._open = self._open, None
        if step is None:
            return
        if not step.stack.encoder:
            self._follower.end(output, step.given)
        wanted = [self._watched.sites.index(site) for site in step.stack.sites]
        silent = [index for index in wanted if index not in step.found]
        if silent:
            raise UserError(self._why_silent(silent, wanted))
        rows = step.rows.rows()
        ids = generation.to_host([step.found[index][0] for index in wanted])
        weights = None
        if self._options.weights and all(step.found[i][1] is not None for i in wanted):
            weights = generation.to_host([step.found[index][1] for index in wanted])
        if self._recorder is None:
            self._recorder = self._start(max(layer.shape[1] for layer in ids), weights is not None)
        tokens = step.rows.tokens if self._options.token_ids else None
        self._recorder.add(
            self.num_steps,
            rows,
            wanted,
            ids,
            weights,
            None if tokens is None else generation.to_numpy(tokens),
        )
        self.num_steps += 1
        for why, count in rows.dropped.items():
            self._dropped[why] = self._dropped.get(why, 0) + count

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
        layout = Layout(len(watched.sites), topk, model.num_experts, weights, options.token_ids)
        facts = {
            "rank": self._world.rank,
            "session": self._world.session,
            "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "model": header.as_json(model),
            "moe_layer_index": self.layers,
            "title": options.title or f"{model.model_id or model.model_type}, captured",
            "license": options.license,
            "dataset": options.dataset,
            "notes": watched.notes,
            "weight_semantics": header.weight_semantics(watched.sites, model.model_type),
            "parameters": {"weights": weights, "token_ids": options.token_ids}
            | ({"fallback": options.fallback} if options.fallback else {})
            | ({"ranks": self._world.size} if self._world.size > 1 else {}),
            "source": header.source(watched.model),
            "environment": header.environment(),
        }
        return Recorder(self._journal_path(), layout, self.layers, facts, options.buffer_bytes)
