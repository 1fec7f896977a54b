"""VMs on their way here: their Pods are made ready exactly as for a start, and nothing is started in them.

What the guest's owner reads is the source's to write, for as long as the VM runs there.
"""

from __future__ import annotations

import logging

from virtfleet.handler.vms.decisions import Step, next_step
from virtfleet.handler.vms.instances import Instance, Role
from virtfleet.handler.vms.preparation import Preparation
from virtfleet.handler.vms.work import Attempts, PodWork
from virtfleet.protocol.messages import Kill, Prepare

logger = logging.getLogger(__name__)


class Target:
    """Brings the Pod of a VM that is to come here in line with the VMI."""

    def __init__(self, attempts: Attempts, preparation: Preparation) -> None:
        self._attempts = attempts
        self._preparation = preparation

    async def reconcile(self, instance: Instance, vm: PodWork) -> float | None:
        """Make the Pod ready for the guest; the answer is when to look again."""

        async def act(step: Step, wanted: bytes) -> None:
            if step is Step.KILL:
                await vm.launcher.call(Kill())
            elif vm.done != (step, wanted):
                await self._prepare(instance, vm)
                vm.done = (step, wanted)

        step = next_step(instance, Role.TARGET, vm.launcher.presence, vm.launcher.state)
        return await self._attempts.make(instance, vm, step, act)

    async def _prepare(self, instance: Instance, vm: PodWork) -> None:
        order, _ = await self._preparation.make(instance, vm.launcher, Prepare, started=False)
        vm.launcher.state = await vm.launcher.call(order)
        logger.info("%s: the Pod is ready for the guest, which is to come from another node", vm.record.key)
