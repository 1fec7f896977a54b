"""What the handler says of its node, and the lock that makes it the only one."""
