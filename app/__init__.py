"""VeloxQuant Chat: a desktop chat client that shows what the KV cache costs."""

__version__ = "0.2.0"
