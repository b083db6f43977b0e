"""`python -m trainshed` and the `trainshed` command."""

from trainshed.serve.main import main

if __name__ == "__main__":
    main()
