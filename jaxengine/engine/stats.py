"""What each step did and where its time went."""

from dataclasses import dataclass


@dataclass
class StepStats:
    """What one step did, and the host's seconds in each part of it."""

    step_id: int
    kind: str                # decode, mixed
    bucket: int              # sequences of a decode step, tokens of a mixed one
    num_tokens: int
    num_seqs: int
    num_sampled: int = 0
    schedule_s: float = 0.0
    build_s: float = 0.0
    forward_s: float = 0.0   # dispatch of the forward
    wait_s: float = 0.0      # waiting for the previous step's ids
    output_s: float = 0.0    # detokenising and finishing the previous step's rows
    sampler_s: float = 0.0   # sampler inputs and dispatch

    @property
    def host_s(self) -> float:
        """Python's share: everything except waiting for the device."""
        return self.schedule_s + self.build_s + self.forward_s + self.output_s + self.sampler_s

    @property
    def padding(self) -> int:
        """Tokens that the bucket computes for nobody."""
        return self.bucket - self.num_tokens
