"""What can't be made is refused with the choices there are."""

from __future__ import annotations

from typing import Any

import pytest

from veloxquant_mlx.cache import METHODS, KVCacheConfig, KVCacheFactory
from veloxquant_mlx.core.exceptions import QuantizerConfigError


@pytest.mark.parametrize("method", ["turboquant", "rvq", "", "FP16"])
def test_a_method_that_does_not_exist_is_refused_with_those_that_do(method: str) -> None:
    with pytest.raises(QuantizerConfigError) as refused:
        KVCacheFactory.create(KVCacheConfig(method=method))
    for existing in METHODS:
        assert existing in str(refused.value)


@pytest.mark.parametrize("bits", [0, -1, 9, 16, 2.5, "4", True])
def test_impossible_bits_are_refused_with_the_possible_ones(bits: object) -> None:
    with pytest.raises(QuantizerConfigError, match="1, 2, 3, 4, 5, 6, 7, 8"):
        KVCacheConfig(key_bits=bits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "setting",
    [{"head_dim": 0}, {"n_kv_heads": 0}, {"sink": -1}, {"window": -1}, {"seal_step": 0}, {"head_dim": 64.0}],
)
def test_impossible_sizes_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(QuantizerConfigError, match=next(iter(setting))):
        KVCacheConfig(**setting)


def test_bit_width_inlier_is_another_name_for_key_bits() -> None:
    assert KVCacheConfig(bit_width_inlier=3) == KVCacheConfig(key_bits=3)
    assert KVCacheConfig(bit_width_inlier=3, value_bits=2).value_bits == 2
    with pytest.raises(QuantizerConfigError, match="disagree"):
        KVCacheConfig(bit_width_inlier=3, key_bits=4)


def test_values_follow_keys_where_nothing_else_is_said() -> None:
    config = KVCacheConfig(head_dim=80, key_bits=3)
    assert (config.value_bits, config.value_head_dim) == (3, 80)


@pytest.mark.parametrize(("method", "bits"), [("turboquant_prod", 1), ("polar", 1), ("affine", 7), ("affine", 1)])
def test_bits_that_a_method_has_no_code_for_are_refused(method: str, bits: int) -> None:
    with pytest.raises(QuantizerConfigError) as refused:
        KVCacheConfig(method=method, key_bits=bits)
    assert ", ".join(map(str, METHODS[method].bits)) in str(refused.value)
