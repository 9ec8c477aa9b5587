"""The other middle: one prompt under several cache methods, side by side."""
