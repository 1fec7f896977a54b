"""What the domain's disks lie on: images, overlays, and disks made of files."""
