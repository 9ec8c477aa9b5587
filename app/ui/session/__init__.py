"""What the window knows and does, without a widget: chats, comparison, model, memory, and what is kept of them."""
