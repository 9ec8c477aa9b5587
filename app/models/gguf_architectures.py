"""What mlx-lm's models call the settings and tensors that GGUF files carry, one function per architecture.

GGUF's names and what they mean are those of llama.cpp (gguf-py's constants, and the graph of each architecture there);
the names they get are those of mlx_lm/models/{llama,qwen2,qwen3,gemma3_text}.py. Everything a file has must have a
place, and everything a model needs must be in the file, with the right shape, before anything is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from app.models.gguf_file import GgufFile
from app.models.gguf_rope import rope_scaling


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the converted model.

    Attributes:
        name: mlx-lm's.
        source: GGUF's.
        shape: Rows and columns, or the length of a vector.
        offset: To add to every value.
        zeros: Whether zeros are written where the file doesn't have it.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    offset: float = 0.0
    zeros: bool = False


@dataclass(slots=True)
class Plan:
    """A model as it will be written: its settings (without those of quantization and tokenizer), and its tensors."""

    config: dict[str, Any]
    weights: list[Weight] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What all four architectures have."""

    hidden: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


def plan_model(gguf: GgufFile) -> Plan:
    """How to convert the file.

    Raises:
        ModelFileError: an architecture or a variant of one that can't be converted, a value or tensor missing, a tensor
            of another shape, or one that has no place in the model.
    """
    architecture = gguf.text("general.architecture")
    build = _ARCHITECTURES.get(architecture)
    if build is None:
        *others, last = _ARCHITECTURES
        raise gguf.refused(
            f"it is a model of the architecture {architecture[:60]}; {', '.join(others)} and {last} can be converted"
        )
    _refuse_variants(gguf, architecture)
    plan = build(gguf, _sizes(gguf, architecture))
    expected = {}
    for weight in plan.weights:
        tensor = gguf.tensors.get(weight.source)
        if tensor is None and not weight.zeros:
            raise gguf.refused(f"its tensor {weight.source} is missing")
        if tensor is not None and tensor.shape != weight.shape:
            has, needs = (" x ".join(map(str, shape)) for shape in (tensor.shape, weight.shape))
            raise gguf.refused(f"its tensor {weight.source} is {has}, and should be {needs}")
        expected[weight.source] = weight
    for name in gguf.tensors:
        # What rope_freqs says is in the settings by now.
        if name not in expected and not (name == "rope_freqs.weight" and architecture == "llama"):
            raise gguf.refused(f"it has a tensor {name}, which {architecture} models don't have")
    return plan


# Settings that change what a model computes in ways that mlx-lm's four models don't have. 0 stands for "not used".
_CHANGING = (
    *("expert_count", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "logit_scale"),
    *("residual_scale", "embedding_scale", "attn_logit_softcapping", "final_logit_softcapping"),
)


def _refuse_variants(gguf: GgufFile, architecture: str) -> None:
    for name in _CHANGING:
        value = gguf.number(f"{architecture}.{name}", 0.0)
        if value == 0:
            continue
        if name == "expert_count":
            raise gguf.refused(
                f"it is a mixture of {value:g} experts, which can't be converted; choose a model that is none"
            )
        raise gguf.refused(f"it sets {architecture}.{name} to {value:g}, which can't be converted")


def _sizes(gguf: GgufFile, architecture: str) -> _Sizes:
    def size(name: str, default: int | None = None) -> int:
        value = gguf.integer(f"{architecture}.{name}", default)
        if not 0 < value < 2**31:
            raise gguf.refused(f"its value for {architecture}.{name} is {value}")
        return value

    hidden, layers, heads = size("embedding_length"), size("block_count"), size("attention.head_count")
    if layers > len(gguf.tensors):
        raise gguf.refused(f"it says that it has {layers} layers, and has only {len(gguf.tensors)} tensors")
    kv_heads = size("attention.head_count_kv", heads)
    head_dim = size("attention.key_length", max(1, hidden // heads))
    if heads % kv_heads:
        raise gguf.refused(f"its {heads} attention heads can't share {kv_heads} heads of keys and values")
    if head_dim % 2 or (not gguf.has(f"{architecture}.attention.key_length") and hidden % heads):
        raise gguf.refused(f"{heads} attention heads of {head_dim} values don't fit its {hidden} values per token")
    for name in ("attention.value_length", "rope.dimension_count"):
        if size(name, head_dim) != head_dim:
            raise gguf.refused(
                f"its value for {architecture}.{name} is not the size of a head, {head_dim}, as mlx-lm needs it"
            )
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise gguf.refused("its tensor token_embd.weight is missing")
    vocab = embedding.shape[0]
    if gguf.has("tokenizer.ggml.tokens") and len(gguf.texts("tokenizer.ggml.tokens")) > vocab:
        raise gguf.refused(f"its vocabulary has more tokens than its tensor token_embd.weight has rows, {vocab}")
    return _Sizes(hidden, layers, size("feed_forward_length"), heads, kv_heads, head_dim, vocab)


def _base(gguf: GgufFile, architecture: str, sizes: _Sizes) -> dict[str, Any]:
    """The settings that all four have under the same names."""
    config: dict[str, Any] = {
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": sizes.inner,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": gguf.number(f"{architecture}.attention.layer_norm_rms_epsilon"),
        "vocab_size": sizes.vocab,
        "rope_theta": gguf.number(f"{architecture}.rope.freq_base", 10000.0),
        "max_position_embeddings": gguf.integer(f"{architecture}.context_length"),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
    }
    for name, low, high in (("rms_norm_eps", 0, 1), ("rope_theta", 1, 1e12), ("max_position_embeddings", 1, 2**31)):
        if not low <= config[name] <= high:
            raise gguf.refused(f"its {name} is {config[name]}")
    scaling = rope_scaling(gguf, architecture, sizes.head_dim, config["rope_theta"], config["max_position_embeddings"])
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


def _tensors(gguf: GgufFile, sizes: _Sizes, norms: dict[str, str], norm_offset: float = 0.0) -> list[Weight]:
    """What all four have; `norms` are the per-layer norms over the hidden size, GGUF's names to mlx-lm's."""
    q_rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    matrices = {
        "attn_q": ("self_attn.q_proj", (q_rows, sizes.hidden)),
        "attn_k": ("self_attn.k_proj", (kv_rows, sizes.hidden)),
        "attn_v": ("self_attn.v_proj", (kv_rows, sizes.hidden)),
        "attn_output": ("self_attn.o_proj", (sizes.hidden, q_rows)),
        "ffn_gate": ("mlp.gate_proj", (sizes.inner, sizes.hidden)),
        "ffn_up": ("mlp.up_proj", (sizes.inner, sizes.hidden)),
        "ffn_down": ("mlp.down_proj", (sizes.hidden, sizes.inner)),
    }
    embedding = (sizes.vocab, sizes.hidden)
    weights = [Weight("model.embed_tokens.weight", "token_embd.weight", embedding)]
    for layer in range(sizes.layers):
        for source, (name, shape) in matrices.items():
            weights.append(Weight(f"model.layers.{layer}.{name}.weight", f"blk.{layer}.{source}.weight", shape))
        for source, name in norms.items():
            full = f"model.layers.{layer}.{name}.weight"
            weights.append(Weight(full, f"blk.{layer}.{source}.weight", (sizes.hidden,), norm_offset))
    weights.append(Weight("model.norm.weight", "output_norm.weight", (sizes.hidden,), norm_offset))
    if "output.weight" in gguf.tensors:
        weights.append(Weight("lm_head.weight", "output.weight", embedding))
    return weights


_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def _head_norms(sizes: _Sizes, offset: float = 0.0) -> list[Weight]:
    return [
        Weight(
            f"model.layers.{layer}.self_attn.{part}_norm.weight",
            f"blk.{layer}.attn_{part}_norm.weight",
            (sizes.head_dim,),
            offset,
        )
        for layer in range(sizes.layers)
        for part in "qk"
    ]


def _biases(sizes: _Sizes, names: dict[str, tuple[str, int]], *, zeros: bool) -> list[Weight]:
    return [
        Weight(f"model.layers.{layer}.{name}.bias", f"blk.{layer}.{source}.bias", (rows,), zeros=zeros)
        for layer in range(sizes.layers)
        for source, (name, rows) in names.items()
    ]


def _llama(gguf: GgufFile, sizes: _Sizes) -> Plan:
    q_rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    attention = {
        "attn_q": ("self_attn.q_proj", q_rows),
        "attn_k": ("self_attn.k_proj", kv_rows),
        "attn_v": ("self_attn.v_proj", kv_rows),
        "attn_output": ("self_attn.o_proj", sizes.hidden),
    }
    mlp = {
        "ffn_gate": ("mlp.gate_proj", sizes.inner),
        "ffn_up": ("mlp.up_proj", sizes.inner),
        "ffn_down": ("mlp.down_proj", sizes.hidden),
    }

    def any_bias(names: Iterable[str]) -> bool:
        return any(f"blk.{layer}.{name}.bias" in gguf.tensors for name in names for layer in range(sizes.layers))

    plan = Plan(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            **_base(gguf, "llama", sizes),
            # GGUF keeps the rows of q and k in the order of interleaved rotary embeddings.
            "rope_traditional": True,
            # mlx-lm has all biases of a kind or none.
            "attention_bias": any_bias(attention),
            "mlp_bias": any_bias(mlp),
            "torch_dtype": "float16",
        },
        _tensors(gguf, sizes, _NORMS),
    )
    if plan.config["attention_bias"]:
        plan.weights += _biases(sizes, attention, zeros=True)
    if plan.config["mlp_bias"]:
        plan.weights += _biases(sizes, mlp, zeros=True)
    return plan


def _qwen2(gguf: GgufFile, sizes: _Sizes) -> Plan:
    if sizes.heads * sizes.head_dim != sizes.hidden:
        raise gguf.refused(
            f"{sizes.heads} attention heads of {sizes.head_dim} values are not its {sizes.hidden} values per token"
        )
    biases = {
        "attn_q": ("self_attn.q_proj", sizes.heads * sizes.head_dim),
        "attn_k": ("self_attn.k_proj", sizes.kv_heads * sizes.head_dim),
        "attn_v": ("self_attn.v_proj", sizes.kv_heads * sizes.head_dim),
    }
    return Plan(
        {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            **_base(gguf, "qwen2", sizes),
            "torch_dtype": "bfloat16",
        },
        _tensors(gguf, sizes, _NORMS) + _biases(sizes, biases, zeros=False),
    )


def _qwen3(gguf: GgufFile, sizes: _Sizes) -> Plan:
    return Plan(
        {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            **_base(gguf, "qwen3", sizes),
            "torch_dtype": "bfloat16",
        },
        _tensors(gguf, sizes, _NORMS) + _head_norms(sizes),
    )


_LAYERS_OF_GEMMA_27B = 62  # the one Gemma 3 whose scores are scaled by the size per head instead of the head's size


def _gemma3(gguf: GgufFile, sizes: _Sizes) -> Plan:
    pattern = gguf.integer("gemma3.attention.sliding_window_pattern", 6)
    window = gguf.integer("gemma3.attention.sliding_window")
    if not 0 < pattern <= sizes.layers or window < 1:
        raise gguf.refused(
            f"Gemma 3 can't have {sizes.layers} layers of which 1 in {pattern} has no window of {window} tokens"
        )
    norms = {
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    scalar = sizes.hidden / sizes.heads if sizes.layers == _LAYERS_OF_GEMMA_27B else sizes.head_dim
    return Plan(
        {
            "model_type": "gemma3_text",
            "architectures": ["Gemma3ForCausalLM"],
            **_base(gguf, "gemma3", sizes),
            "rope_local_base_freq": gguf.number("gemma3.rope.freq_base_swa", 10000.0),
            "query_pre_attn_scalar": scalar,
            "sliding_window": window,
            "sliding_window_pattern": pattern,
            "torch_dtype": "bfloat16",
        },
        # GGUF's norms have the 1 added that mlx-lm adds.
        _tensors(gguf, sizes, norms, -1.0) + _head_norms(sizes, -1.0),
    )


_ARCHITECTURES: dict[str, Callable[[GgufFile, _Sizes], Plan]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
