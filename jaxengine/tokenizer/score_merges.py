"""Merges for a vocabulary that has scores instead (sentencepiece's BPE).

Sentencepiece merges the neighbours whose joined piece scores best; the `tokenizers` library wants the pairs in
order. Every way to cut a token into two tokens is a merge, ordered by the token's score, then by the length
of the left and the right part, longest first: the order of the published merge lists of Llama 2 and Gemma 3.
"""

from collections.abc import Sequence

import numpy as np


def merges_from_scores(tokens: list[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Pairs in the order in which they are to be merged."""
    known = set(tokens)
    owners: list[int] = []
    cuts: list[int] = []
    for i, token in enumerate(tokens):
        for cut in range(1, len(token)):
            if token[:cut] in known and token[cut:] in known:
                owners.append(i)
                cuts.append(cut)
    owner, cut = np.array(owners, np.int64), np.array(cuts, np.int64)
    length = np.array([len(token) for token in tokens], np.int64)
    score = np.array(scores, np.float64)
    order = np.lexsort((owner, cut - length[owner], -cut, -score[owner]))
    pairs = zip(owner[order].tolist(), cut[order].tolist(), strict=True)
    return [(tokens[i][:at], tokens[i][at:]) for i, at in pairs]
