"""Bucket sizes: few, rising, and large enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.config import SchedulerConfig
from jaxengine.scheduler import decode_buckets, pick, row_buckets, token_buckets
from jaxengine.scheduler.buckets import MAX_EXECUTABLES


def test_default_preset():
    config = SchedulerConfig()
    seqs, tokens = config.max_num_seqs, config.max_num_batched_tokens
    decode, rows, mixed = decode_buckets(seqs), row_buckets(seqs), token_buckets(tokens, seqs)
    assert decode == (2, 4, 8, 16, 32)
    assert rows == (2, 8, 32)
    assert mixed == (64, 256, 512)
    assert len(decode) + len(rows) + len(mixed) <= MAX_EXECUTABLES


@pytest.mark.parametrize(
    ("seqs", "buckets"), [(1, (2,)), (2, (2,)), (3, (2, 3)), (24, (2, 4, 8, 16, 24)), (64, (2, 4, 8, 16, 32, 64))]
)
def test_decode_buckets_are_never_one_and_end_at_max_num_seqs(seqs, buckets):
    assert decode_buckets(seqs) == buckets


@given(st.integers(1, 1024), st.integers(0, 16384))
def test_buckets_rise_and_cover_every_step(seqs, more):
    tokens = seqs + more
    for buckets, largest in [
        (decode_buckets(seqs), max(2, seqs)), (row_buckets(seqs), max(2, seqs)), (token_buckets(tokens, seqs), tokens)
    ]:
        assert list(buckets) == sorted(set(buckets))
        assert buckets[-1] == largest
    assert len(token_buckets(tokens, seqs)) <= 3
    assert min(decode_buckets(seqs)) >= 2


@pytest.mark.parametrize(("size", "bucket"), [(1, 2), (2, 2), (3, 8), (8, 8), (9, 32), (32, 32)])
def test_pick_takes_the_smallest_that_holds(size, bucket):
    assert pick((2, 8, 32), size) == bucket


def test_pick_refuses_what_no_bucket_holds():
    with pytest.raises(ValueError, match=r"size=33.*\(2, 8, 32\)"):
        pick((2, 8, 32), 33)
