"""The fleet in a browser: pages, and a small server that acts with its visitors' own rights and has none itself."""
