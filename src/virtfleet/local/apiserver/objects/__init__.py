"""The operations on objects, and the store below them."""
