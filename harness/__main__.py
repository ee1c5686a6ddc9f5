"""`python -m harness` is the command `netkv-cosim`."""

from harness.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
