"""Choosing a model on the disk, and the bar that shows one being opened."""
