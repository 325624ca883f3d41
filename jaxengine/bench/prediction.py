"""The least time of a step on devices that are not at hand: bytes and operations over rates that are given.

Assumptions, all on the side of haste: matmuls read each weight once or run at the matmul rate, whichever takes
longer; attention the same with the KV cache; collectives are rings over links that all devices of a shard share
alike, each after a fixed delay; nothing overlaps, and nothing else takes time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One device and its links. The defaults are an H200's: bandwidth and matmul rate as measured on one, the
    links' rate as published; the delay is a guess."""

    memory_bytes: float = 141e9
    hbm: float = 4.3e12          # bytes a second, read and written
    flops: float = 790e12        # bfloat16 operations a second
    link: float = 450e9          # bytes a second to the other devices, in each direction
    delay: float = 10e-6         # seconds before a collective's first byte


@dataclass(frozen=True)
class Exchange:
    """A kind of collective, the bytes of its result on a device, the devices in a group, and how often in a step."""

    kind: str
    num_bytes: int
    devices: int
    times: int

    def seconds(self, machine: Machine) -> float:
        """A ring sends (n - 1) / n of the result over each link, a sum everything twice."""
        share = (self.devices - 1) / self.devices * (2 if self.kind == "all-reduce" else 1)
        return self.times * (machine.delay + share * self.num_bytes / machine.link)


@dataclass(frozen=True)
class StepWork:
    """What one device does in a step. Bytes and operations."""

    weight_bytes: int            # held
    read_bytes: int              # of weights that the step's matmuls read
    matmul_flops: float
    pool_bytes: int
    kv_read_bytes: float
    attention_flops: float
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, by what they go into."""

    matmul_s: float
    attention_s: float
    exchange_s: float

    @property
    def step_s(self) -> float:
        return self.matmul_s + self.attention_s + self.exchange_s


def predict(work: StepWork, machine: Machine) -> Prediction:
    return Prediction(
        max(work.read_bytes / machine.hbm, work.matmul_flops / machine.flops),
        max(work.kv_read_bytes / machine.hbm, work.attention_flops / machine.flops),
        sum(exchange.seconds(machine) for exchange in work.exchanges),
    )
