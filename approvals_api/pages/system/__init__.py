"""Pages about the installation itself: its notifications, its health."""
