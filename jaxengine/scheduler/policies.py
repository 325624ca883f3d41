"""Scheduling policies: one pure ordering function each.

A policy maps a sequence to a sort key; the least key is admitted first and preempted last. The key must not
change while the sequence is unfinished (the scheduler keeps its queues sorted by it), and must end in the
sequence's id, so that no two are equal and the n sequences of one request stay together.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxengine.types import Sequence

SECONDS_PER_PRIORITY_CLASS = 30.0

OrderKey = tuple[float, int]


def fcfs(seq: Sequence) -> OrderKey:
    """First come, first served. Priorities have no meaning here, so the scheduler refuses them."""
    return seq.request.arrival_time, seq.seq_id


def priority(seq: Sequence) -> OrderKey:
    """Lower priority numbers first, first come first served within one number, and nobody starves.

    A waiting request gains one class per SECONDS_PER_PRIORITY_CLASS seconds. Two requests age alike, so what
    counts is `priority * seconds + arrival`, which needs no clock: a request k classes below another is
    overtaken only if the other arrives within k * SECONDS_PER_PRIORITY_CLASS seconds after it.
    """
    request = seq.request
    return request.priority * SECONDS_PER_PRIORITY_CLASS + request.arrival_time, seq.seq_id


POLICIES: dict[str, Callable[[Sequence], OrderKey]] = {"fcfs": fcfs, "priority": priority}
