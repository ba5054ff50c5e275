"""`python -m headwater` is `headwater`."""

from headwater.cli.main import run

if __name__ == "__main__":
    run()
