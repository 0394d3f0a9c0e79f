"""Number types of a layer: of its GEMMs, their weights, and rows to the experts and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hwmodel.formats import fp4_bytes
from replay.errors import UserError, unknown

NumberType = Literal["bf16", "fp8", "fp32"]
NUMBER_TYPES: tuple[str, ...] = get_args(NumberType)
VALUE_BYTES = {"bf16": 2, "fp8": 1, "fp32": 4}

ValueType = Literal["bf16", "fp8", "fp32", "mxfp4", "nvfp4"]
VALUE_TYPES: tuple[str, ...] = get_args(ValueType)
FP4_TYPES = frozenset(VALUE_TYPES) - frozenset(NUMBER_TYPES)
# FP8 values that share one FP32 scale (DeepSeek-V3 technical report, section 3.3)
SCALE_BLOCK = 128
SCALE_BYTES = 4

SCALED = FP4_TYPES | {"fp8"}
# Scales of 8 bits without mantissa are those of FP8 and MXFP4 alone (NVIDIA PTX ISA, tcgen05.mma
# .kind::mxf8f6f4), and one instruction has one kind; products of TF32 have no FP4 weights.
UNLIKE = frozenset(
    {
        ("fp8", "nvfp4"),
        ("mxfp4", "nvfp4"),
        ("nvfp4", "mxfp4"),
        ("fp32", "mxfp4"),
        ("fp32", "nvfp4"),
    }
)


def row_bytes(number_type: str, hidden: int) -> int:
    """Bytes of one row of `hidden` values, the scales of FP8 and FP4 included."""
    if number_type in FP4_TYPES:
        return fp4_bytes(hidden, number_type)
    scales = SCALE_BYTES * -(-hidden // SCALE_BLOCK) if number_type == "fp8" else 0
    return VALUE_BYTES[number_type] * hidden + scales


@dataclass(frozen=True, init=False)
class Precision:
    """Number types of the GEMMs and of the rows on the wire.

    FP8 rows carry one FP32 scale per 128 values, or one of 8 bits per 32, which are as many bytes;
    FP4 values have scales of 8 bits, per 32 (``mxfp4``) or 16 (``nvfp4``). GEMMs add up in FP32;
    those of FP32 operands multiply them as TF32.

    Parameters
    ----------
    name
        Short form that sets all three. ``fp8`` means FP8 GEMMs, FP8 rows to the experts, and BF16
        rows back, since the sum over experts needs the range (DeepEP, DeepSeek-V3); so do FP4
        types. ``bf16`` and ``fp32`` mean that type everywhere.
    gemm, dispatch, combine
        What is to differ from it.
    weights
        FP4 type of the experts' weights; by default they are as what they are multiplied with.

    Attributes
    ----------
    gemm
        Type of the rows that GEMMs multiply.
    dispatch
        Type of the rows on their way to the experts.
    combine
        Type of the rows on their way back.
    weights
        Type of the experts' weights.

    Raises
    ------
    UserError
        If there is no such type.
    """

    gemm: str
    dispatch: str
    combine: str
    weights: str

    def __init__(
        self,
        name: str,
        *,
        gemm: str | None = None,
        dispatch: str | None = None,
        combine: str | None = None,
        weights: str | None = None,
    ) -> None:
        back = "bf16" if name in SCALED else name
        for what, given in (
            ("precision", name),
            ("gemm type", gemm),
            ("type of dispatch rows", dispatch),
            ("type of combine rows", combine),
        ):
            if given is not None and given not in VALUE_TYPES:
                raise unknown(what, given, VALUE_TYPES)
        multiplied = gemm or name
        if weights not in (None, multiplied, *FP4_TYPES) or (multiplied, weights) in UNLIKE:
            could = sorted({multiplied, *FP4_TYPES} - {w for g, w in UNLIKE if g == multiplied})
            message = f"weights of {multiplied} GEMMs are {' or '.join(could)}, not {weights}"
            raise UserError(message)
        object.__setattr__(self, "gemm", multiplied)
        object.__setattr__(self, "weights", weights or multiplied)
        object.__setattr__(self, "dispatch", dispatch or name)
        object.__setattr__(self, "combine", combine or back)

    @property
    def name(self) -> str:
        """The short form where there is one, else the types in words."""
        return self.gemm if self == Precision(self.gemm) else self.type_text

    @property
    def type_text(self) -> str:
        """The types in words."""
        weights = f"{self.weights} weights, " if self.weights != self.gemm else ""
        return f"{self.gemm} GEMMs, {weights}{self.dispatch} rows out, {self.combine} rows back"

    @property
    def operands(self) -> str:
        """Number type that GEMMs multiply, as `hwmodel` names it: rows by weights."""
        return self.gemm if self.weights == self.gemm else f"{self.gemm}_{self.weights}"

    @property
    def has_scales(self) -> bool:
        """Tell whether rows that GEMMs read have scales, which a kernel makes from other rows."""
        return self.gemm in SCALED

    @property
    def between(self) -> str:
        """Type of the parts between layers: checkpoints in FP4 keep these in BF16."""
        return "bf16" if self.gemm in FP4_TYPES else self.gemm

    @property
    def casts_tokens(self) -> bool:
        """Tell whether tokens are cast before they travel: to FP8 or FP4, which have scales."""
        return self.dispatch in SCALED

    @property
    def casts_dispatched(self) -> bool:
        """Tell whether rows arrive in another type than GEMMs read, so that they are cast in between."""
        return self.dispatch != self.gemm

    @property
    def casts_results(self) -> bool:
        """Tell whether results are cast before they travel.

        GEMMs write BF16 or FP32, whichever is asked for, out of FP32 accumulators. FP8 needs the
        largest of 128 values first, and is made by a kernel behind the sum of a row's parts.
        """
        return self.combine == "fp8"

    @property
    def operand_bytes(self) -> int:
        """Bytes of one value that a GEMM reads, without its scale."""
        return VALUE_BYTES[self.gemm]

    @property
    def result_bytes(self) -> int:
        """Bytes of one value that a GEMM writes for readers that are no GEMM."""
        return 4 if self.gemm == "fp32" else 2

    @property
    def dispatch_value_bytes(self) -> int:
        """Bytes of one value on its way to an expert, without its scale."""
        return VALUE_BYTES[self.dispatch]

    @property
    def combine_value_bytes(self) -> int:
        """Bytes of one value on its way back, without its scale."""
        return VALUE_BYTES[self.combine]

    def token_row_bytes(self, hidden: int) -> int:
        """Bytes of one row of `hidden` values as the layer is given it."""
        return self.result_bytes * hidden

    def operand_row_bytes(self, hidden: int) -> int:
        """Bytes of one token row of `hidden` values as the first GEMM reads it."""
        return row_bytes(self.gemm, hidden)

    def dispatch_row_bytes(self, hidden: int) -> int:
        """Bytes of one token row of `hidden` values on its way to an expert."""
        return row_bytes(self.dispatch, hidden)

    def result_row_bytes(self, hidden: int) -> int:
        """Bytes of one row of `hidden` values as the last GEMM writes it, and of a token's sum."""
        return row_bytes("bf16" if self.casts_results else self.combine, hidden)

    def combine_row_bytes(self, hidden: int) -> int:
        """Bytes of one token row of `hidden` values on its way back."""
        return row_bytes(self.combine, hidden)
