"""`python -m virtfleet.local DIR`: the control plane of the local cluster in DIR."""

from __future__ import annotations

import sys
from pathlib import Path

from virtfleet.kube import process
from virtfleet.local import directory, signsoflife
from virtfleet.local.controlplane import serve


def main() -> int:
    data = Path(sys.argv[1])
    settings = directory.load(data)
    if settings is None:
        sys.exit(f"there is no cluster in {data}; start one with: virtfleet up --data {data}")
    process.log_as_json("control-plane")
    return process.run(signsoflife.giving(serve(data, settings)))


if __name__ == "__main__":
    sys.exit(main())
