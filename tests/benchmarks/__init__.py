"""Benchmarks: figures, not tests. `make bench` runs them; nothing here is part of `make test`."""

from veloxquant_mlx.core.cpu import prepare_cpu

prepare_cpu()  # before any of the modules here imports MLX
