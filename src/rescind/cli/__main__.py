"""`python -m rescind.cli`, for where the console script is not on the path."""

from rescind.cli import main

main()
