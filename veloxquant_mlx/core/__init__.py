"""The KVCache interface and the errors."""
