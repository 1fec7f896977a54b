"""Commands that show what would happen, and why."""
