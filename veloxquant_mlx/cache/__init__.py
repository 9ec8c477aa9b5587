"""The storage-owning cache, its configuration and its factory."""
