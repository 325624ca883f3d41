"""Attention in float64, one query at a time, from each sequence's contiguous keys and values. Shares no code
with the back ends."""

import numpy as np


def attend(q, cu_q_lens, keys, values, *, scale, sliding_window=None, softcap=None, sinks=None, max_q_len=None):
    """q [T, N, H], keys and values per sequence [kv_len, K, H] -> f64[number of real tokens, N, H]."""
    q = np.asarray(q).astype(np.float64)
    out = []
    for start, stop, seq_keys, seq_values in zip(cu_q_lens[:-1], cu_q_lens[1:], keys, values, strict=False):
        for token in range(start, stop):
            position = len(seq_keys) - (stop - token)
            first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            seen = slice(first, position + 1)
            out.append([
                _one(q[token, n], seq_keys[seen, _head(n, q, seq_keys)], seq_values[seen, _head(n, q, seq_keys)],
                     scale, softcap, None if sinks is None else float(sinks[n]))
                for n in range(q.shape[1])
            ])
    return np.array(out)


def _head(n, q, keys):
    return n // (q.shape[1] // keys.shape[1])


def _one(q, keys, values, scale, softcap, sink):
    scores = keys.astype(np.float64) @ q * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    highest = scores.max() if sink is None else max(scores.max(), sink)
    weights = np.exp(scores - highest)
    total = weights.sum() + (0.0 if sink is None else np.exp(sink - highest))
    return weights @ values.astype(np.float64) / total
