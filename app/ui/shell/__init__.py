"""The application and its main window: what holds the rooms together, their menus, notices, drops, and the tour."""
