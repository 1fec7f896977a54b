"""What is wrong, for people to mend, and what others need to help them."""
