"""The importer: fills a claim with a disk, from what a `protocol.importing.Job` names, and ends."""
