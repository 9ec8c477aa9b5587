"""The KVCache interface: what every cache of keys and values offers, whatever it does to them (no MLX needed)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

Stream = Literal["k", "v"]


class Sealed(NamedTuple):
    """Which tokens of one stream (keys or values) are stored compressed, and how.

    Attributes:
        format: A name for how.
        first: The first of them.
        n_tokens: How many follow each other.
        bytes_per_token: What one of them takes, all heads.
        constant_bytes: What is held for all of them together: a mean, a basis.
    """

    format: str
    first: int
    n_tokens: int
    bytes_per_token: int
    constant_bytes: int = 0


class KVCache(ABC):
    """The keys and values of one attention layer, for one sequence.

    One cache serves all heads of a layer; a single vector `(d,)` is the case of one head and one token. Arrays are
    `mlx.core.array`; they are typed `Any` so that this module needs no MLX.
    """

    @abstractmethod
    def append_key(self, k: Any) -> None:
        """Store the keys of the next tokens.

        Args:
            k: `(d,)`, or `(n_kv_heads, n_tokens, d)`.
        """

    @abstractmethod
    def append_value(self, v: Any) -> None:
        """Store the values of the next tokens.

        Args:
            v: `(d,)`, or `(n_kv_heads, n_tokens, d)`.
        """

    @abstractmethod
    def attend(self, q: Any, scale: float | None = None) -> Any:
        """The attention output of the latest positions over everything stored.

        Args:
            q: `(d,)`, or `(n_q_heads, n_tokens, d)`. With n_tokens > 1 the queries are the last n_tokens positions and
                attention is causal. n_q_heads is a multiple of n_kv_heads (grouped-query attention).
            scale: What the scores are multiplied by; None is 1/sqrt(d).

        Returns:
            The output, in q's shape (with the values' d).
        """

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes of every array this cache holds, unused capacity included."""

    def sealed(self, stream: Stream) -> Sealed | None:
        """Which tokens of a stream are stored compressed; None where this kind of cache can't say."""
        return None

    def reset(self) -> None:
        """Forget all tokens; configuration and codecs stay.

        Raises:
            NotImplementedError: This kind of cache can't be emptied.
        """
        raise NotImplementedError(f"{type(self).__name__} can't be emptied with reset(); make a new cache instead.")

    def append(self, k: Any, v: Any) -> None:
        """Store keys and values of the next tokens; shapes as in `append_key` and `append_value`."""
        self.append_key(k)
        self.append_value(v)

    def trim(self, n: int) -> int:
        """Forget the last n tokens (all of them where there are fewer).

        Returns:
            How many tokens were forgotten.

        Raises:
            NotImplementedError: This kind of cache can't forget single tokens.
        """
        raise NotImplementedError(
            f"{type(self).__name__} can't forget its last {n} tokens; reset() it and append what should stay."
        )

    def fork(self, n_tokens: int | None = None, multiple_of: int = 1) -> KVCache:
        """A cache with the first n_tokens of this one (None: all of them), independent from now on.

        What the two can hold together isn't copied, in whole multiples of multiple_of tokens from the first one on.

        Raises:
            NotImplementedError: This kind of cache can't be forked.
        """
        raise NotImplementedError(
            f"{type(self).__name__} can't be forked; make a new cache and append the tokens it should begin with."
        )

    def fork_shares(self, stream: Stream, n_tokens: int | None = None, multiple_of: int = 1) -> tuple[int, int]:
        """First token and end of what `fork` would share of a stream in whole multiples; (0, 0) where it copies all."""
        return 0, 0

    def extend_and_attend(self, k: Any, v: Any, q: Any, scale: float | None = None) -> Any:
        """Append k and v, then attend with q; where a cache compresses, the new tokens take part exactly.

        Args:
            k: `(d,)`, or `(n_kv_heads, n_tokens, d)`.
            v: `(d,)`, or `(n_kv_heads, n_tokens, d)`.
            q: `(d,)`, or `(n_q_heads, n_tokens, d)`: the queries of the same tokens.
            scale: What the scores are multiplied by; None is 1/sqrt(d).

        Returns:
            The output, in q's shape (with the values' d).
        """
        self.append_key(k)
        self.append_value(v)
        return self.attend(q, scale)

    def __len__(self) -> int:
        """Tokens stored with both their key and their value."""
        raise NotImplementedError(f"{type(self).__name__} doesn't count its tokens.")

    def __bool__(self) -> bool:
        # mlx-lm asks `if cache and ...` for "is there a cache"; __len__ alone would answer no for an empty one.
        return True
