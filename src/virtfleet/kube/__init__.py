"""The runtime every component stands on: client, cache, queue, controller loop, election, events, certificates."""
