"""The GUI-free engine: one worker thread owns the model, the pool and every cache.

from app.engine import CacheChoice, Engine

with Engine() as engine:
    engine.load()
    ...
"""

from app.engine.engine import Engine, EngineError, default_budget
from app.engine.values import CacheChoice, Message, Sampling

__all__ = ["CacheChoice", "Engine", "EngineError", "Message", "Sampling", "default_budget"]
