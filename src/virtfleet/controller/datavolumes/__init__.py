"""DataVolumes where CDI is not installed: claims made, filled by importers, and how far they are."""
