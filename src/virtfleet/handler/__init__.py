"""The node agent, one module per responsibility (virt-handler)."""

import os

# Children are started by exec, so that gRPC has nothing to prepare for a fork; it would only complain in the log.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
