"""The command line: ``turngate …``. The only package that may import everything else."""
