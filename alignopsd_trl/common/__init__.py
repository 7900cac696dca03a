"""What every room may use: options and their checks, processes and shards, files, progress, statistics, model names."""
