"""Chats, messages and settings on disk."""

from __future__ import annotations

from app.store.store import Store, StoredChat, StoredMessage, StoreError

__all__ = ["Store", "StoreError", "StoredChat", "StoredMessage"]
