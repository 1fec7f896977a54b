"""Entry point of the command line: the root command, and the table of the others.

Commands are imported when they are called: `virtfleet validate` in a loop must not pay for the local cluster's server.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

import virtfleet
from virtfleet.cli.output import TRACE, Group, Interrupted, colours, explained

# command -> (module with an attribute of that name, - as _, and one line of help)
COMMANDS = {
    "up": ("virtfleet.cli.home.up", "Start a cluster with VirtFleet on this machine."),
    "down": ("virtfleet.cli.home.cluster", "Stop the cluster on this machine."),
    "status": ("virtfleet.cli.home.cluster", "What runs, and how it is."),
    "logs": ("virtfleet.cli.logs", "Logs of a component, of a VM's launcher, or of a process of the local cluster."),
    "doctor": ("virtfleet.cli.health.doctor", "What is wrong here, and what to do about it."),
    "support-bundle": ("virtfleet.cli.health.bundle", "What others need to help: logs and objects, no secrets."),
    "demo": ("virtfleet.cli.home.demo", "Boot VMs of several pools and hypervisors, and show them."),
    "node": ("virtfleet.cli.home.node", "Nodes of the local cluster."),
    "image": ("virtfleet.cli.home.image", "Images of the local cluster."),
    "install": ("virtfleet.cli.install", "Install VirtFleet into a Kubernetes cluster."),
    "uninstall": ("virtfleet.cli.install", "Take VirtFleet out of a Kubernetes cluster."),
    "validate": ("virtfleet.cli.look.validate", "Check manifests as the cluster would."),
    "render": ("virtfleet.cli.look.render", "What VirtFleet would make of an object, without a cluster."),
    "explain": ("virtfleet.cli.look.explain", "Which pool, image, hypervisor and nodes a VM gets, and why."),
    "pools": ("virtfleet.cli.look.pools", "Pools of nodes: their handlers, their VMs, and what is wrong."),
    "dashboard": ("virtfleet.cli.look.dashboard", "The fleet in a browser."),
    "hypervisors": ("virtfleet.cli.look.hypervisors", "Hypervisors, and what each of them can do."),
    "start": ("virtfleet.cli.vm.power", "Start a VM."),
    "stop": ("virtfleet.cli.vm.power", "Stop a VM."),
    "restart": ("virtfleet.cli.vm.power", "Stop a VM and start it again."),
    "pause": ("virtfleet.cli.vm.power", "Stop a VM's CPUs."),
    "unpause": ("virtfleet.cli.vm.power", "Let a paused VM go on."),
    "migrate": ("virtfleet.cli.vm.migrate", "Move a running VM to another node."),
    "console": ("virtfleet.cli.vm.console", "A VM's serial console."),
    "vnc": ("virtfleet.cli.vm.portforward", "A VM's screen, or a picture of it."),
    "ssh": ("virtfleet.cli.vm.portforward", "Log in to a VM."),
    "port-forward": ("virtfleet.cli.vm.portforward", "Ports of a VM on this machine."),
    "guest": ("virtfleet.cli.home.image", "A small guest to try VirtFleet with."),
    "launch": ("virtfleet.cli.vm.launch", "Boot one VM without a cluster."),
    "version": ("virtfleet.cli.about", "Versions of this command and of the cluster's VirtFleet."),
    "completion": ("virtfleet.cli.about", "What makes bash, zsh or fish complete commands."),
}


class Commands(Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted(ctx) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get(TRACE):
                raise
            raise explained(error) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(virtfleet.__version__, prog_name="virtfleet")
@click.pass_context
def main(ctx: click.Context, /, **_: Any) -> None:
    """Virtual machines on Kubernetes for mixed fleets of nodes."""
    ctx.color = colours()


def plugin() -> None:
    """The same as a plugin of kubectl, which finds it by its file's name: `kubectl virtfleet ...`."""
    main(prog_name="kubectl virtfleet")
