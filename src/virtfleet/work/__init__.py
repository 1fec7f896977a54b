"""Work that goes on beside other work, and who answers for it: tasks and commands. Nothing but the standard library."""
