"""The middle: one conversation, its messages, the box one writes in, and how its answers are made."""
