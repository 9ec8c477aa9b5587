"""KV-cache compression for MLX that runs in real models, with a block pool that knows what it costs."""
