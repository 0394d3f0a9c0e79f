"""The small MoE transformer, of plain PyTorch, whose training steps `measure_step.py` measures."""

# mypy: ignore-errors

import torch
from torch import nn
from torch.nn import functional

ROTARY_BASE = 10_000.0
grouped_mm = getattr(functional, "grouped_mm", None) or torch._grouped_mm


class Mark(torch.autograd.Function):
    """Spin for a clock, forward and backward: a profile's kernels are parted by such kernels."""

    @staticmethod
    def forward(_context, rows):
        torch.cuda._sleep(1)
        return rows.view_as(rows)

    @staticmethod
    def backward(_context, gradient):
        torch.cuda._sleep(1)
        return gradient


class Attention(nn.Module):
    """Causal attention with rotary positions, one head of keys and values for each of queries."""

    def __init__(self, hidden, heads, longest, **kind):
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.norm = nn.RMSNorm(hidden, **kind)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False, **kind) for _ in range(4))
        pairs = torch.arange(0, self.width, 2) / self.width
        angles = torch.arange(longest)[:, None] * ROTARY_BASE ** -torch.cat((pairs, pairs))
        self.register_buffer("cos", angles.cos().to(**kind))
        self.register_buffer("sin", angles.sin().to(**kind))

    def _turned(self, rows, length):
        left, right = rows.chunk(2, -1)
        return rows * self.cos[:length] + torch.cat((-right, left), -1) * self.sin[:length]

    def forward(self, rows):
        normed, (batch, length, hidden) = self.norm(rows), rows.shape
        q, k, v = (
            linear(normed).view(batch, length, self.heads, self.width).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        q, k = self._turned(q, length), self._turned(k, length)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return rows + self.o(found.transpose(1, 2).reshape(batch, length, hidden))


class Experts(nn.Module):
    """A router and its experts, all of them here; `waits`: the host reads their numbers of rows."""

    def __init__(self, hidden, experts, width, top_k, waits, **kind):
        super().__init__()
        self.top_k, self.waits, self.counts = top_k, waits, None
        self.norm = nn.RMSNorm(hidden, **kind)
        self.router = nn.Linear(hidden, experts, bias=False, **kind)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * width, hidden, **kind) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, hidden, width, **kind) * 0.02)

    def forward(self, rows):
        normed = self.norm(rows).flatten(0, 1)
        shares = self.router(normed).float().softmax(-1)
        weights, ids = shares.topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        self.counts = torch.zeros_like(shares, dtype=torch.bool).scatter_(1, ids, True).sum(0)
        if self.waits:
            self.counts.tolist()
        ends = self.counts.cumsum(0, dtype=torch.int32)
        order = ids.flatten().argsort(stable=True)
        sources = order // self.top_k
        sent = normed.index_select(0, sources)
        gate, up = grouped_mm(sent, self.gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
        out = grouped_mm(functional.silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        out = out * weights.flatten().index_select(0, order).to(out.dtype)[:, None]
        return rows + torch.zeros_like(normed).index_add_(0, sources, out).view_as(rows)


class Transformer(nn.Module):
    """Embedding, layers, head and loss; with `marks`, kernels that spin stand between parts."""

    def __init__(
        self,
        layers,
        hidden,
        heads,
        experts,
        width,
        top_k,
        vocabulary,
        longest,
        waits=False,
        marks=False,
        **kind,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden, **kind)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            self.blocks.append(Attention(hidden, heads, longest, **kind))
            self.blocks.append(Experts(hidden, experts, width, top_k, waits, **kind))
        self.norm = nn.RMSNorm(hidden, **kind)
        self.head = nn.Linear(hidden, vocabulary, bias=False, **kind)
        self.marks = marks

    def forward(self, ids, targets):
        rows = self.embedding(ids)
        for block in self.blocks:
            if self.marks:
                rows = Mark.apply(rows)
            rows = block(rows)
        if self.marks:
            rows = Mark.apply(rows)
        logits = self.head(self.norm(rows)).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def busiest(self) -> float:
        """Rows of the busiest expert of any layer, over the mean."""
        counts = [block.counts for block in self.blocks if isinstance(block, Experts)]
        return max((count.max() / count.float().mean()).item() for count in counts)
