"""What a handler and a launcher say to each other, and how: messages, frames, and the asking side."""
