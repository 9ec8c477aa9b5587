"""Codecs: arrays in, packed arrays out; nothing here knows of tokens or sessions."""
