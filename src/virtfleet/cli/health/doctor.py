"""`virtfleet doctor`: what is wrong here, and what to do about it. It only looks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from virtfleet.cli.health.finding import FINE, PROBLEM, WARNING, Finding, problem
from virtfleet.cli.home.cluster import data_option
from virtfleet.cli.output import bad, doubtful, explained, good, output_option, result
from virtfleet.cli.reach import Where, cluster_options, with_cluster

if TYPE_CHECKING:
    from virtfleet.kube.client import Client

_MARKS = {FINE: good("ok"), WARNING: doubtful("!"), PROBLEM: bad("x")}
_PATIENCE = 15.0


@click.command()
@data_option
@cluster_options
@output_option
@click.pass_context
def doctor(ctx: click.Context, data: Path, where: Where, output: str) -> None:
    """Say what is wrong here, and what to do about it. Nothing is changed.

    Looks at the cluster that --kubeconfig, KUBECONFIG or ~/.kube/config name, else at that of this machine; and at this
    machine itself where it has a cluster, or could have one. Ends with 1 where there is a problem.
    """
    findings = findings_of(data, where)
    problems = sum(finding.level == PROBLEM for finding in findings)
    warnings = sum(finding.level == WARNING for finding in findings)
    facts = {"problems": problems, "warnings": warnings, "findings": [asdict(finding) for finding in findings]}
    result(output, facts, _text(findings, problems, warnings))
    ctx.exit(1 if problems else 0)


def findings_of(data: Path, where: Where) -> list[Finding]:
    """Everything that was looked at, the machine first."""
    from virtfleet.cli.health import machine
    from virtfleet.local import directory

    here = (data / directory.MARK).exists()
    findings = list(machine.checks(data)) if here or not _configured(where) else []
    if where == Where() and here:
        where = Where(data / "kubeconfig")
    if where.kubeconfig is None and not _configured(where):
        return findings  # there is no cluster that could be asked
    try:
        findings += with_cluster(_ask, where, patience=3.0)
    except Exception as error:
        said = explained(error).message.splitlines()
        findings.append(
            problem("API server", said[0], " ".join(said[1:]) or "Is the cluster up, and its address right?")
        )
    return findings


def _configured(where: Where) -> bool:
    """Whether there is a cluster to ask."""
    from virtfleet.kube.credentials import ConfigError

    try:
        where.config()
    except ConfigError:
        return where != Where()
    return True


async def _ask(api: Client) -> list[Finding]:
    from virtfleet.cli.health import cluster

    async with asyncio.timeout(_PATIENCE):
        return list(cluster.checks(await cluster.look(api), datetime.now(UTC)))


def _text(findings: Sequence[Finding], problems: int, warnings: int) -> str:
    width = max(len(finding.about) for finding in findings)
    lines = []
    for finding in findings:
        mark = _MARKS[finding.level]
        lines.append(f"{mark}{' ' * (3 - len(click.unstyle(mark)))}{finding.about.ljust(width)}   {finding.text}")
        if finding.level != FINE and finding.advice:
            lines += [f"   {' ' * width}   {line}" for line in finding.advice.splitlines()]
    counted = f"{problems} problems, {warnings} warnings" if problems or warnings else "Nothing is wrong"
    return "\n".join([*lines, "", f"{counted}."])
