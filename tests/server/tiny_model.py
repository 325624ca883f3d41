"""A random Llama over a byte-level tokenizer: every byte is a token, so its texts are full of broken UTF-8."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny_checkpoints import CONFIG, safetensors_bytes
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WINDOW = 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENIZER_SIZE = 256 + 4 + len(SPECIAL)      # bytes, merges, specials
VOCAB = 272                                  # padded, as published models are
EOS = 256 + 4 + 2
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n")]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ suffix | default('') }}"
)


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {"vocab_size": VOCAB, "max_position_embeddings": WINDOW, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(_tensors()))
    _tokenizer().save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE, "add_bos_token": False,
                                "tokenizer_class": "GPT2TokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    hidden, inner, kv = 32, 64, 16
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (VOCAB, hidden),
    }
    layer = {
        "input_layernorm": (hidden,), "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden), "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
    }
    for i in range(2):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}
    tensors["lm_head.weight"][TOKENIZER_SIZE:] = 0      # ids without a token are never the likeliest
    return tensors


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate([*alphabet, *("".join(pair) for pair in MERGES)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer
