"""mlx-lm models on this library's caches, against mlx-lm's own output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import deepseek_v3, gemma3_text, gpt_oss, llama, phi3, qwen3
from mlx_lm.models.cache import KVCache, make_prompt_cache

from app.models.loading import LoadedModel, load_model
from veloxquant_mlx.cache.config import KVCacheConfig
from veloxquant_mlx.core.exceptions import BlockPoolExhaustedError
from veloxquant_mlx.integrations.mlx_lm import LayerCache, attach, build_caches, pooled_layers
from veloxquant_mlx.memory.block_pool import BlockPoolAllocator, PoolConfig
from veloxquant_mlx.memory.pool_backed_cache import build_pooled_caches


def greedy(model: Any, prompt: list[int], n: int, cache: list[Any]) -> list[int]:
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=n, prompt_cache=cache)]


@pytest.fixture
def pool() -> BlockPoolAllocator:
    return BlockPoolAllocator(PoolConfig(n_blocks=20_000))


@pytest.fixture(scope="module")
def loaded(default_model_dir: Path) -> LoadedModel:
    return load_model(default_model_dir, lambda stage, fraction: None, lambda: False)


def test_fp16_answers_like_mlx_lm_token_for_token(loaded: LoadedModel, pool: BlockPoolAllocator) -> None:
    turns = [{"role": "user", "content": "Explain how rainbows form, and why the sky is blue."}]
    prompt = loaded.tokenizer.apply_chat_template(turns, add_generation_prompt=True)
    theirs = greedy(loaded.model, prompt, 128, make_prompt_cache(loaded.model))
    caches = build_caches(loaded.model, KVCacheConfig(method="fp16"), pool, owner=1)
    assert greedy(loaded.model, prompt, 128, caches) == theirs
    n_tokens = len(prompt) + 128  # mlx-lm puts the last token through the model too, one step ahead
    assert {layer.offset for layer in pooled_layers(caches)} == {n_tokens}
    assert pool.stats.blocks_in_use() == 2 * loaded.n_layers * -(-n_tokens // 16)
    for layer in pooled_layers(caches):
        layer.release()
    assert pool.stats.blocks_in_use() == 0


def test_compressed_answers_stay_close_to_the_uncompressed_model(loaded: LoadedModel, pool: BlockPoolAllocator) -> None:
    """Mean KL divergence of the next-token distribution over real text, fed 32 tokens at a time."""
    import pydoc_data.topics

    tokens = loaded.tokenizer.encode(pydoc_data.topics.topics["assignment"])[:384]

    def log_probs(caches: list[Any]) -> mx.array:
        parts = []
        for i in range(0, len(tokens), 32):
            logits = loaded.model(mx.array(tokens[i : i + 32])[None], cache=caches)[0]
            mx.eval(logits)
            parts.append(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        return mx.concatenate(parts)

    reference = log_probs(make_prompt_cache(loaded.model))

    def divergence(method: str, bits: int) -> float:
        caches = build_caches(loaded.model, KVCacheConfig(method=method, key_bits=bits), pool, owner=1)
        coded = log_probs(caches)
        assert pool.bytes_in_use >= sum(layer.nbytes for layer in caches) * 0.95
        for layer in caches:
            layer.release()
        assert pool.bytes_in_use == 0
        return float((mx.exp(reference) * (reference - coded)).sum(-1).mean())

    found = {bits: divergence("turboquant_mse", bits) for bits in (8, 4, 2)}
    assert 0 <= found[8] < 0.001
    assert found[8] < found[4] < 0.01
    assert found[4] < found[2] < 0.15
    # What each may lose at 4 bits; on longer text see the benchmark.
    most = {"turboquant_prod": 0.02, "spectral": 0.02, "polar": 0.01, "qjl": 0.2, "affine": 0.5}
    for method, limit in most.items():
        assert 0 < divergence(method, 4) < limit, method


# ---------------------------------------------------------------- tiny random models, one per kind of layer
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 200,
}


def tiny_llama() -> Any:
    return llama.Model(llama.ModelArgs(model_type="llama", **SMALL))


def tiny_qwen3() -> Any:
    args = qwen3.ModelArgs(
        model_type="qwen3", head_dim=32, max_position_embeddings=512, rope_theta=1e4, tie_word_embeddings=True, **SMALL
    )
    return qwen3.Model(args)


def tiny_phi3() -> Any:
    return phi3.Model(phi3.ModelArgs(model_type="phi3", **SMALL))


def tiny_gemma3() -> Any:
    """Every second layer has a sliding window of 16 tokens and keeps mlx-lm's own cache."""
    args = gemma3_text.ModelArgs(
        model_type="gemma3_text", head_dim=32, sliding_window=16, sliding_window_pattern=2, **SMALL
    )
    return gemma3_text.Model(args)


def tiny_gpt_oss() -> Any:
    """Attention sinks: a learned logit takes part in the softmax."""
    args = gpt_oss.ModelArgs(
        model_type="gpt_oss",
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=32,
        sliding_window=16,
        **SMALL,
    )
    model = gpt_oss.Model(args)
    for layer in model.layers:
        layer.self_attn.sinks = mx.random.normal(layer.self_attn.sinks.shape)
    return model


def tiny_deepseek_v3() -> Any:
    """Latent attention (MLA): the cache holds latents, and attention runs on keys made of them."""
    args = deepseek_v3.ModelArgs(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=32,
        q_lora_rank=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        qk_nope_head_dim=32,
        n_routed_experts=None,
        rope_theta=10000.0,
    )
    return deepseek_v3.Model(args)


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen3, tiny_phi3, tiny_gemma3, tiny_gpt_oss, tiny_deepseek_v3])
def test_random_models_of_every_kind_answer_like_mlx_lm(make: Callable[[], Any], pool: BlockPoolAllocator) -> None:
    mx.random.seed(7)
    model = make()
    mx.eval(model.parameters())
    prompt = list(range(3, 43))
    theirs = greedy(model, prompt, 40, make_prompt_cache(model))
    caches = build_caches(model, KVCacheConfig(method="fp16"), pool, owner=1)
    assert [isinstance(ours, LayerCache) for ours in caches] == [type(c) is KVCache for c in make_prompt_cache(model)]
    assert greedy(model, prompt, 40, caches) == theirs
    coded = build_caches(model, KVCacheConfig(key_bits=8, sink=4, window=8, seal_step=8), pool, owner=2)
    assert greedy(model, prompt, 3, coded) == theirs[:3]


def test_a_model_whose_attention_can_not_be_rebound_gets_unpacked_arrays(
    pool: BlockPoolAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    mx.random.seed(7)
    model = tiny_llama()
    theirs = greedy(model, list(range(3, 43)), 20, make_prompt_cache(model))
    monkeypatch.setattr("veloxquant_mlx.integrations.mlx_lm.attach", lambda model: False)
    caches = build_caches(model, KVCacheConfig(method="fp16"), pool, owner=1)
    assert greedy(model, list(range(3, 43)), 20, caches) == theirs


@pytest.mark.parametrize("build", ["build_caches", "build_pooled_caches"])
def test_a_pool_that_ends_in_the_middle_of_a_model_leaves_all_layers_alike(build: str) -> None:
    """The first layers kept tokens that the later ones lacked; trying again gave wrong answers without a word."""
    mx.random.seed(7)
    model = tiny_llama()
    pool = BlockPoolAllocator(PoolConfig(n_blocks=6 if build == "build_caches" else 48 * 2))
    if build == "build_caches":
        caches: list[Any] = build_caches(model, KVCacheConfig(method="fp16"), pool, owner=1)
    else:
        caches = build_pooled_caches(model, pool, owner=1)
    with pytest.raises(BlockPoolExhaustedError):
        model(mx.arange(1, 34)[None] if build == "build_caches" else mx.arange(600)[None] % 200, cache=caches)
    assert [cache.offset for cache in caches] == [0, 0]
    assert pool.stats.blocks_in_use() == 0


def test_attaching_twice_changes_nothing_and_stock_caches_go_on(pool: BlockPoolAllocator) -> None:
    mx.random.seed(7)
    model = tiny_llama()
    before = greedy(model, [1, 2, 3], 10, make_prompt_cache(model))
    assert attach(model)
    once = getattr(llama, "scaled_dot_product_attention")  # noqa: B009  # the module does not export it
    assert attach(model)
    assert getattr(llama, "scaled_dot_product_attention") is once  # noqa: B009
    assert greedy(model, [1, 2, 3], 10, make_prompt_cache(model)) == before


def test_a_batch_is_refused(pool: BlockPoolAllocator) -> None:
    model = tiny_llama()
    with pytest.raises(ValueError, match="one sequence"):
        model(mx.zeros((2, 3), dtype=mx.int32), cache=build_caches(model, KVCacheConfig(method="fp16"), pool, owner=1))


def test_blocks_needed_is_what_a_step_then_takes(pool: BlockPoolAllocator) -> None:
    mx.random.seed(7)
    model = tiny_llama()
    caches = build_caches(model, KVCacheConfig(key_bits=4), pool, owner=1)
    for n in (5, 11, 1, 1, 40, 7, 16):
        needed = sum(k + v for k, v in (layer.blocks_needed(n) for layer in pooled_layers(caches)))
        before = pool.stats.blocks_in_use()
        mx.eval(model(mx.arange(n)[None], cache=caches))
        assert pool.stats.blocks_in_use() - before == needed
