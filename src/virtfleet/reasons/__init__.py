"""Why a VM goes where it goes: the decisions of the components, called for people to read. Pure."""
