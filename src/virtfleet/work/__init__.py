"""Work beside other work, and who answers for it: tasks, commands, sockets. Nothing but the standard library."""
