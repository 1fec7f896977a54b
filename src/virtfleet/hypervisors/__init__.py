"""One file per hypervisor, the contract they implement, and the registry of what each can do. Pure."""
