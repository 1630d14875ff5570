"""What pytest must not import: the adapters of peers, which need not be installed."""

collect_ignore_glob = ["peers/with_*.py"]
