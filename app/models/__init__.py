"""Finds, fetches, converts and checks models on disk. Qt-free; MLX is imported only while a model is loaded."""

from __future__ import annotations

from app.models.default_model import (
    default_model_folder,
    ensure_default_model,
    find_default_model,
    models_dir,
)
from app.models.errors import Cancelled, FetchError, ModelFileError
from app.models.verify import check_model_folder

__all__ = [
    "Cancelled",
    "FetchError",
    "ModelFileError",
    "check_model_folder",
    "default_model_folder",
    "ensure_default_model",
    "find_default_model",
    "models_dir",
]
