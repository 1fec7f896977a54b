"""The contract that VirtFleet holds every hypervisor to."""

from virtfleet_mock import Mock

from virtfleet.hypervisors.testing import HypervisorContract


class TestMock(HypervisorContract):
    """It keeps it."""

    hypervisor = Mock()
