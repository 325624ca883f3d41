"""A random Llama whose every token is ASCII text, and as wide as other engines' kernels ask for.

What engines make of half a character differs, so a comparison of their texts needs a model that never writes one.
"""

import json
from itertools import product
from pathlib import Path

import numpy as np
from tiny_checkpoints import CONFIG, safetensors_bytes
from tiny_model import TEMPLATE
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WINDOW = 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
PAIRS = list(product("aeiou", "bcdfghklmnprstvw"))
VOCAB = len(LETTERS) + len(PAIRS) + len(SPECIAL)
HIDDEN, INNER, HEADS, KV_HEADS, WIDTH = 64, 128, 4, 2, 64


def write_ascii_model(folder: Path) -> Path:
    """A Hugging Face folder in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {
        "vocab_size": VOCAB, "max_position_embeddings": WINDOW, "eos_token_id": VOCAB - 1, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": WIDTH,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(_tensors()))
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "eos_token": "<|im_end|>", "chat_template": TEMPLATE, "add_bos_token": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }))
    return folder


def _tensors() -> dict[str, np.ndarray]:
    q, kv = HEADS * WIDTH, KV_HEADS * WIDTH
    layer = {
        "self_attn.q_proj": (q, HIDDEN), "self_attn.k_proj": (kv, HIDDEN), "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, q), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER), "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
    }
    shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,),
               "lm_head.weight": (VOCAB, HIDDEN)}
    rng = np.random.default_rng(11)
    tensors = {}
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape).astype(np.float32)
        tensors[name] = 1 + noise / 3 if len(shape) == 1 else noise / np.float32(shape[-1]) ** 0.5
    tensors["lm_head.weight"] *= 4      # clear winners, so that rounding does not decide
    return tensors


def _tokenizer() -> Tokenizer:
    texts = LETTERS + [a + b for a, b in PAIRS]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=PAIRS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer
