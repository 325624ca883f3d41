"""Reading published configs: what is refused, and what a missing key means."""

import pytest

from jaxengine.layers.rope_scaling import LinearScaling, YarnScaling
from jaxengine.models.registry import FAMILIES, family

SIZES = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}
MODEL_TYPES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "SmolLM3ForCausalLM": "smollm3",
    "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3_text",
}


def config(architecture="LlamaForCausalLM", **settings):
    published = SIZES | {"architectures": [architecture], "model_type": MODEL_TYPES[architecture]} | settings
    return family(published).Config.from_published(published)


def test_every_family_is_tested_here():
    assert set(MODEL_TYPES) == set(FAMILIES)


@pytest.mark.parametrize("architecture", MODEL_TYPES)
@pytest.mark.parametrize(("key", "value"), [
    ("attention_bias", True), ("mlp_bias", True), ("partial_rotary_factor", 0.5), ("use_mrope", True),
    ("use_bidirectional_attention", True), ("quantization_config", {"quant_method": "awq"}),
    ("hidden_act", "quick_gelu"),
    ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0}),
    ("rope_scaling", {"rope_type": "longrope", "factor": 2.0}),
])
def test_what_no_family_implements_is_refused_by_name(architecture, key, value):
    named = value["rope_type"] if key == "rope_scaling" else key
    with pytest.raises(ValueError, match=named):
        config(architecture, **{key: value})


@pytest.mark.parametrize(("architecture", "key", "value"), [
    ("LlamaForCausalLM", "attn_logit_softcapping", 50.0),
    ("Qwen3ForCausalLM", "final_logit_softcapping", 30.0),
    ("Gemma3ForCausalLM", "attn_logit_softcapping", 50.0),
    ("LlamaForCausalLM", "use_sliding_window", True),
    ("MistralForCausalLM", "layer_types", ["full_attention"] * 5 + ["sliding_attention"]),
    ("Qwen2ForCausalLM", "num_key_value_heads", 3),
    ("Qwen3ForCausalLM", "head_dim", 15),
])
def test_what_this_family_does_not_implement_is_refused_by_name(architecture, key, value):
    with pytest.raises(ValueError, match=key):
        config(architecture, **{key: value})


@pytest.mark.parametrize(("scaling", "message"), [
    ({"rope_type": "llama3", "factor": 8.0}, "needs low_freq_factor, high_freq_factor"),
    ({"rope_type": "yarn", "factor": 8.0, "long_factor": [1.0]}, "does not take long_factor"),
    ({"type": "linear"}, "needs factor"),
    ({"rope_type": "default", "partial_rotary_factor": 0.25}, "partial_rotary_factor"),
])
def test_rope_scalings_are_checked_key_by_key(scaling, message):
    with pytest.raises(ValueError, match=message):
        config(rope_scaling=scaling)


def test_rope_scalings_fall_back_to_the_context():
    assert config(rope_scaling={"type": "yarn", "factor": 2.0}).rope.scaling == YarnScaling(2.0, 64)
    assert config(rope_scaling={"type": "linear", "factor": 2.0}).rope.scaling == LinearScaling(2.0)


def test_unknown_architectures_are_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'?MambaForCausalLM'? is not supported; known: .*LlamaForCausalLM.*Qwen3"):
        family({"architectures": ["MambaForCausalLM"]})
    with pytest.raises(ValueError, match=r"\(none\)"):
        family({})


@pytest.mark.parametrize("key", ["vocab_size", "num_hidden_layers", "max_position_embeddings"])
def test_missing_keys_are_named(key):
    with pytest.raises(ValueError, match=f"config.json has no '{key}'"):
        config(**{key: None})


def test_layer_lists_must_have_one_entry_a_layer():
    with pytest.raises(ValueError, match="5 no_rope_layers for num_hidden_layers=6"):
        config("SmolLM3ForCausalLM", no_rope_layers=[1] * 5)
    with pytest.raises(ValueError, match="1 layer_types for num_hidden_layers=6"):
        config("Gemma2ForCausalLM", layer_types=["full_attention"])
    with pytest.raises(ValueError, match="layer type 'linear_attention' is not supported"):
        config("Gemma3ForCausalLM", layer_types=["linear_attention"] * 6)


def test_missing_keys_mean_what_each_release_meant():
    assert not config().tie_word_embeddings
    assert config("Gemma2ForCausalLM").tie_word_embeddings
    assert config("SmolLM3ForCausalLM").layer_has_rope == (True, True, True, False, True, True)
    assert config("SmolLM3ForCausalLM").rope.theta == 2e6
    assert config("MistralForCausalLM").sliding_windows == (4096,) * 6
    assert config("MistralForCausalLM", sliding_window=None).sliding_windows == (None,) * 6
    assert config("Qwen2ForCausalLM", sliding_window=32).sliding_windows == (None,) * 6
    assert config("Gemma2ForCausalLM").attention_softcap == 50.0
    assert config("Gemma2ForCausalLM", attn_logit_softcapping=None).attention_softcap is None
    gemma3 = config("Gemma3ForCausalLM", sliding_window=512)
    assert gemma3.sliding_windows == (512,) * 5 + (None,)
    assert (gemma3.rope.theta, gemma3.local_rope.theta) == (1e6, 1e4)
