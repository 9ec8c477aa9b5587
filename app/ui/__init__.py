"""The window: Qt widgets that show what the engine's events say. Nothing here imports MLX."""
