"""NVLink: the bytes that a message really puts on the wire, in each direction.

Packets are made of 16-byte flits: one header, an optional byte-enable flit, the
data. An SM fills at most 128 bytes of data into a packet, a copy engine 256. What
travels the other way is charged to the other direction: a read's request, a
write's acknowledgement. A constant *efficiency* stands for what happens below the
packets (framing, credits, idle flits) and is not documented.

The form reproduces eleven bandwidth measurements of an 8 x H800 machine within
1.4 % (tests/hwmodel/test_link.py) and, with nothing changed but the number of
links, those of 8 x H100.

The module is long because a packet of every kind of access is counted both ways here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from hwmodel.errors import UserError, unknown
from hwmodel.tables import LinkSpec
from hwmodel.units import (
    BYTES_PER_GB,
    PS_PER_S,
    Rate,
    Whole,
    ceil_div,
    exact,
    scale_up,
    whole,
)

#: Maker of the packets: an SM's loads and stores (TMA included), or a copy engine.
Engine = Literal["sm", "copy_engine"]

#: How the rows of a kernel whose SMs all store single rows to whatever peer is next leave: by
#: stores of warps, or in bulk from shared memory (TMA); "no" for other kernels.
Scattered = Literal["no", "stores", "bulk"]

#: Operation that a transfer is made of.
Access = Literal["write", "read"]


@dataclass(frozen=True, slots=True)
class PacketRules:
    """Sizes of an engine's packets.

    Attributes
    ----------
    payload_bytes
        Most data bytes of a packet.
    read_request_flits
        Flits of the opposite direction that ask for one packet of data. A
        fraction: copy engines ask for more than one packet at a time.
    write_ack_flits
        Flits of the opposite direction that acknowledge one packet of data.
    """

    payload_bytes: int
    read_request_flits: Fraction
    write_ack_flits: Fraction


@dataclass(frozen=True)
class Link:
    """The NVLink port of a GPU: all its links together, each direction by itself.

    Attributes
    ----------
    links_per_gpu
        Links of a GPU, over all switch planes.
    link_rate
        One link, one direction, after efficiency and before packet overhead.
    line_rate
        One link, one direction, as sold.
    flit_bytes, header_flits, byte_enable_flits
        Packet format.
    fan_out_efficiency, scatter_efficiency, bulk_scatter_efficiency
        Share of the port's rate that SMs reach when their packets alternate between peers, when
        all SMs store single rows to whatever peer is next, and when they do so in bulk.
    """

    links_per_gpu: int
    link_rate: Rate
    line_rate: Rate
    flit_bytes: int
    header_flits: int
    byte_enable_flits: int
    fan_out_efficiency: Fraction
    scatter_efficiency: Fraction
    bulk_scatter_efficiency: Fraction
    _sm: PacketRules
    _copy_engine: PacketRules

    @classmethod
    def from_spec(cls, spec: LinkSpec) -> Link:
        """Build from a preset's ``[link]`` table."""
        line = exact(spec.bandwidth_GB_per_s.value) * BYTES_PER_GB
        return cls(
            links_per_gpu=spec.links_per_gpu.value,
            link_rate=Rate.per_second(line * exact(spec.efficiency.value)),
            line_rate=Rate.per_second(line),
            flit_bytes=spec.flit_bytes.value,
            header_flits=spec.header_flits.value,
            byte_enable_flits=spec.byte_enable_flits.value,
            fan_out_efficiency=exact(spec.fan_out_efficiency.value),
            scatter_efficiency=exact(spec.scatter_efficiency.value),
            bulk_scatter_efficiency=exact(spec.bulk_scatter_efficiency.value),
            _sm=PacketRules(
                spec.sm_payload_bytes.value,
                exact(spec.sm_read_request_flits.value),
                exact(spec.sm_write_ack_flits.value),
            ),
            _copy_engine=PacketRules(
                spec.copy_engine_payload_bytes.value,
                exact(spec.copy_engine_read_request_flits.value),
                exact(spec.copy_engine_write_ack_flits.value),
            ),
        )

    # ---- durations -------------------------------------------------------------

    @cached_property
    def port_rate(self) -> Rate:
        """All links of a GPU in one direction; wire bytes per second."""
        return self.link_rate.times(self.links_per_gpu)

    @property
    def line_GB_per_s(self) -> float:
        """All links of a GPU in one direction, as sold."""
        return self.links_per_gpu * float(self.line_rate.units_per_second) / BYTES_PER_GB

    def port_duration_ps(self, wire_bytes: Whole) -> Whole:
        """Time that wire bytes occupy a GPU's port in one direction.

        Parameters
        ----------
        wire_bytes
            Payload and packet overhead; what the ``*_wire_bytes`` methods return.

        Returns
        -------
        Picoseconds, rounded up. Latency is apart; see :class:`hwmodel.fabric.Fabric`.
        """
        return self.port_rate.duration_ps(wire_bytes)

    def fan_out_duration_ps(self, wire_bytes: Whole, scattered: Scattered = "no") -> Whole:
        """Time that wire bytes occupy a port whose packets alternate between several peers."""
        return self._fan_out_rates[scattered].duration_ps(wire_bytes)

    @cached_property
    def _fan_out_rates(self) -> dict[str, Rate]:
        """Rates of a port whose packets alternate, by how the rows are scattered."""
        efficiencies = {
            "no": self.fan_out_efficiency,
            "stores": self.scatter_efficiency,
            "bulk": self.bulk_scatter_efficiency,
        }
        period = self.port_rate.ps_per_unit
        return {
            scattered: Rate.per_second(PS_PER_S / (period / efficiency))
            for scattered, efficiency in efficiencies.items()
        }

    def rules(self, engine: Engine = "sm") -> PacketRules:
        """Packet rules of an engine.

        Raises
        ------
        UserError
            If there is no such engine.
        """
        if engine == "sm":
            return self._sm
        if engine == "copy_engine":
            return self._copy_engine
        raise unknown("engine", engine, ["sm", "copy_engine"])

    # ---- counts ------------------------------------------------------------------

    def packets(self, row_bytes: Whole, engine: Engine = "sm", packet_bytes: int | None = None) -> Whole:
        """Packets of one row; a row of no bytes has none.

        Parameters
        ----------
        row_bytes
            Payload of the row.
        engine
            Maker of the packets.
        packet_bytes
            Data bytes of a full packet where stores leave in smaller ones than the engine could
            fill, such as single sectors that nobody merges.

        Raises
        ------
        UserError
            If such packets are not whole flits, or more than the engine's.
        """
        checked: Whole = whole(row_bytes, "row_bytes")
        return self._packets(checked, engine, packet_bytes)

    def _packets(self, checked: Whole, engine: Engine, packet_bytes: int | None) -> Whole:
        """Packets of rows whose bytes were checked, see `packets`."""
        most = self.rules(engine).payload_bytes
        if packet_bytes is None:
            return ceil_div(checked, most)
        if not 0 < packet_bytes <= most or packet_bytes % self.flit_bytes:
            message = (
                f"packets of {packet_bytes} bytes of data; possible for engine {engine!r}: "
                f"multiples of {self.flit_bytes} up to {most}"
            )
            raise UserError(message)
        return ceil_div(checked, packet_bytes)

    def write_flits(
        self,
        row_bytes: Whole,
        engine: Engine = "sm",
        extra_flits_per_packet: Whole | int = 0,
        packet_bytes: int | None = None,
    ) -> Whole:
        """Flits that carry one row: data, headers, byte enables of a partial last flit.

        Parameters
        ----------
        row_bytes
            Payload of the row.
        engine
            Maker of the packets.
        extra_flits_per_packet
            Flits added to each packet, such as a list of targets.
        packet_bytes
            See :meth:`packets`.

        Notes
        -----
        The tail of a row goes out as one shorter packet. Real hardware may only
        know powers of two up to 128 bytes and split it; the difference is at most
        two headers per row.
        """
        extra: Any = whole(extra_flits_per_packet, "extra_flits_per_packet")
        checked: Whole = whole(row_bytes, "row_bytes")
        data = ceil_div(checked, self.flit_bytes)
        partial = data - checked // self.flit_bytes  # 1 where the last flit is not full
        headers = self._packets(checked, engine, packet_bytes) * (self.header_flits + extra)
        flits: Whole = data + headers + partial * self.byte_enable_flits
        return flits

    # ---- bytes on the wire --------------------------------------------------------

    def write_wire_bytes(
        self,
        row_bytes: Whole | int,
        rows: Whole | int = 1,
        *,
        engine: Engine = "sm",
        extra_flits: Whole | int = 0,
        packet_bytes: int | None = None,
    ) -> Whole:
        """Wire bytes that a message of writes puts on its own direction.

        Parameters
        ----------
        row_bytes
            Payload of a row, a number or one for each message.
        rows
            Rows of the message. Each is packetised by itself: the last packet of
            a row is not shared with the next.
        engine
            Maker of the packets.
        extra_flits
            Flits added to each packet, such as a list of targets.
        packet_bytes
            See :meth:`packets`.

        Returns
        -------
        Bytes, a multiple of the flit size.
        """
        flits: Any = self.write_flits(row_bytes, engine, extra_flits, packet_bytes)
        nbytes: Whole = flits * whole(rows, "rows") * self.flit_bytes
        return nbytes

    def response_wire_bytes(
        self, row_bytes: Whole | int, rows: Whole | int = 1, *, engine: Engine = "sm", extra_flits: Whole | int = 0
    ) -> Whole:
        """Wire bytes of the answers to reads, on the direction the data travels.

        The parameters are those of :meth:`write_wire_bytes`. Answers carry whole
        flits and so no byte enables.
        """
        checked = whole(row_bytes, "row_bytes")
        full: Any = ceil_div(checked, self.flit_bytes) * self.flit_bytes
        nbytes: Whole = self.write_wire_bytes(full, rows, engine=engine, extra_flits=extra_flits)
        return nbytes

    def request_wire_bytes(
        self, row_bytes: Whole | int, rows: Whole | int = 1, *, engine: Engine = "sm", extra_flits: Whole | int = 0
    ) -> Whole:
        """Wire bytes of the requests for reads, against the direction of the data.

        The parameters are those of :meth:`write_wire_bytes`; ``row_bytes`` is the
        payload asked for.

        Returns
        -------
        Bytes, rounded up over the whole message.
        """
        packets: Any = self.packets(row_bytes, engine) * whole(rows, "rows")
        asked = scale_up(packets, self.rules(engine).read_request_flits * self.flit_bytes)
        nbytes: Whole = asked + packets * whole(extra_flits, "extra_flits") * self.flit_bytes
        return nbytes

    def ack_wire_bytes(
        self,
        row_bytes: Whole | int,
        rows: Whole | int = 1,
        *,
        engine: Engine = "sm",
        packet_bytes: int | None = None,
    ) -> Whole:
        """Wire bytes of the acknowledgements of writes, against the direction of the data.

        The parameters are those of :meth:`write_wire_bytes`.

        Returns
        -------
        Bytes, rounded up over the whole message.
        """
        packets: Any = self.packets(row_bytes, engine, packet_bytes) * whole(rows, "rows")
        nbytes: Whole = scale_up(packets, self.rules(engine).write_ack_flits * self.flit_bytes)
        return nbytes

    # ---- for people -----------------------------------------------------------------

    def payload_bytes_per_s(self, engine: Engine = "sm", access: Access = "write", *, both_ways: bool = False) -> float:
        """Payload rate of long full-packet transfers, per GPU and direction.

        Parameters
        ----------
        engine
            Maker of the packets.
        access
            Push (``write``) or pull (``read``).
        both_ways
            Whether the opposite direction carries the same traffic, so that its
            acknowledgements or requests share the wire.

        Notes
        -----
        ``nominal * efficiency * d / (d + o + r)`` with ``d`` data flits, ``o``
        header flits and ``r`` flits of the opposite traffic per packet.
        """
        rules = self.rules(engine)
        opposite = rules.write_ack_flits if access == "write" else rules.read_request_flits
        data_flits = Fraction(rules.payload_bytes, self.flit_bytes)
        share = data_flits / (data_flits + self.header_flits + (opposite if both_ways else 0))
        return float(share) * self.port_rate.units_per_second
