"""`python -m trainshed` and the `trainshed` command."""

from trainshed.loading import compiled

compiled.install()

from trainshed.serve.main import main  # noqa: E402 all that comes from here on is found there

if __name__ == "__main__":
    main()
