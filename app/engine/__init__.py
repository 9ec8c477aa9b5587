"""The GUI-free engine: one worker thread owns the model, the pool and every cache."""
