"""The left side: which chats there are, and how the next one keeps its memory."""
