"""Makes tests/golden/models/*.npz: logits of tiny random checkpoints, computed by transformers in float32.

Each file holds the config as published (rope_theta and rope_scaling), the config as transformers 5 saves it
(rope_parameters), the names and shapes of the checkpoint's tensors, and the prompts with their logits.
Weights are not stored: tests/models/tiny_weights.py makes them again.

Run in an environment with torch and transformers 5: `python tests/golden/make_model_goldens.py`
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))
from tiny_weights import tiny_tensor  # noqa: E402

VOCAB, PROMPTS = 96, (37, 23, 1)
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8}

# name -> (model_type, architecture, what it sets beside SIZES)
CASES = {
    "llama": ("llama", "LlamaForCausalLM", {"tie_word_embeddings": False, "head_dim": 16}),
    "llama_gelu": ("llama", "LlamaForCausalLM", {"hidden_act": "gelu", "num_key_value_heads": 1, "rope_theta": 5e5}),
    "llama3": ("llama", "LlamaForCausalLM", {"tie_word_embeddings": True, "rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "llama_linear": ("llama", "LlamaForCausalLM", {
        "num_key_value_heads": 4, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama_yarn": ("llama", "LlamaForCausalLM", {"rope_scaling": YARN}),
    "mistral": ("mistral", "MistralForCausalLM", {"sliding_window": 8, "head_dim": 20}),
    "mistral_full": ("mistral", "MistralForCausalLM", {"sliding_window": None, "rope_theta": 1e6}),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", {
        "num_hidden_layers": 5, "no_rope_layer_interval": 4, "tie_word_embeddings": True}),
    "smollm3_window": ("smollm3", "SmolLM3ForCausalLM", {
        "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 7, "tie_word_embeddings": False}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen2_window": ("qwen2", "Qwen2ForCausalLM", {
        "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {"tie_word_embeddings": True, "head_dim": 20, "rope_theta": 1e6}),
    "qwen3_window": ("qwen3", "Qwen3ForCausalLM", {
        "head_dim": 16, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2,
        "rope_scaling": YARN | {"attention_factor": 1.1, "beta_fast": 16.0}}),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", GEMMA | {
        "attn_logit_softcapping": 4.0, "final_logit_softcapping": 20.0, "tie_word_embeddings": True}),
    "gemma2_untied": ("gemma2", "Gemma2ForCausalLM", GEMMA | {
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "tie_word_embeddings": False,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", GEMMA | {
        "num_hidden_layers": 4, "sliding_window_pattern": 3, "rope_theta": 1e6, "rope_local_base_freq": 1e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "tie_word_embeddings": True}),
    "gemma3_untied": ("gemma3_text", "Gemma3ForCausalLM", GEMMA | {
        "num_key_value_heads": 1, "final_logit_softcapping": 3.0, "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
}


def make(name: str) -> None:
    model_type, architecture, settings = CASES[name]
    published = {"architectures": [architecture], "model_type": model_type} | SIZES | settings
    config = AutoConfig.for_model(**json.loads(json.dumps(published)))
    config.architectures = [architecture]
    config.eos_token_id = config.bos_token_id = config.pad_token_id = None
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    tied = bool(config.tie_word_embeddings)
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
    weights = {
        k: torch.from_numpy(tiny_tensor(k, shape, norms_near_zero="gemma" in name)) for k, shape in shapes.items()
    }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= ({"lm_head.weight"} if tied else set()), missing
    rng = np.random.default_rng(len(name))
    arrays = {}
    for i, length in enumerate(PROMPTS):
        ids = rng.integers(0, VOCAB, length)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0]
        arrays |= {f"ids_{i}": ids.astype(np.int32), f"logits_{i}": logits.numpy()}
    about = {
        "published": published, "saved": config.to_diff_dict(), "shapes": shapes,
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
    }
    np.savez_compressed(HERE / "models" / f"{name}.npz", about=np.array(json.dumps(about)), **arrays)
    print(f"{name}: logits up to {max(np.abs(a).max() for k, a in arrays.items() if 'logits' in k):.1f}")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
