"""Replaces PyInstaller's own hook, which adds the metadata of everything that transformers could ever work with.

At import, transformers reads the names of its models' files, and the names in them, from their source.
"""

from __future__ import annotations

module_collection_mode = {"transformers": "pyz", "transformers.models": "pyz+py"}
