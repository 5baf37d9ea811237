"""`python -m tacit` is the command `tacit`."""

from tacit.cli.main import main

main(prog_name="tacit")
