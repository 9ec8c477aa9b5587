"""What makes mlx-lm models run on these caches."""
