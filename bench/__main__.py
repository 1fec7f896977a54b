"""`python -m bench [NAME...] [-o json]`: run benchmarks by name, or all of them; some also on any cluster.

A benchmark is a module here with a `TITLE` and a `run()` that returns a list of `Figure`, plain or as a coroutine.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import itertools
import json
import pkgutil
import sys
import time
from pathlib import Path

import bench
from bench.report import as_data, as_text


def main() -> None:
    names = [m.name for m in pkgutil.iter_modules(bench.__path__) if m.name not in ("__main__", "report")]
    benchmarks = {n: m for n in names if hasattr(m := importlib.import_module(f"bench.{n}"), "TITLE")}
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(benchmarks)}")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.add_argument("--kubeconfig", type=Path, help="of vms, scale: the cluster, instead of one of its own")
    parser.add_argument("--registry", default="", help="of vms with --kubeconfig: where VirtFleet's images are")
    parser.add_argument("--guest", help="of vms with --kubeconfig: the guest's image, with an agent in it")
    parser.add_argument("--vmis", type=int, help="of scale, migration: how many")
    parser.add_argument("--moves", type=int, help="of migration: how many in a row")
    options = parser.parse_args()
    given = {k: v for k in ("kubeconfig", "registry", "guest", "vmis", "moves") if (v := getattr(options, k))}
    if unknown := set(options.names) - set(benchmarks):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(benchmarks)}")
    for option, name in itertools.product(given, options.names or benchmarks):
        if option not in inspect.signature(benchmarks[name].run).parameters:
            parser.error(f"--{option} says nothing to the benchmark {name}")
    results = {}
    for name in options.names or benchmarks:
        module = benchmarks[name]
        print(f"running {name}: {module.TITLE}", file=sys.stderr, flush=True)
        began = time.monotonic()
        figures = module.run(**given)
        if inspect.isawaitable(figures):
            figures = asyncio.run(figures)
        print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        results[name] = as_data(figures)
        if options.output == "text":
            print(as_text(module.TITLE, figures), flush=True)
    if options.output == "json":
        print(json.dumps(results, indent=2))
    wrong = [f"{f['name']}: {f['problem']}" for figures in results.values() for f in figures if f["problem"]]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
